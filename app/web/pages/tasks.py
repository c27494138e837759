"""The pages of tasks: recent runs, and a form that starts one, made from the schema of its args."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from flask import Response, request
from pydantic import ConfigDict, Field, ValidationError

from app.admin.api_keys import Scope
from app.admin.data_quality import CheckHistory, DataQuality
from app.admin.schedules import Schedules
from app.admin.statistics import Statistics
from app.queue.jobs import JobQueue
from app.web.api.task_stats import TaskInfo
from app.web.auth.guard import CSRF_FIELD, current_actor
from app.web.json_io import MAX_JSON_DEPTH, FieldError
from app.web.options import WebOptions
from app.web.pages.base import FormModel, PageRenderer, parse_json, parse_json_object, redirect_to
from app.web.pages.charts import LineChart
from app.web.pages.data_quality import check_chart
from app.web.problems import ProblemCode
from app.web.routing import HTML, ApiBlueprint
from app.web.schemas import apply_task_defaults, field_errors, trigger_request_model, validate_args
from pipelines.contract import Pipelines

START_RESPONSES = {303: "Redirect to the created job; without a session to /login."}
_CHECK_RESULTS = 60  # of each data check
_MAX_CHECK_CHARTS = 6
_MAX_SCHEDULES_SHOWN = 20
_ARG_PREFIX = "arg."  # of the names of form fields that hold args
_INPUT_KINDS = {"string": "text", "integer": "number", "number": "number", "boolean": "checkbox"}


class StartForm(FormModel):
    """The form that starts a task: a field `arg.<name>` for each arg, or `args` as JSON."""

    model_config = ConfigDict(extra="allow", frozen=True)

    queue: str = Field("", description="Another queue than the task's own.")
    lock_key: str = Field("", description="Another lock_key than the task's own.")
    priority: str = Field("", description="The priority; smaller runs first.")
    args: str = Field("", description="All args as a JSON object, for a task without a schema of its args.")


@dataclass(frozen=True)
class FormInput:
    """A field of the form."""

    name: str
    label: str
    kind: str  # text, number, checkbox, choice, json
    required: bool
    value: str
    choices: tuple[str, ...] = ()
    help: str = ""


def create_tasks_page(queue: JobQueue, pipelines: Pipelines, options: WebOptions) -> ApiBlueprint:
    pages = PageRenderer("tasks_page", options)
    statistics, quality = Statistics(queue.executor), DataQuality(queue.executor)
    schedules = Schedules(queue.executor)
    request_model, apply_defaults = trigger_request_model(options, pipelines), apply_task_defaults(pipelines)

    @pages.page("/tasks")
    def show_tasks() -> Response:
        """Show all tasks with their recent runs."""
        by_task, runs = statistics.by_task("24h"), statistics.recent_runs()
        known = {task.name: TaskInfo.from_task(task) for task in pipelines}
        names = sorted({*known, *by_task, *runs})
        return pages.render("tasks.html", names=names, known=known, statistics=by_task, runs=runs)

    @pages.page("/tasks/<path:name>", problems=(ProblemCode.NOT_FOUND,), html_responses=START_RESPONSES)
    def show_task(name: str) -> Response:
        """Show a task with its recent runs and the form that starts it."""
        return _render_task(name, {}, [])

    @pages.blueprint.post(
        "/tasks/<path:name>",
        form=StartForm,
        response=str,
        media_type=HTML,
        problems=(ProblemCode.NOT_FOUND, ProblemCode.OUTSIDE_KEY_LIMITS),
        html_responses=START_RESPONSES,
        scope=Scope.TRIGGER,
    )
    def submit_task_start(form: StartForm, name: str) -> Response:
        """Start a task with the args of the form."""
        values = {field: value for field, value in request.form.items() if field != CSRF_FIELD}
        args, errors = _parse_args(values, _form_inputs(_args_schema(name), {}), MAX_JSON_DEPTH)
        fields: dict[str, Any] = {"task": name, "args": args, "producer": current_actor().name}
        fields |= {field: values[field] for field in ("queue", "lock_key") if values.get(field)}
        if form.priority:
            fields["priority"] = int(form.priority) if form.priority.isdecimal() else form.priority
        try:
            trigger = request_model.model_validate(apply_defaults(fields))
        except ValidationError as error:
            return _render_task(name, values, [*errors, *field_errors(error)])
        errors += validate_args(pipelines.get(name), trigger.args)
        if errors:
            return _render_task(name, values, errors)
        current_actor().require_trigger(trigger.task, trigger.queue)
        return redirect_to(f"/jobs/{queue.enqueue(trigger.to_new_job()).job_id}")

    def _render_task(name: str, values: Mapping[str, str], errors: Iterable[FieldError]) -> Response:
        task = pipelines.get(name)
        by_task, runs = statistics.by_task("7d", task=name), statistics.recent_runs(task=name)
        if task is None and name not in runs and name not in by_task:
            reason = f"No worker has run a task {name!r}, and this process does not know it."
            return pages.render("action_failed.html", status=HTTPStatus.NOT_FOUND, reason=reason, back_url="/tasks")
        return pages.render(
            "task.html",
            name=name,
            schedules=schedules.list_by_name(task=name, limit=_MAX_SCHEDULES_SHOWN),
            url_name=quote(name, safe=""),  # one segment of the path, also for a name with slashes
            task=None if task is None else TaskInfo.from_task(task),
            statistics=by_task.get(name),
            runs=runs.get(name, []),
            checks=_with_charts(quality.checks_of_task(name, limit=_CHECK_RESULTS).checks),
            inputs=_form_inputs(_args_schema(name), values),
            values=values,
            errors=list(errors),
            can_trigger=Scope.TRIGGER in current_actor().scopes,
        )

    def _args_schema(name: str) -> dict[str, Any] | None:
        task = pipelines.get(name)
        return None if task is None else task.args_schema()

    return pages.blueprint


def _with_charts(checks: Iterable[CheckHistory]) -> list[tuple[CheckHistory, LineChart | None]]:
    """The checks, what did not pass first; the first ones with a chart."""
    ordered = sorted(checks, key=lambda check: check.results[0].outcome == "passed")
    return [(check, check_chart(check) if n < _MAX_CHECK_CHARTS else None) for n, check in enumerate(ordered)]


def _form_inputs(schema: Mapping[str, Any] | None, values: Mapping[str, str]) -> list[FormInput] | None:
    """The fields that a schema describes, or None when args are written as JSON."""
    properties = (schema or {}).get("properties")
    if schema is None or not isinstance(properties, dict) or not properties:
        return None
    required = schema.get("required", ())
    return [_form_input(name, field, name in required, schema, values) for name, field in properties.items()]


def _form_input(
    name: str, field_schema: Mapping[str, Any], required: bool, schema: Mapping[str, Any], values: Mapping[str, str]
) -> FormInput:
    field_schema = _resolve_ref(field_schema, schema)
    alternatives = [_resolve_ref(choice, schema) for choice in field_schema.get("anyOf", [field_schema])]
    value_schema = next((choice for choice in alternatives if choice.get("type") != "null"), {})
    default = field_schema.get("default", "")
    if not isinstance(default, str):
        default = "" if default is None else json.dumps(default, ensure_ascii=False)
    choices = tuple(str(choice) for choice in value_schema.get("enum", ()))
    return FormInput(
        name=_ARG_PREFIX + name,
        label=field_schema.get("title", name) if not name.isidentifier() else name,
        kind="choice" if choices else _INPUT_KINDS.get(value_schema.get("type", ""), "json"),
        required=required,
        value=values.get(_ARG_PREFIX + name, default),
        choices=choices,
        help=field_schema.get("description", ""),
    )


def _resolve_ref(field_schema: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    name = str(field_schema.get("$ref", "")).removeprefix("#/$defs/")
    definition = schema.get("$defs", {}).get(name) if name else None
    if definition is None:
        return field_schema
    return {**definition, **{key: value for key, value in field_schema.items() if key != "$ref"}}


def _parse_args(
    values: Mapping[str, str], inputs: list[FormInput] | None, max_depth: int
) -> tuple[dict[str, Any], list[FieldError]]:
    """Parse the fields of the form into args; return them with the errors."""
    if inputs is None:
        return parse_json_object("args", values.get("args") or "{}", max_depth)
    args: dict[str, Any] = {}
    errors: list[FieldError] = []
    for field in inputs:
        text, name = values.get(field.name, ""), field.name.removeprefix(_ARG_PREFIX)
        if field.kind == "checkbox":
            args[name] = text == "true"
        elif text and field.kind in ("json", "number"):
            args[name], json_errors = parse_json(f"args.{name}", text, max_depth)
            errors += json_errors
        elif text or (field.required and field.kind != "json"):
            args[name] = text
    return args, errors
