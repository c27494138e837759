"""The OpenAPI document at /openapi.json, and the page made from it at /docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from flask import Response, render_template

from app.web.openapi import build_document
from app.web.problems import ProblemCode
from app.web.routing import ANY_KEY, HTML, JSON, ApiBlueprint


def create_docs_blueprint(blueprints: Sequence[ApiBlueprint]) -> ApiBlueprint:
    """Describe the blueprints, and this one."""
    blueprint = ApiBlueprint("documentation", "")

    @blueprint.get("/openapi.json", response=dict, scope=ANY_KEY)
    def get_openapi() -> Response:
        """Get the OpenAPI 3.1 document."""
        return Response(document.as_json, content_type=JSON)

    @blueprint.get("/docs", response=str, media_type=HTML, scope=ANY_KEY)
    def show_docs() -> str:
        """Show every route, with a form to try it."""
        return render_template("docs.html", document=document.as_dict, routes=document.routes, codes=list(ProblemCode))

    document = OpenApiDocument([*blueprints, blueprint])
    return blueprint


class OpenApiDocument:
    """The document, built on first use: that takes longer than the rest of the startup."""

    def __init__(self, blueprints: Sequence[ApiBlueprint]) -> None:
        self._blueprints = blueprints

    @cached_property
    def as_dict(self) -> dict[str, Any]:
        return build_document(self._blueprints)

    @cached_property
    def as_json(self) -> str:
        return json.dumps(self.as_dict)

    @cached_property
    def routes(self) -> list[RouteView]:
        paths = self.as_dict["paths"].items()
        return [
            RouteView(path, method, operation, self.as_dict)
            for path, methods in paths
            for method, operation in methods.items()
        ]


class RouteView:
    """One operation of the document, for the page."""

    def __init__(self, path: str, method: str, operation: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        self.path = path
        self.method = method.upper()
        self.name = operation["operationId"]
        self.summary = operation["summary"]
        self.description = operation.get("description", "")
        self.parameters = operation.get("parameters", [])
        self.responses = {
            status: _resolve_response(response, spec) for status, response in operation["responses"].items()
        }
        self.fields = _body_fields(operation, spec)
        self.example = json.dumps({f["name"]: f["example"] for f in self.fields if f["example"] is not None}, indent=2)


def _resolve_response(response: Mapping[str, Any], spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a reference to a shared response."""
    if "$ref" not in response:
        return response
    found: Mapping[str, Any] = spec["components"]["responses"][response["$ref"].rsplit("/", 1)[-1]]
    return found


def _body_fields(operation: Mapping[str, Any], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The body's fields, in the order of the model."""
    if "requestBody" not in operation:
        return []
    content = operation["requestBody"]["content"].get(JSON)
    if content is None:
        return []  # the form of a page
    name = content["schema"]["$ref"].rsplit("/", 1)[-1]
    schema = spec["components"]["schemas"][name]
    return [
        {
            "name": field,
            "type": _type_text(about),
            "required": field in schema.get("required", ()),
            "default": json.dumps(about["default"]) if "default" in about else "",
            "description": about.get("description", ""),
            "example": next(iter(about.get("examples", ())), None),
        }
        for field, about in schema["properties"].items()
    ]


def _type_text(schema: Mapping[str, Any]) -> str:
    """Describe a type in words: `string, up to 1000 characters`."""
    if "anyOf" in schema:
        return " or ".join(_type_text(choice) for choice in schema["anyOf"])
    words = [schema.get("type", "object")]  # a reference is an object
    if "format" in schema:
        words.append(schema["format"])
    if "minimum" in schema:
        words.append(f"≥ {schema['minimum']}")
    if "maxLength" in schema:
        words.append(f"up to {schema['maxLength']} characters")
    return ", ".join(words)
