"""Tasks: how their last runs went, and a form to start one, made from what its args must be."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from flask import Response, request
from pydantic import ConfigDict, Field, ValidationError

from app.queue.jobqueue import JobQueue
from app.queue.keys import Scope
from app.queue.rollups import Rollups
from app.web.auth import TOKEN_FIELD, current_actor
from app.web.models import faults_of, trigger_request
from app.web.operations import HTML, Subject
from app.web.pages.frame import FormModel, Frame, Unreadable, go
from app.web.problems import Code
from app.web.strictjson import FieldFault, NotJson, read
from app.web.tasks import TaskLine, args_faults, defaults_of
from pipelines.contract import Pipelines

SHOWN = {303: "To the job that was made; without a session to /login."}
_ARG = "arg."  # what the fields of the form begin with that are args


class StartForm(FormModel):
    """The fields of a task's form: `arg.` and the name of an arg, or `args` as JSON; and where it shall run."""

    model_config = ConfigDict(extra="allow", frozen=True)

    queue: str = Field("", description="Another queue than the task's own.")
    lock_key: str = Field("", description="Another lock_key than the task's own.")
    priority: str = Field("", description="The priority; smaller runs first.")
    args: str = Field("", description="All args as a JSON object, of a task that does not say what they are.")


@dataclass(frozen=True)
class Input:
    """A field of the form."""

    name: str
    label: str
    kind: str  # text, number, checkbox, choice, json
    required: bool
    value: str
    choices: tuple[str, ...] = ()
    help: str = ""


def tasks(queue: JobQueue, pipelines: Pipelines, frame: Frame) -> Subject:
    subject = Subject("task_pages", "", frame.options.max_json_depth)
    rollups = Rollups(queue.source)
    request_model, filled = trigger_request(frame.options, pipelines), defaults_of(pipelines)

    @subject.get("/tasks", answer=str, media_type=HTML, scope=Scope.READ)
    def tasks_page() -> Response:
        """See every task, and how its last runs went."""
        try:
            happened, runs = rollups.by_task("24h"), rollups.last_runs()
        except Unreadable as error:
            return frame.away("The runs", error)
        known = {name: TaskLine.of(task) for name in pipelines.names if (task := pipelines.get(name)) is not None}
        names = sorted({*known, *happened, *runs})
        return frame.show("tasks.html", names=names, known=known, happened=happened, runs=runs)

    @subject.get(
        "/tasks/<path:name>", answer=str, media_type=HTML, problems=(Code.NOT_FOUND,), pages=SHOWN, scope=Scope.READ
    )
    def task_page(name: str) -> Response:
        """See a task, and start it."""
        return _page(name, {}, [])

    @subject.post(
        "/tasks/<path:name>",
        form=StartForm,
        answer=str,
        media_type=HTML,
        problems=(Code.NOT_FOUND, Code.OUTSIDE_KEY_LIMITS),
        pages=SHOWN,
        scope=Scope.TRIGGER,
    )
    def start_here(asked: StartForm, name: str) -> Response:
        """Start a task with the args of its form."""
        told = {field: value for field, value in request.form.items() if field != TOKEN_FIELD}
        args, faults = _args_of(told, _inputs(_schema(name), {}), frame.options.max_json_depth)
        said: dict[str, Any] = {"task": name, "args": args, "producer": current_actor().name}
        said |= {field: told[field] for field in ("queue", "lock_key") if told.get(field)}
        if told.get("priority"):
            said["priority"] = int(told["priority"]) if told["priority"].isdecimal() else told["priority"]
        try:
            wanted = request_model.model_validate(filled(said))
        except ValidationError as error:
            return _page(name, told, [*faults, *faults_of(error)])
        faults += args_faults(pipelines.get(name), wanted.args)
        if faults:
            return _page(name, told, faults)
        current_actor().must_trigger(wanted.task, wanted.queue)
        return go(f"/jobs/{queue.enqueue(wanted.new_job()).job_id}")

    def _page(name: str, told: Mapping[str, str], faults: Iterable[FieldFault]) -> Response:
        task = pipelines.get(name)
        try:
            happened, runs = rollups.by_task("7d", task=name), rollups.last_runs(task=name)
        except Unreadable as error:
            return frame.away("The runs", error)
        if task is None and name not in runs and name not in happened:
            why = f"No worker has ever run a task {name!r}, and this process does not know it."
            return frame.show("refused.html", status=HTTPStatus.NOT_FOUND, why=why, back="/tasks")
        return frame.show(
            "task.html",
            name=name,
            address=quote(name, safe=""),  # as one part of the path, whatever the name is
            line=None if task is None else TaskLine.of(task),
            happened=happened.get(name),
            runs=runs.get(name, []),
            inputs=_inputs(_schema(name), told),
            told=told,
            faults=list(faults),
            may=Scope.TRIGGER in current_actor().scopes,
        )

    def _schema(name: str) -> dict[str, Any] | None:
        task = pipelines.get(name)
        return None if task is None else task.args_schema()

    return subject


