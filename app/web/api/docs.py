"""The OpenAPI document at /openapi.json, and the page made from it at /docs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal

from flask import Response, render_template
from pydantic import Field

from app.web.json_io import dump_body
from app.web.openapi import build_document
from app.web.problems import ProblemCode
from app.web.routing import ANY_KEY, HTML, JSON, ApiBlueprint
from app.web.schemas import QueryModel

# The subjects whose routes several blueprints have.
_SUBJECTS = {
    "batch": "jobs",
    "job_list": "jobs",
    "job_edits": "jobs",
    "job_logs": "jobs",
    "breakers": "limits",
    "status": "service",
    "metrics": "service",
    "documentation": "service",
}


class DocsQuery(QueryModel):
    q: Annotated[str, Field(max_length=200, description="Only routes with these words.")] = ""
    dashboard: Annotated[Literal["no", "yes"], Field(description="Whether to show the routes of the dashboard.")] = "no"


def create_docs_blueprint(blueprints: Sequence[ApiBlueprint]) -> ApiBlueprint:
    """Describe the blueprints, and this one."""
    blueprint = ApiBlueprint("documentation", "")

    @cache  # built on first use: that takes longer than the rest of the startup
    def document() -> dict[str, Any]:
        return build_document([*blueprints, blueprint])

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
        shown = [route for route in routes if _is_wanted(route, words, has_pages=query.dashboard == "yes")]
        return render_template(
            "docs.html",
            document=document(),
            query=query,
            subjects=_by_subject(shown),
            route_count=len(shown),
            page_count=sum(_is_page(route) for route in routes),
            codes=list(ProblemCode),
        )

    return blueprint


def _by_subject(routes: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The routes of each subject, in the order of the document; those of the dashboard last."""
    by_subject: dict[str, list[Mapping[str, Any]]] = {}
    for route in sorted(routes, key=_is_page):
        tag = route["tags"][0]
        subject = "dashboard" if _is_page(route) else _SUBJECTS.get(tag, tag)
        by_subject.setdefault(subject.replace("_", " ").capitalize(), []).append(route)
    return by_subject


def _is_wanted(route: Mapping[str, Any], words: Sequence[str], *, has_pages: bool) -> bool:
    text = f"{route['method']} {route['path']} {route['summary']} {route['description']} {route['name']}".lower()
    return (has_pages or not _is_page(route)) and all(word in text for word in words)


def _is_page(route: Mapping[str, Any]) -> bool:
    """Whether the route is one of the dashboard."""
    return not route["path"].startswith("/api/") and route["tags"][0] not in _SUBJECTS


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
