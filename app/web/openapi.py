"""The OpenAPI 3.1 document, made from the operations and the types of their requests and responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core.core_schema import StringSchema

from app.web.problems import MEDIA_TYPE, Problem, ProblemCode
from app.web.routing import FORM, HTML, JSON, OPEN, ApiBlueprint, Operation
from app.web.standby_reads import DATA_AGE_HEADER

API_VERSION = "1.0.0"
_REF_TEMPLATE = "#/components/schemas/{model}"
_PATH_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
_NAME_IN_PATH = re.compile(r"<path:(\w+)>")  # any text, also with slashes
_NO_NUL_PATTERN = r"^[^\u0000]*$"  # PostgreSQL cannot store NUL
_NAME_SCHEMA = {"type": "string", "minLength": 1, "pattern": _NO_NUL_PATTERN}
# These responses are sent before routing, so any operation may have them.
_REJECTED_BEFORE_ROUTING = {
    408: ("RequestTimeout", "The request was not complete in time; the connection is closed."),
    414: ("UriTooLong", "The URI has more than 8,190 bytes; the connection is closed."),
    431: ("HeadersTooLarge", "There are more than 64 kB of headers, more than 8 kB of one, or more than 100."),
}
_PATH_DESCRIPTIONS = {"job_id": "The job's id, as the trigger returned it."}

_TAGS = {
    "jobs": "Triggering, watching, canceling and retrying jobs.",
    "job_list": "Lists, details, events and explanations of jobs.",
    "job_edits": "Editing, cloning and deleting jobs.",
    "bulk": "Bulk operations on all jobs that match a filter.",
    "queues": "Queues, worker processes and charts.",
    "tasks": "Tasks and their statistics.",
    "events": "Events of jobs as a stream.",
    "job_logs": "Logs of jobs.",
    "webhooks": "Webhooks and their deliveries.",
    "alerts": "Alerts and alert rules.",
    "status": "Liveness, readiness, version and probes of a process.",
    "metrics": "Metrics for Prometheus.",
    "feedback": "Votes, kept for callers of the previous service.",
    "audit": "The audit.",
    "session": "Browser sessions.",
    "pages": "The dashboard.",
    "documentation": "This document.",
}

_SECURITY = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, created with `dataloader keys create`. One of the listed scopes is required; "
        "`operate` includes `read` and `trigger`, `admin` includes all. Without any key, the service accepts only "
        "requests from its own machine.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "dl_session",
        "description": "The session cookie that /login sets in exchange for a key. Requests that change something "
        "also need the header `X-CSRF-Token`.",
    },
}


def build_document(blueprints: Iterable[ApiBlueprint]) -> dict[str, Any]:
    """Describe every operation of the blueprints."""
    operations = [operation for blueprint in blueprints for operation in blueprint.operations]
    schemas = _component_schemas(operations)
    paths: dict[str, Any] = {}
    for operation in operations:
        path = route_template(operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe_operation(operation)
    used = {operation.tag for operation in operations}
    rejections = {
        name: {"description": about, "content": _problem_content([ProblemCode.HTTP_ERROR])}
        for name, about in _REJECTED_BEFORE_ROUTING.values()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dataloader",
            "version": API_VERSION,
            "description": "Long ETL jobs in one PostgreSQL table, run by threads. Errors are problem+json (RFC 9457) "
            "with a stable `code`. Every path also answers `OPTIONS` with its methods in `Allow`, without a key, and "
            "`HEAD` where it has `GET`. No text in a request may contain the character NUL, at any depth.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items() if name in used],
        "paths": paths,
        "components": {"schemas": schemas, "responses": rejections, "securitySchemes": _SECURITY},
    }


class _RequestSchema(GenerateJsonSchema):
    """Add to requests what pydantic does not know: no text may contain NUL."""

    def str_schema(self, schema: StringSchema) -> JsonSchemaValue:
        found = super().str_schema(schema)
        return {**found, "pattern": _NO_NUL_PATTERN} if self.mode == "validation" and "pattern" not in found else found


@cache  # called for each request
def route_template(rule: str) -> str:
    """Flask's `<job:job_id>` as the document's `{job_id}`."""
    return _PATH_PARAMETER.sub(r"{\1}", rule)


def _component_schemas(operations: Sequence[Operation]) -> dict[str, Any]:
    adapters: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
    kinds = {op.response: "serialization" for op in operations if op.media_type == JSON and op.response is not dict}
    kinds |= {body: "validation" for op in operations if (body := op.form or op.body) is not None}
    kinds[Problem] = "serialization"
    for kind, mode in kinds.items():
        adapters.append((kind.__name__, mode, TypeAdapter(kind)))  # type: ignore[arg-type]
    _, found = TypeAdapter.json_schemas(adapters, ref_template=_REF_TEMPLATE, schema_generator=_RequestSchema)
    schemas: dict[str, Any] = found["$defs"]
    return dict(sorted(schemas.items()))


def _describe_operation(operation: Operation) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        entry["description"] = operation.description
    parameters = _path_parameters(operation) + _query_parameters(operation.query) + _header_parameters(operation)
    if parameters:
        entry["parameters"] = parameters
    body = operation.form or operation.body
    if body is not None:
        content = {JSON if operation.form is None else FORM: {"schema": _schema_ref(body)}}
        entry["requestBody"] = {"required": True, "content": content}
    # One of the scopes suffices; an open operation needs none.
    entry["security"] = [{scheme: [scope.value]} for scope in operation.required_scopes for scheme in _SECURITY]
    # Such a path matches UUIDs only, or no line break.
    has_other_paths = "<uuid:" in operation.path or "<path:" in operation.path
    path_problems = (ProblemCode.NOT_FOUND,) if has_other_paths else ()
    codes = (*_request_problems(operation), *operation.problems, *path_problems, ProblemCode.INTERNAL)
    entry["responses"] = {"200": _success_response(operation), **_problem_responses(codes)}
    if operation.media_type == HTML:  # problems of pages are shown as pages
        for status, response in entry["responses"].items():
            if status != "200":
                response["content"][HTML] = {"schema": {"type": "string"}}
    if operation.is_conditional:
        entry["responses"]["304"] = {"description": "Not modified since the response with this ETag."}
    login_redirect = {303: "To /login, and back."} if operation.media_type == HTML and operation.required_scopes else {}
    for status, when in (operation.html_responses or login_redirect).items():
        page = entry["responses"].setdefault(str(status), {"description": when, "content": {}})
        page["content"][operation.media_type] = {"schema": {"type": "string"}}
    for rejected, (name, _) in _REJECTED_BEFORE_ROUTING.items():
        entry["responses"].setdefault(str(rejected), {"$ref": f"#/components/responses/{name}"})
    return entry


def _request_problems(operation: Operation) -> Iterable[ProblemCode]:
    """The problems of validation, authentication and authorization."""
    if operation.form or operation.body:
        yield from (ProblemCode.INVALID_JSON, ProblemCode.BODY_TOO_LARGE, ProblemCode.UNSUPPORTED_MEDIA_TYPE)
    if operation.form or operation.body or operation.query:
        yield ProblemCode.INVALID_REQUEST
    needs_key = operation.required_scopes != OPEN
    if needs_key:
        yield from (ProblemCode.KEY_REQUIRED, ProblemCode.KEY_INVALID, ProblemCode.SCOPE_MISSING)
    if operation.method != "GET":
        yield ProblemCode.CROSS_SITE
    if needs_key:
        yield from (ProblemCode.HOST_REFUSED, ProblemCode.TOO_MANY_LOGIN_ATTEMPTS, ProblemCode.DATABASE_UNAVAILABLE)


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "format": "uuid"},
            "description": _PATH_DESCRIPTIONS.get(name, "The id, as returned by the service."),
        }
        | (
            {"schema": _NAME_SCHEMA, "description": "The name."}
            if name in _NAME_IN_PATH.findall(operation.path)
            else {}
        )
        for name in _PATH_PARAMETER.findall(operation.path)
    ]


def _header_parameters(operation: Operation) -> list[dict[str, Any]]:
    if not operation.if_match:
        return []
    about = "The `ETag` of the job: nothing is changed if it has another one now."
    return [{"name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"}, "description": about}]


def _query_parameters(query: type[BaseModel] | None) -> list[dict[str, Any]]:
    """A query parameter is left out instead of null. References are replaced by the definitions they refer to."""
    root = {} if query is None else query.model_json_schema(schema_generator=_RequestSchema)
    parameters = []
    for name, field in root.get("properties", {}).items():
        choices = [
            root["$defs"][choice["$ref"].rsplit("/", 1)[-1]] if "$ref" in choice else choice
            for choice in field.pop("anyOf", ())
            if choice != {"type": "null"}
        ]
        about = {"name": name, "in": "query", "required": False, "description": field.pop("description", "")}
        field.pop("title", None)
        parameters.append(about | {"schema": choices[0] if choices else field})
    return parameters


def _success_response(operation: Operation) -> dict[str, Any]:
    schema: dict[str, Any]
    if operation.media_type != JSON:
        schema = {"type": "string"}
    elif operation.response is dict:
        schema = {"type": "object"}
    else:
        schema = _schema_ref(operation.response)
    headers = {"X-Request-ID": {"description": "The request's id, sent or generated.", "schema": {"type": "string"}}}
    if operation.standby:
        about = "How many seconds old the data is at most, if a standby (`DL_READ_DSN`) has answered."
        headers[DATA_AGE_HEADER] = {"description": about, "schema": {"type": "number"}}
    return {
        "description": operation.summary + ".",
        "headers": headers,
        "content": {operation.media_type: {"schema": schema}},
    }


def _problem_responses(codes: Sequence[ProblemCode]) -> dict[str, Any]:
    """One response for each status; its schema lists the possible codes."""
    responses: dict[str, Any] = {}
    for status in sorted({code.status for code in codes}):
        matching = list(dict.fromkeys(code for code in codes if code.status == status))
        about = " · ".join(f"`{code.text}`: {code.title}" for code in matching)
        responses[str(status)] = {"description": about, "content": _problem_content(matching)}
    return responses


def _problem_content(codes: Iterable[ProblemCode]) -> dict[str, Any]:
    code = {"properties": {"code": {"enum": [code.text for code in codes]}}}
    return {MEDIA_TYPE: {"schema": {"allOf": [{"$ref": "#/components/schemas/Problem"}, code]}}}


def _schema_ref(model: Any) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