def _inputs(schema: Mapping[str, Any] | None, told: Mapping[str, str]) -> list[Input] | None:
    """The fields that a schema describes; None: it describes none, and args are written as JSON."""
    properties = (schema or {}).get("properties")
    if not isinstance(properties, dict) or not properties:
        return None
    required = (schema or {}).get("required", ())
    return [_input(name, about, name in required, schema or {}, told) for name, about in properties.items()]


def _input(
    name: str, about: Mapping[str, Any], required: bool, schema: Mapping[str, Any], told: Mapping[str, str]
) -> Input:
    about = _followed(about, schema)
    kinds = [_followed(choice, schema) for choice in about.get("anyOf", [about])]
    kind = next((it for it in kinds if it.get("type") != "null"), {})
    default = about.get("default")
    before = "" if default is None else default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
    choices = tuple(str(choice) for choice in kind.get("enum", ()))
    return Input(
        name=_ARG + name,
        label=about.get("title", name) if not name.isidentifier() else name,
        kind="choice" if choices else _KINDS.get(kind.get("type", ""), "json"),
        required=required,
        value=told.get(_ARG + name, before),
        choices=choices,
        help=about.get("description", ""),
    )


_KINDS = {"string": "text", "integer": "number", "number": "number", "boolean": "checkbox"}


def _followed(about: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(about.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name) if name else None
    return about if found is None else {**found, **{key: value for key, value in about.items() if key != "$ref"}}


def _args_of(
    told: Mapping[str, str], inputs: list[Input] | None, depth: int
) -> tuple[dict[str, Any], list[FieldFault]]:
    """The args that the fields mean, and what cannot be meant."""
    if inputs is None:
        return _whole(told.get("args") or "{}", depth)
    args: dict[str, Any] = {}
    faults: list[FieldFault] = []
    for field in inputs:
        text, name = told.get(field.name, ""), field.name.removeprefix(_ARG)
        if field.kind == "checkbox":
            args[name] = text == "true"
        elif text and field.kind in ("json", "number"):
            args[name], wrong = _json(f"args.{name}", text, depth)
            faults += wrong
        elif text or (field.required and field.kind != "json"):
            args[name] = text
    return args, faults


def _whole(text: str, depth: int) -> tuple[dict[str, Any], list[FieldFault]]:
    value, faults = _json("args", text, depth)
    if not faults and not isinstance(value, dict):
        faults = [FieldFault("args", "is no JSON object; write one, as in {}")]
    return (value if isinstance(value, dict) else {}), faults


def _json(field: str, text: str, depth: int) -> tuple[Any, list[FieldFault]]:
    try:
        reading = read(text.encode("utf-8", "replace"), max_depth=depth)
    except NotJson as error:
        return None, [FieldFault(field, str(error).replace("the body", "it"))]
    return reading.value, [FieldFault(field, fault.message) for fault in reading.faults]
