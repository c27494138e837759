"""The form of a schedule: all its fields as texts, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from pydantic import Field

from dataloader.app.http.json_io import MAX_JSON_DEPTH, FieldError
from dataloader.app.http.problems import InvalidRequest, RequestRejected
from dataloader.app.log.masking import mask_secret_fields
from dataloader.app.ui.base import FormModel, FormText, InvalidForm, parse_json_object, parse_time
from dataloader.pipelines.schedule_definition import ScheduleDefinition

_TEXTS = (
    "task", "kind", "expression", "zone", "gap", "fold", "need", "queue", "lock_key", "fair_key", "catch_up", "overlap",
)  # fmt: skip
_NUMBERS = (
    "priority", "max_attempts", "lease_ttl_sec", "time_limit_sec", "jitter_sec", "catch_up_max", "catch_up_window_sec",
    "grace_sec",
)  # fmt: skip
_OBJECTS, _LISTS, _TIMES = ("args", "limits", "retry"), ("after", "excluded"), ("anchor", "starts_at", "ends_at")
ADVANCED_FIELDS = (
    "queue", "lock_key", "fair_key", "priority", "max_attempts", "time_limit_sec", "lease_ttl_sec", "limits", "retry",
    "starts_at", "ends_at", "excluded", "jitter_sec", "gap", "fold", "anchor", "need", "catch_up_max",
    "catch_up_window_sec", "grace_sec",
)  # fmt: skip


class ScheduleFields(FormModel):
    """A schedule, as a form has it; also the address of a preview that is not saved."""

    name: FormText = Field("", description="Its name.")
    task: FormText = Field("", description="The task of its jobs.")
    kind: FormText = Field("cron", description="cron, interval or dataset.")
    expression: FormText = Field("", description="Five cron fields or @daily; of an interval a number of seconds.")
    zone: FormText = Field("", description="The IANA time zone; empty: the service's.")
    after: str = Field("", description="The datasets whose updates make jobs, one a line.")
    need: FormText = Field("", description="all of these datasets, or any.")
    args: str = Field("", description="The args as a JSON object; texts may have placeholders.")
    catch_up: FormText = Field("", description="Of missed times: last, all or skip.")
    catch_up_max: FormText = Field("", description="At most so many missed times.")
    catch_up_window_sec: FormText = Field("", description="No missed time that is older.")
    grace_sec: FormText = Field("", description="A time that is fired later counts as missed.")
    overlap: FormText = Field("", description="While an earlier job has not ended: queue, skip, cancel or allow.")
    gap: FormText = Field("", description="A time that a clock change leaves out: after or skip.")
    fold: FormText = Field("", description="A time that a clock change repeats: first, second or both.")
    jitter_sec: FormText = Field("", description="Jobs start up to so many seconds later.")
    anchor: FormText = Field("", description="An interval counts from here.")
    starts_at: FormText = Field("", description="No job for earlier times.")
    ends_at: FormText = Field("", description="No job for later times.")
    excluded: str = Field("", description="Days without a job, one a line.")
    queue: FormText = Field("", description="The queue; empty: the task's.")
    lock_key: FormText = Field("", description="The lock key; may have placeholders.")
    fair_key: FormText = Field("", description="The tenant in a fair queue.")
    priority: FormText = Field("", description="Smaller runs first.")
    max_attempts: FormText = Field("", description="The attempts of each job.")
    time_limit_sec: FormText = Field("", description="The time limit of an attempt.")
    lease_ttl_sec: FormText = Field("", description="How long a lease lasts without a heartbeat.")
    limits: str = Field("", description="Names and weights of limits as a JSON object.")
    retry: str = Field("", description="The delay between attempts as a JSON object.")
    is_paused: FormText = Field("", description="yes: it does not fire before a person resumes it.")
    preview_from: FormText = Field("", description="Preview times after this one.")

    def to_values(self, zone: str) -> dict[str, Any]:
        """The fields that hold a value, as the API takes them. Times without an offset are in the zone. Raises
        InvalidForm."""
        errors: list[FieldError] = []
        values: dict[str, Any] = {}
        for names, parse in self._parsers(zone):
            for name in names:
                text = getattr(self, name).strip()
                try:
                    values |= {name: parse(name, text)} if text else {}
                except InvalidForm as error:
                    errors += error.errors
        if errors:
            raise InvalidForm.from_errors(errors)
        if values.get("kind") == "dataset":
            values.pop("expression", None)
        elif "after" in values:
            values.pop("after")
        return values

    @staticmethod
    def _parsers(zone: str) -> Iterator[tuple[tuple[str, ...], Callable[[str, str], Any]]]:
        def time(name: str, text: str) -> str:
            moment = parse_time(name, text, zone)
            return "" if moment is None else moment.isoformat()

        yield _TEXTS, lambda _, text: text
        yield _NUMBERS, _parse_number
        yield _OBJECTS, _parse_object
        yield _LISTS, lambda _, text: [line.strip() for line in text.replace(",", "\n").splitlines() if line.strip()]
        yield _TIMES, time


def texts_of(definition: ScheduleDefinition, zone: str) -> dict[str, str]:
    """What the form shows of a schedule, with its times in this zone and without the secrets in its args."""
    return {
        name: _text(mask_secret_fields(getattr(definition, name)), zone)
        for name in ScheduleFields.model_fields
        if name in _FIELDS
    }


_FIELDS = frozenset(ScheduleDefinition.model_fields)


def changed_values(fields: ScheduleFields, current: ScheduleDefinition, zone: str) -> dict[str, Any]:
    """What the form changes of a schedule; a field that was emptied has its default. Raises InvalidForm."""
    values = fields.to_values(zone)
    shown = texts_of(current, zone)
    changes = {}
    for name, text in shown.items():
        sent = getattr(fields, name)
        if name in fields.model_fields_set and _normalized(sent) != _normalized(text):
            changes[name] = values.get(name, _default(name))
    return changes


def _default(name: str) -> Any:
    return ScheduleDefinition.model_fields[name].get_default(call_default_factory=True)


@contextmanager
def shown_errors() -> Iterator[None]:
    """Turn what refuses a request into an InvalidForm, with the errors at their fields."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidForm.from_errors(error.errors) from None
    except RequestRejected as error:
        raise InvalidForm(str(error)) from None


def _text(value: Any, zone: str) -> str:
    if value is None or value == {}:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M")
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, indent=2)
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _normalized(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


def _parse_number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 12:  # noqa: PLR2004 - digits
        raise InvalidForm.at_field(name, f"{text!r} is not a whole number")
    return int(text)


def _parse_object(name: str, text: str) -> dict[str, Any]:
    value, errors = parse_json_object(name, text, MAX_JSON_DEPTH)
    if errors:
        raise InvalidForm.from_errors(errors)
    return value
