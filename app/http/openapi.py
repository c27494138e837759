"""The OpenAPI 3.1 document, made from the operations and the types of their requests and responses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core.core_schema import StringSchema

from dataloader.app.http.openapi_examples import EXAMPLE_REQUEST_ID, make_example
from dataloader.app.http.problems import MEDIA_TYPE, Problem, ProblemCode
from dataloader.app.http.routing import FORM, HTML, JSON, OPEN, ApiBlueprint, Operation
from dataloader.app.http.standby_reads import DATA_AGE_HEADER

API_VERSION = "1.0.0"
_REF_TEMPLATE = "#/components/schemas/{model}"
_PATH_PARAMETER = re.compile(r"<(?:(\w+):)?(\w+)>")  # converter and name
_NO_NUL_PATTERN = r"^[^\u0000]*$"  # PostgreSQL cannot store NUL
_ID_SCHEMA = {"type": "string", "format": "uuid"}
_NAME_SCHEMA = {"type": "string", "minLength": 1, "pattern": _NO_NUL_PATTERN}
_PATH_SCHEMAS = {  # by converter; of others any text, also with slashes
    "uuid": _ID_SCHEMA, "job": _ID_SCHEMA, "": {**_NAME_SCHEMA, "pattern": r"^[^/\u0000]*$"},
}  # fmt: skip
# The shared response of each status of a problem.
_RESPONSE_NAMES = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    408: "RequestTimeout",
    409: "Conflict",
    412: "PreconditionFailed",
    413: "BodyTooLarge",
    414: "UriTooLong",
    415: "UnsupportedMediaType",
    429: "TooManyRequests",
    431: "HeadersTooLarge",
    500: "InternalError",
    503: "Unavailable",
}
# These responses are sent before routing, so any operation may have them.
_REJECTED_BEFORE_ROUTING = {
    408: "The request was not complete in time; the connection is closed.",
    414: "The URI has more than 8,190 bytes; the connection is closed.",
    431: "There are more than 64 kB of headers, more than 8 kB of one, or more than 100.",
}
_PATH_DESCRIPTIONS = {"job_id": "The job's id, as the trigger returned it.", "key_id": "The key's id, or its name."}

_TAGS = {
    "jobs": "Triggering, reading, canceling, retrying and editing jobs; their events and logs.",
    "graphs": "Jobs that depend on each other, triggered together.",
    "bulk": "Bulk operations on all jobs that match a filter.",
    "failures": "Failed jobs, grouped by their error.",
    "queues": "Queues, worker processes and charts.",
    "overview": "What needs attention.",
    "scaling": "How many threads the waiting jobs need, for autoscalers.",
    "limits": "How many jobs run at a time or start in a time, and breakers of tasks.",
    "schedules": "Schedules, their firings and the calendar.",
    "backfills": "Backfills and the slices of tasks.",
    "data_quality": "Checks of tasks, and datasets.",
    "tasks": "Tasks and their statistics.",
    "events": "Events of jobs as a stream.",
    "webhooks": "Webhooks and their deliveries.",
    "alerts": "Alerts and alert rules.",
    "audit": "Who did what, when, from where, and what it changed.",
    "service": "Liveness, readiness, version, metrics and this document.",
    "feedback": "Votes, kept for callers of the previous service.",
}
# The tags of blueprints whose name is none.
_TAGS_OF_BLUEPRINTS = {
    "audit_page": "audit",
    "batch": "jobs",
    "breakers": "limits",
    "documentation": "service",
    "job_edits": "jobs",
    "job_list": "jobs",
    "job_logs": "jobs",
    "job_progress": "jobs",
    "metrics": "service",
    "status": "service",
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


def api_operations(blueprints: Iterable[ApiBlueprint]) -> list[Operation]:
    """The operations for programs: those of the dashboard are none."""
    operations = [operation for blueprint in blueprints for operation in blueprint.operations]
    return [operation for operation in operations if operation.media_type != HTML and _is_for_programs(operation)]


def _is_for_programs(operation: Operation) -> bool:
    return operation.path.startswith("/api/") or _tag_of(operation) in _TAGS


def build_document(operations: Sequence[Operation]) -> dict[str, Any]:
    """Describe the operations."""
    schemas = _Schemas(operations)
    paths: dict[str, Any] = {}
    for operation in operations:
        path = route_template(operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe_operation(operation, schemas)
    used = {_tag_of(operation) for operation in operations}
    tags = {**_TAGS, **{name: f"{name.capitalize()}." for name in sorted(used - _TAGS.keys())}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dataloader",
            "version": API_VERSION,
            "description": "Long ETL jobs in one PostgreSQL table, run by threads. Errors are problem+json (RFC 9457) "
            "with a stable `code`; the response of each status lists the codes of the operation. Every path also "
            "answers `OPTIONS` with its methods in `Allow`, without a key, and `HEAD` where it has `GET`. No text in a "
            "request may contain the character NUL, at any depth.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "The service that this document comes from."}],
        "tags": [{"name": name, "description": about} for name, about in tags.items() if name in used],
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "responses": _shared_responses(paths),
            "securitySchemes": _SECURITY,
        },
    }


def _tag_of(operation: Operation) -> str:
    return _TAGS_OF_BLUEPRINTS.get(operation.tag, operation.tag)


class _SchemaGenerator(GenerateJsonSchema):
    """Add to requests what pydantic does not know: no text may contain NUL. Leave out titles that repeat a name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def str_schema(self, schema: StringSchema) -> JsonSchemaValue:
        found = super().str_schema(schema)
        return {**found, "pattern": _NO_NUL_PATTERN} if self.mode == "validation" and "pattern" not in found else found


