"""The OpenAPI 3.1 document, read off the operations and the types they validate and answer with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core.core_schema import StringSchema

from app.web.operations import HTML, JSON, Operation, Subject
from app.web.problems import MEDIA_TYPE, Code, Problem

API_VERSION = "1.0.0"
_IN_COMPONENTS = "#/components/schemas/{model}"
_PATH_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>")
_EVERYWHERE = (Code.INTERNAL,)
_NO_NUL = r"^[^\u0000]*$"  # PostgreSQL keeps no NUL in a text
# Answered before an operation is known, so by all of them.
_REFUSED_AT_THE_DOOR = {
    408: ("RequestTooSlow", "The request did not come whole in time; the connection is closed."),
    414: ("AddressTooLong", "The address has more than 8,190 bytes; the connection is closed."),
    431: (
        "HeadersTooLarge",
        "The headers have more than 64 kB, one of them more than 8 kB, or they are more than 100.",
    ),
}
_PATHS = {"job_id": "The job's id, as the trigger returned it."}

_TAGS = {
    "jobs": "Put jobs into the queue, watch, cancel and retry them.",
    "lists": "Find jobs, and tell everything about one.",
    "edits": "Change, clone and delete jobs.",
    "bulk": "Do something to all jobs that fit a filter.",
    "queues": "How queues and workers do, and what is ruled about them.",
    "tasks": "What can be run, and how it did.",
    "stream": "What happens to jobs, as it happens.",
    "logs": "Read what jobs said.",
    "webhooks": "Have it told elsewhere when jobs end, and see whether that arrived.",
    "alerts": "What goes wrong, and the rules that decide it.",
    "infrastructure": "Is the service there, what is it, is it ready.",
    "probes": "For whoever starts, feeds and watches processes.",
    "metrics": "Numbers for Prometheus.",
    "feedback": "Votes, kept for the callers of the service before this one.",
    "audit": "Who did what.",
    "session": "Coming in with a browser, and leaving.",
    "pages": "For people with a browser.",
    "documentation": "This description, for programs and for people.",
}

_SECURITY = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, made by `dataloader keys create`. One of the named scopes is needed; `operate` "
        "implies `read` and `trigger`, `admin` implies all. A service without any key answers on its own machine "
        "alone, and there to everybody.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "dl_session",
        "description": "What /login gives to a browser in exchange for a key. Requests that change something need the "
        "header `X-CSRF-Token` too.",
    },
}


def document(subjects: Iterable[Subject]) -> dict[str, Any]:
    """Describe every operation of the subjects."""
    operations = [operation for subject in subjects for operation in subject.operations]
    schemas = _schemas(operations)
    paths: dict[str, Any] = {}
    for operation in operations:
        path = template(operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation)
    used = {operation.tag for operation in operations}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dataloader",
            "version": API_VERSION,
            "description": "Long ETL jobs in one PostgreSQL table, run by threads. Errors are problem+json (RFC 9457) "
            "with a stable `code`. Every path also answers `OPTIONS` with its methods in `Allow`, without a key, and "
            "`HEAD` where it has `GET`. No text in a request may hold the character NUL, at any depth.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "tags": [{"name": name, "description": about} for name, about in _TAGS.items() if name in used],
        "paths": paths,
        "components": {"schemas": schemas, "responses": _door_responses(), "securitySchemes": _SECURITY},
    }


class _Requests(GenerateJsonSchema):
    """Requests say what pydantic does not know: that no text may hold NUL."""

    def str_schema(self, schema: StringSchema) -> JsonSchemaValue:
        found = super().str_schema(schema)
        return {**found, "pattern": _NO_NUL} if self.mode == "validation" and "pattern" not in found else found


def _door_responses() -> dict[str, Any]:
    code = {"properties": {"code": {"enum": [Code.HTTP_ERROR.text]}}}
    schema = {"allOf": [{"$ref": "#/components/schemas/Problem"}, code]}
    return {
        name: {"description": about, "content": {MEDIA_TYPE: {"schema": schema}}}
        for name, about in _REFUSED_AT_THE_DOOR.values()
    }


@cache  # there are as many rules as routes, and each request asks for its own
def template(rule: str) -> str:
    """Flask's `<job:job_id>` as the document's `{job_id}`."""
    return _PATH_PARAMETER.sub(r"{\1}", rule)


def _schemas(operations: Sequence[Operation]) -> dict[str, Any]:
    adapters: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
    kinds = {op.answer: "serialization" for op in operations if op.media_type == JSON and op.answer is not dict}
    kinds |= {op.body: "validation" for op in operations if op.body is not None}
    kinds[Problem] = "serialization"
    for kind, mode in kinds.items():
        adapters.append((kind.__name__, mode, TypeAdapter(kind)))  # type: ignore[arg-type]
    _, found = TypeAdapter.json_schemas(adapters, ref_template=_IN_COMPONENTS, schema_generator=_Requests)
    schemas: dict[str, Any] = found["$defs"]
    return dict(sorted(schemas.items()))


def _operation(operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        told["description"] = operation.description
    parameters = _path_parameters(operation) + _query_parameters(operation.query) + _header_parameters(operation)
    if parameters:
        told["parameters"] = parameters
    if operation.body is not None:
        content = {operation.body_type: {"schema": _reference(operation.body)}}
        told["requestBody"] = {"required": True, "content": content}
    told["security"] = _security(operation)
    codes = (*operation.problems, *_of_path(operation.path), *_EVERYWHERE)
    told["responses"] = {"200": _answer(operation), **_problems(codes)}
    if operation.media_type == HTML:  # for a person a problem is a page
        for status, answer in told["responses"].items():
            if status != "200":
                answer["content"][HTML] = {"schema": {"type": "string"}}
    if operation.conditional:
        told["responses"]["304"] = {"description": "Nothing has changed since the answer whose tag was sent back."}
    for status, when in operation.pages.items():
        there = told["responses"].setdefault(str(status), {"description": when, "content": {}})
        there["content"][operation.media_type] = {"schema": {"type": "string"}}
    for refused, (name, _) in _REFUSED_AT_THE_DOOR.items():
        told["responses"].setdefault(str(refused), {"$ref": f"#/components/responses/{name}"})
    return told


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    """One of the scopes does; none is needed for an operation that is open."""
    return [{scheme: [scope.value]} for scope in operation.access for scheme in _SECURITY]


def _of_path(path: str) -> tuple[Code, ...]:
    """Where the address itself asks for a UUID, anything else is no address."""
    return (Code.NOT_FOUND,) if "<uuid:" in path else ()


def _path_parameters(operation: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "format": "uuid"},
            "description": _PATHS.get(name, "The id, as it was told."),
        }
        for name in _PATH_PARAMETER.findall(operation.path)
    ]


def _header_parameters(operation: Operation) -> list[dict[str, Any]]:
    if not operation.if_match:
        return []
    about = "The `ETag` as it was looked at: nothing is done if it is another one by now."
    return [{"name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"}, "description": about}]


def _query_parameters(query: type[BaseModel] | None) -> list[dict[str, Any]]:
    if query is None:
        return []
    schema = query.model_json_schema(schema_generator=_Requests)
    return [_query_parameter(name, _inlined(about, schema)) for name, about in schema["properties"].items()]


def _query_parameter(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Left out is how a caller says null in an address."""
    given = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    about = {"name": name, "in": "query", "required": False, "description": schema.pop("description", "")}
    schema.pop("title", None)
    if given:
        return about | {"schema": given[0]}
    return about | {"schema": schema}


