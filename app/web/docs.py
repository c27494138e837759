"""The API described: for programs at /openapi.json, for people at /docs. Both from one document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from flask import Response, render_template

from app.web.openapi import document
from app.web.operations import ANY_KEY, HTML, JSON, Subject
from app.web.options import WebOptions
from app.web.problems import Code


def docs(described: Sequence[Subject], options: WebOptions) -> Subject:
    """Describe the subjects, and itself."""
    subject = Subject("documentation", "", options.max_json_depth)

    @subject.get("/openapi.json", answer=dict, scope=ANY_KEY)
    def openapi() -> Response:
        """Read the OpenAPI 3.1 document."""
        return Response(told.text, content_type=JSON)

    @subject.get("/docs", answer=str, media_type=HTML, scope=ANY_KEY)
    def page() -> str:
        """Read about every route, and try it."""
        return render_template("docs.html", document=told.whole, routes=told.routes, codes=list(Code))

    told = Told([*described, subject])
    return subject


class Told:
    """The document, made when it is first asked for: it takes longer than all else of a start, and few ever ask."""

    def __init__(self, subjects: Sequence[Subject]) -> None:
        self._subjects = subjects

    @cached_property
    def whole(self) -> dict[str, Any]:
        return document(self._subjects)

    @cached_property
    def text(self) -> str:
        return json.dumps(self.whole)

    @cached_property
    def routes(self) -> list[Route]:
        paths = self.whole["paths"].items()
        return [Route(path, method, it, self.whole) for path, methods in paths for method, it in methods.items()]


class Route:
    """One operation of the document, as the page shows it."""

    def __init__(self, path: str, method: str, operation: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
        self.path = path
        self.method = method.upper()
        self.name = operation["operationId"]
        self.summary = operation["summary"]
        self.description = operation.get("description", "")
        self.parameters = operation.get("parameters", [])
        self.responses = {status: _resolved(it, whole) for status, it in operation["responses"].items()}
        self.fields = _fields(operation, whole)
        self.example = json.dumps({f["name"]: f["example"] for f in self.fields if f["example"] is not None}, indent=2)


def _resolved(response: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Look up a response that several operations share under the components."""
    if "$ref" not in response:
        return response
    found: Mapping[str, Any] = whole["components"]["responses"][response["$ref"].rsplit("/", 1)[-1]]
    return found


def _fields(operation: Mapping[str, Any], whole: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The body's fields, in the order of the model."""
    if "requestBody" not in operation:
        return []
    content = operation["requestBody"]["content"].get(JSON)
    if content is None:
        return []  # of a form, which has a page of its own
    name = content["schema"]["$ref"].rsplit("/", 1)[-1]
    schema = whole["components"]["schemas"][name]
    return [
        {
            "name": field,
            "type": _type(about),
            "required": field in schema.get("required", ()),
            "default": json.dumps(about["default"]) if "default" in about else "",
            "description": about.get("description", ""),
            "example": next(iter(about.get("examples", ())), None),
        }
        for field, about in schema["properties"].items()
    ]


def _type(schema: Mapping[str, Any]) -> str:
    """A field's type in a few words: `string, up to 1000 characters`."""
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    words = [schema.get("type", "object")]  # what is defined elsewhere is an object
    if "format" in schema:
        words.append(schema["format"])
    if "minimum" in schema:
        words.append(f"≥ {schema['minimum']}")
    if "maxLength" in schema:
        words.append(f"up to {schema['maxLength']} characters")
    return ", ".join(words)