@cache  # called for each request
def route_template(rule: str) -> str:
    """Flask's `<job:job_id>` as the document's `{job_id}`."""
    return _PATH_PARAMETER.sub(r"{\2}", rule)


@lru_cache(maxsize=2)  # it takes a second; the applications of a process have the same types
def _make_schemas(kinds: tuple[tuple[Any, JsonSchemaMode], ...]) -> tuple[dict[Any, str], dict[str, Any]]:
    """The name of each type, and the schemas by name."""
    adapters = [(str(kind), mode, TypeAdapter(kind)) for kind, mode in kinds]
    refs, found = TypeAdapter.json_schemas(adapters, ref_template=_REF_TEMPLATE, schema_generator=_SchemaGenerator)
    return {kind: refs[str(kind), mode]["$ref"].rpartition("/")[2] for kind, mode in kinds}, found["$defs"]


class _Schemas:
    """The schemas of all requests and responses, made at once: a type that several have is one component."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        kinds: dict[Any, JsonSchemaMode] = {Problem: "serialization"}
        for operation in operations:
            if operation.media_type == JSON and operation.response is not dict:
                kinds[operation.response] = "serialization"
            kinds |= {model: "validation" for model in (operation.form, operation.body, operation.query) if model}
        self._names, schemas = _make_schemas(tuple(kinds.items()))
        queries = {operation.query for operation in operations if operation.query}
        self._queries: dict[type[BaseModel], Any] = {query: schemas[self._names[query]] for query in queries}
        left_out = {self._names[query] for query in queries}
        self.components = {name: schema for name, schema in sorted(schemas.items()) if name not in left_out}

    def query_parameters(self, query: type[BaseModel] | None) -> list[dict[str, Any]]:
        """A query parameter is left out instead of null."""
        fields = {} if query is None else self._queries[query].get("properties", {})
        parameters = []
        for name, field in fields.items():
            schema = {key: value for key, value in field.items() if key not in ("anyOf", "description")}
            for choice in field.get("anyOf", ()):
                if choice != {"type": "null"}:
                    schema = choice
                    break
            about = {"name": name, "in": "query", "required": False, "description": field.get("description", "")}
            parameters.append(about | {"schema": schema})
        return parameters

    def content(self, media_type: str, kind: Any, *, is_request: bool = False) -> dict[str, Any]:
        """A body of this type, with an example if it is JSON."""
        if media_type == JSON and kind is dict:
            return {media_type: {"schema": {"type": "object"}}}
        if media_type not in (JSON, FORM):
            return {media_type: {"schema": {"type": "string"}}}
        name = self._names[kind]
        body: dict[str, Any] = {"schema": {"$ref": _REF_TEMPLATE.format(model=name)}}
        if media_type == JSON:
            body["example"] = make_example(name, self.components, is_request=is_request)
        return {media_type: body}


def _describe_operation(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [_tag_of(operation)],
        "summary": operation.summary,
    }
    if operation.description:
        entry["description"] = operation.description
    of_path, of_header = [*_path_parameters(operation)], _header_parameters(operation)
    parameters = of_path + schemas.query_parameters(operation.query) + of_header
    if parameters:
        entry["parameters"] = parameters
    body = operation.form or operation.body
    if body is not None:
        content = schemas.content(FORM if operation.form else JSON, body, is_request=True)
        entry["requestBody"] = {"required": True, "content": content}
    # One of the scopes suffices; an open operation needs none.
    entry["security"] = [{scheme: [scope.value]} for scope in operation.required_scopes for scheme in _SECURITY]
    entry["responses"] = {"200": _success_response(operation, schemas), **_problem_responses(operation)}
    if operation.is_conditional:
        entry["responses"]["304"] = {"description": "Not modified since the response with this ETag."}
    if operation.media_type == HTML:
        _add_pages(operation, entry["responses"])
    return entry


def _add_pages(operation: Operation, responses: dict[str, Any]) -> None:
    """Add the HTML responses of a page: its problems are pages too, and a browser without a key is sent to /login."""
    page = {HTML: {"schema": {"type": "string"}}}
    for status, response in responses.items():
        if status != "200" and int(status) not in _REJECTED_BEFORE_ROUTING:
            about = response["description"]
            responses[status] = {"description": about, "content": {**_problem_content(int(status)), **page}}
    login_redirect = {303: "To /login, and back."} if operation.required_scopes else {}
    for code, when in (operation.html_responses or login_redirect).items():
        responses.setdefault(str(code), {"description": when, "content": page})


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


def _path_parameters(operation: Operation) -> Iterator[dict[str, Any]]:
    for converter, name in _PATH_PARAMETER.findall(operation.path):
        schema = _PATH_SCHEMAS.get(converter, _NAME_SCHEMA)
        about = "The id, as returned by the service." if schema is _ID_SCHEMA else "The name."
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "schema": schema,
            "description": _PATH_DESCRIPTIONS.get(name, about),
        }


def _header_parameters(operation: Operation) -> list[dict[str, Any]]:
    if not operation.if_match:
        return []
    about = "The `ETag` of the job: nothing is changed if it has another one now."
    return [{"name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"}, "description": about}]


def _success_response(operation: Operation, schemas: _Schemas) -> dict[str, Any]:
    headers = {"X-Request-ID": {"description": "The request's id, sent or generated.", "schema": {"type": "string"}}}
    if operation.standby:
        about = "How many seconds old the data is at most, if a standby (`DL_READ_DSN`) has answered."
        headers[DATA_AGE_HEADER] = {"description": about, "schema": {"type": "number"}}
    return {
        "description": operation.summary + ".",
        "headers": headers,
        "content": schemas.content(operation.media_type, operation.response),
    }


def _problem_responses(operation: Operation) -> dict[str, Any]:
    """For each status the shared response, with the codes that this operation answers."""
    # Such a path matches UUIDs only, or no line break.
    has_other_paths = "<uuid:" in operation.path or "<path:" in operation.path
    path_problems = (ProblemCode.NOT_FOUND,) if has_other_paths else ()
    codes = (*_request_problems(operation), *operation.problems, *path_problems, ProblemCode.INTERNAL)
    responses: dict[str, Any] = {}
    for status in sorted({code.status for code in codes}):
        matching = dict.fromkeys(code for code in codes if code.status == status)
        about = " · ".join(f"`{code.text}`: {code.title}" for code in matching)
        responses[str(status)] = {"$ref": _response_ref(status), "description": about}
    for status in _REJECTED_BEFORE_ROUTING:
        responses.setdefault(str(status), {"$ref": _response_ref(status)})
    return responses


def _response_ref(status: int) -> str:
    return f"#/components/responses/{_RESPONSE_NAMES[status]}"


def _shared_responses(paths: Mapping[str, Any]) -> dict[str, Any]:
    """The responses that operations refer to: of each status the problem, and all codes with it."""
    operations = [operation for methods in paths.values() for operation in methods.values()]
    statuses = {
        int(status) for operation in operations for status, ref in operation["responses"].items() if "$ref" in ref
    }
    return {
        _RESPONSE_NAMES[status]: {
            "description": _REJECTED_BEFORE_ROUTING.get(status) or _codes_of(status),
            "content": _problem_content(status),
        }
        for status in sorted(statuses)
    }


def _codes_of(status: int) -> str:
    return " · ".join(f"`{code.text}`: {code.title}" for code in ProblemCode if code.status == status)


def _problem_content(status: int) -> dict[str, Any]:
    code = next((code for code in ProblemCode if code.status == status), ProblemCode.HTTP_ERROR)
    return {
        MEDIA_TYPE: {
            "schema": {"$ref": _REF_TEMPLATE.format(model=Problem.__name__)},
            "example": {
                "type": f"/docs#{code.text}",
                "title": code.title,
                "status": status,
                "detail": code.description,
                "code": code.text,
                "request_id": EXAMPLE_REQUEST_ID,
                "errors": [],
            },
        }
    }
