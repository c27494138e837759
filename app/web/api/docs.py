"""The OpenAPI document at /openapi.json, and the page made from it at /docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from flask import Response, render_template

from app.web.openapi import build_document
from app.web.problems import ProblemCode
from app.web.routing import ANY_KEY, HTML, JSON, ApiBlueprint


def create_docs_blueprint(blueprints: Sequence[ApiBlueprint]) -> ApiBlueprint:
    """Describe the blueprints, and this one."""
    blueprint = ApiBlueprint("documentation", "")

    @cache  # built on first use: that takes longer than the rest of the startup
    def document() -> dict[str, Any]:
        return build_document([*blueprints, blueprint])

    @blueprint.get("/openapi.json", response=dict, scope=ANY_KEY)
    def get_openapi() -> Response:
        """Get the OpenAPI 3.1 document."""
        return Response(json.dumps(document()), content_type=JSON)

    @blueprint.get("/docs", response=str, media_type=HTML, scope=ANY_KEY)
    def show_docs() -> str:
        """Show every route, with a form to try it."""
        routes = [
            _describe_route(path, method, operation, document())
            for path, methods in document()["paths"].items()
            for method, operation in methods.items()
        ]
        return render_template("docs.html", document=document(), routes=routes, codes=list(ProblemCode))

    return blueprint


def _describe_route(path: str, method: str, operation: dict[str, Any], spec: Mapping[str, Any]) -> dict[str, Any]:
    """One operation of the document, as the page shows it."""
    shared, fields = spec["components"]["responses"], _body_fields(operation, spec)
    return (
        {"description": "", "parameters": []}
        | operation
        | {
            "path": path,
            "method": method.upper(),
            "name": operation["operationId"],
            "responses": {
                status: shared[response["$ref"].rsplit("/", 1)[-1]] if "$ref" in response else response
                for status, response in operation["responses"].items()
            },
            "fields": fields,
            "example": json.dumps({f["name"]: f["example"] for f in fields if f["example"] is not None}, indent=2),
        }
    )


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
