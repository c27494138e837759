"""The OpenAPI document at /openapi.json, and the page made from it at /docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from flask import Response
from pydantic import Field

from dataloader.app.http.json_io import dump_body
from dataloader.app.http.links import render_html
from dataloader.app.http.openapi import api_operations, build_document
from dataloader.app.http.problems import ProblemCode
from dataloader.app.http.routing import ANY_KEY, HTML, JSON, ApiBlueprint
from dataloader.app.http.schemas import QueryModel


class DocsQuery(QueryModel):
    q: Annotated[str, Field(max_length=200, description="Only routes with these words.")] = ""


def create_docs_blueprint(blueprints: Sequence[ApiBlueprint]) -> ApiBlueprint:
    """Describe the blueprints, and this one."""
    blueprint = ApiBlueprint("documentation", "")

    @cache  # built on first use: that takes longer than the rest of the startup
    def document() -> dict[str, Any]:
        return build_document(api_operations([*blueprints, blueprint]))

    @blueprint.get("/openapi.json", response=dict, scope=ANY_KEY)
    def get_openapi() -> Response:
        """Get the OpenAPI 3.1 document."""
        return Response(dump_body(document()), content_type=JSON)

    @blueprint.get("/docs", query=DocsQuery, response=str, media_type=HTML, scope=ANY_KEY)
    def show_docs(query: DocsQuery) -> str:
        """Show the routes by subject, with a form to try each."""
        routes = [
            _describe_route(path, method, operation, document())
            for path, methods in document()["paths"].items()
            for method, operation in methods.items()
        ]
        words = query.q.lower().split()
        shown = [route for route in routes if _is_wanted(route, words)]
        return render_html(
            "docs.html",
            document=document(),
            query=query,
            subjects=_by_subject(shown),
            route_count=len(shown),
            codes=list(ProblemCode),
        )

    return blueprint


def _by_subject(routes: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The routes of each subject, in the order of the document."""
    by_subject: dict[str, list[Mapping[str, Any]]] = {}
    for route in routes:
        by_subject.setdefault(route["tags"][0].replace("_", " ").capitalize(), []).append(route)
    return by_subject


def _is_wanted(route: Mapping[str, Any], words: Sequence[str]) -> bool:
    text = f"{route['method']} {route['path']} {route['summary']} {route['description']} {route['name']}".lower()
    return all(word in text for word in words)


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
                status: shared[response["$ref"].rsplit("/", 1)[-1]] | response if "$ref" in response else response
                for status, response in operation["responses"].items()
            },
            "fields": fields,
            "example": json.dumps(_body_content(operation).get("example"), indent=2, ensure_ascii=False),
        }
    )


def _body_content(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    content: Mapping[str, Any] = operation.get("requestBody", {}).get("content", {}).get(JSON, {})
    return content


def _body_fields(operation: Mapping[str, Any], spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The body's fields, in the order of the model."""
    content = _body_content(operation)
    if not content:
        return []
    schema = spec["components"]["schemas"][content["schema"]["$ref"].rsplit("/", 1)[-1]]
    return [
        {
            "name": field,
            "type": _type_text(about),
            "required": field in schema.get("required", ()),
            "default": json.dumps(about["default"]) if "default" in about else "",
            "description": about.get("description", ""),
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