def _inlined(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """An enum's definition, put where it is referred to."""
    choices = [
        root["$defs"][choice["$ref"].rsplit("/", 1)[-1]] if "$ref" in choice else choice
        for choice in schema.get("anyOf", ())
    ]
    return {**schema, "anyOf": choices} if choices else dict(schema)


def _answer(operation: Operation) -> dict[str, Any]:
    schema: dict[str, Any]
    if operation.media_type != JSON:
        schema = {"type": "string"}
    elif operation.answer is dict:
        schema = {"type": "object"}
    else:
        schema = _reference(operation.answer)
    return {
        "description": operation.summary + ".",
        "headers": {"X-Request-ID": {"description": "The request's id, given or made.", "schema": {"type": "string"}}},
        "content": {operation.media_type: {"schema": schema}},
    }


def _problems(codes: Sequence[Code]) -> dict[str, Any]:
    """One response a status; its schema lists the codes it may carry."""
    told: dict[str, Any] = {}
    for status in sorted({code.status for code in codes}):
        mine = list(dict.fromkeys(code for code in codes if code.status == status))
        told[str(status)] = {
            "description": " · ".join(f"`{code.text}`: {code.title}" for code in mine),
            "content": {
                MEDIA_TYPE: {
                    "schema": {
                        "allOf": [
                            {"$ref": "#/components/schemas/Problem"},
                            {"properties": {"code": {"enum": [code.text for code in mine]}}},
                        ]
                    }
                }
            },
        }
    return told


def _reference(kind: Any) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
