"""The form that starts a job of a task: its args, and how the job is queued."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from dataloader.app.features.jobs.args_form import ArgInput, ArgsForm, input_of
from dataloader.app.http.auth.guard import current_actor
from dataloader.app.http.jobs.trigger_request import (
    JobRequest,
    apply_task_defaults,
    trigger_request_model,
    validate_args,
)
from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError
from dataloader.app.http.options import WebOptions
from dataloader.app.http.problems import InvalidRequest
from dataloader.app.http.schemas import field_errors
from dataloader.app.log.masking import mask_secret_fields, unmask
from dataloader.app.queue.job import Job
from dataloader.app.ui.base import FormModel, InvalidForm, parse_json_object, parse_time
from dataloader.pipelines.contract import Pipelines, Task
from dataloader.pipelines.schedule_definition import slice_live_key, times_of_slice

_TEXTS = ("queue", "lock_key", "idempotency_key", "fair_key")
_NUMBERS = ("priority", "max_attempts", "time_limit_sec", "lease_ttl_sec", "start_within_sec")
_DEFAULT_PRIORITY, _DEFAULT_ATTEMPTS = "100", "5"


class StartForm(FormModel):
    """The form that starts a task: a field `arg_<name>` for each arg, or `args` as JSON."""

    model_config = ConfigDict(extra="allow", frozen=True)

    args: str = Field("", description="All args as a JSON object, for a task without a schema of its args.")
    queue: str = Field("", description="The queue; empty: the task's own.")
    lock_key: str = Field("", description="The lock key; empty: the task's own.")
    available_at: str = Field("", description="Not before this time, in the zone of the pages.")
    priority: str = Field("", description="The priority; smaller runs first.")
    max_attempts: str = Field("", description="The maximum number of attempts.")
    time_limit_sec: str = Field("", description="The time limit of an attempt; empty: the task's own.")
    lease_ttl_sec: str = Field("", description="How long the lease lasts without a heartbeat.")
    start_within_sec: str = Field("", description="Canceled if it has not started so long after its time.")
    idempotency_key: str = Field("", description="A second job with this key is not made.")
    fair_key: str = Field("", description="The tenant that the job counts as in a fair queue.")
    tags: str = Field("", description="The tags, separated by commas.")
    partition_key: str = Field("", description="The slice of the task, or another part of the work.")
    after: str = Field("", description="Ids of the jobs that it waits for, one a line.")
    after_on: str = Field("", description="The end it waits for: succeeded, ended or failed.")
    need: str = Field("", description="all of these jobs, or any.")
    more: str = Field("", description="Further fields of a trigger as a JSON object.")
    from_job: str = Field("", description="The job whose args the form was filled in with.")


@dataclass(frozen=True, kw_only=True)
class StartInputs:
    """What the form shows before a refusal. `inputs` is None where args are written as JSON, in `values["args"]`."""

    inputs: list[ArgInput] | None
    values: Mapping[str, str]
    from_job: str = ""


class StartForms:
    """Makes the form of each task, and the request of a job from it."""

    def __init__(self, pipelines: Pipelines, options: WebOptions) -> None:
        self._pipelines, self._options = pipelines, options
        self._model, self._apply_defaults = (
            trigger_request_model(options, pipelines),
            apply_task_defaults(pipelines, options.timezone),
        )

    def inputs(
        self, name: str, *, zone: str, queue: str = "", job: Job | None = None, as_json: bool = False
    ) -> StartInputs:
        """The form with the defaults of the task, or with the values of a job."""
        task, form = self._pipelines.get(name), self._args_form(name, zone)
        values = self._defaults(task) | {"queue": queue, "lock_key": name}
        if task is not None:
            values |= {"queue": task.options.queue or queue, "lock_key": task.options.lock_key or name}
        args: Mapping[str, Any] = {}
        if job is not None:
            args = mask_secret_fields(job.args)
            values |= _values_of(job, task)
        if as_json or not form.can_show(args):
            return StartInputs(
                inputs=None, values=values | {"args": _pretty(args)}, from_job=str(job.id) if job else ""
            )
        inputs = form.inputs(None if job is None else args)
        return StartInputs(inputs=inputs, values=values, from_job=str(job.id) if job else "")

    def parse(
        self, name: str, values: Mapping[str, str], original: Mapping[str, Any] | None, *, zone: str
    ) -> JobRequest:
        """The request for a job, with times of the form in the zone. `original` holds the secrets that the form masked.
        Raises InvalidRequest, with the fields of the request."""
        task = self._pipelines.get(name)
        args, errors = self._args_form(name, zone).parse(values)
        fields: dict[str, Any] = {"task": name, "args": args if original is None else unmask(args, original)}
        errors += self._parse_options(task, values, fields, zone)
        more, more_errors = parse_json_object("more", values.get("more") or "{}", MAX_JSON_DEPTH)
        errors += more_errors
        fields = {**fields, **more, "producer": more.get("producer", current_actor().name)}
        try:
            trigger = self._model.model_validate(self._apply_defaults(fields))
        except ValidationError as error:
            errors += validate_args(task, fields["args"], parents=None) if not errors else []
            known = {found.field for found in errors}
            errors += [found for found in field_errors(error) if found.field not in known]
        if errors:
            raise InvalidRequest(errors)
        return trigger

    @staticmethod
    def input_of(values: Mapping[str, str]) -> Callable[[str], str]:
        """Return what gives the input of a field of the request, in the form with these values."""
        return str if "args" in values else input_of

    def _args_form(self, name: str, zone: str) -> ArgsForm:
        task = self._pipelines.get(name)
        return ArgsForm(None if task is None else task.args_schema(), zone)

    def _defaults(self, task: Task | None) -> dict[str, str]:
        options = None if task is None else task.options
        return {
            "priority": _DEFAULT_PRIORITY,
            "max_attempts": _DEFAULT_ATTEMPTS,
            "time_limit_sec": _number(options.time_limit if options else None),
            "start_within_sec": _number(options.start_within if options else None),
            "lease_ttl_sec": str(self._options.default_lease_ttl_sec),
        }

    def _parse_options(
        self, task: Task | None, values: Mapping[str, str], fields: dict[str, Any], zone: str
    ) -> list[FieldError]:
        """Add the fields of how the job is queued. What is as the task says is left to the task."""
        errors: list[FieldError] = []
        own = self._defaults(task) | {"lock_key": (task and task.options.lock_key) or ""}
        for name in (*_TEXTS, *_NUMBERS):
            text = values.get(name, "").strip()
            is_own = name in ("lock_key", "time_limit_sec", "start_within_sec") and text == own[name]
            if text and not is_own:
                fields[name] = _whole_number(text) if name in _NUMBERS else text
        try:
            moment = parse_time("available_at", values.get("available_at", ""), zone)
        except InvalidForm as error:
            errors.append(FieldError("available_at", str(error).partition(": ")[2]))
        else:
            fields |= {} if moment is None else {"available_at": moment.astimezone(UTC).isoformat()}
        if tags := [tag.strip() for tag in values.get("tags", "").split(",") if tag.strip()]:
            fields["tags"] = tags
        parents = values.get("after", "").replace(",", " ").split()
        if parents:
            fields["after"] = [{"job_id": parent, "on": values.get("after_on") or "succeeded"} for parent in parents]
            fields["need"] = values.get("need") or "all"
        if values.get("partition_key", "").strip():
            errors += self._add_slice(task, values["partition_key"].strip(), fields)
        return errors

    def _add_slice(self, task: Task | None, key: str, fields: dict[str, Any]) -> list[FieldError]:
        """The slice of a task that declares slices has its interval, and one job at a time; else it is a text."""
        fields["partition_key"] = key
        if task is None or task.options.partitions is None:
            return []
        try:
            part = task.options.partitions.in_zone(self._options.timezone).slice(key)
        except ValueError as error:
            return [FieldError("partition_key", str(error))]
        times = times_of_slice(part)
        fields |= {"live_key": slice_live_key(task.name, part.key), "logical_at": times.logical_at.isoformat()}
        if times.interval is not None:
            fields["interval_start"] = times.interval.start.isoformat()
            fields["interval_end"] = times.interval.end.isoformat()
        return []


def _values_of(job: Job, task: Task | None) -> dict[str, str]:
    values = {"queue": job.queue, "lock_key": job.lock_key, "priority": str(job.priority)}
    values |= {"max_attempts": str(job.max_attempts), "lease_ttl_sec": str(job.lease_ttl_sec)}
    values |= {"partition_key": job.partition_key, "fair_key": job.fair_key or ""}
    values |= {"tags": ", ".join(job.tags or ())}
    if job.time_limit_sec is not None:
        values["time_limit_sec"] = str(job.time_limit_sec)
    if task is not None and task.options.lock_key is not None and _makes_key(task, job):
        values["lock_key"] = task.options.lock_key
    return values


def _makes_key(task: Task, job: Job) -> bool:
    try:
        return task.fill_lock_key(job.args) == job.lock_key
    except ValueError:
        return False


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _whole_number(text: str) -> Any:
    """The number; another text is left to the model, which says what is wrong with it."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else text  # noqa: PLR2004 - digits


def _pretty(args: Mapping[str, Any]) -> str:
    return json.dumps(args, ensure_ascii=False, indent=2)
