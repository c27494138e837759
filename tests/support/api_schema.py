"""The operations of an app as schemathesis tries them: those of the API, and those of the dashboard's pages."""

from __future__ import annotations

import json
import re
from typing import Any

import schemathesis
from flask import Flask, Response
from schemathesis.core.result import Ok

from dataloader.app.http.app import OPERATIONS
from dataloader.app.http.openapi import build_document

_DOCUMENT_PATH = "/every-operation.json"


class DescribedApp:
    """An app that also serves a document of every operation, to callers on its own machine."""

    def __init__(self, app: Flask) -> None:
        self._app = app
        self.document = build_document(app.extensions[OPERATIONS])

    def __call__(self, environ: Any, start_response: Any) -> Any:
        environ.setdefault("REMOTE_ADDR", "127.0.0.1")  # else requests come from nowhere, and are refused
        if environ["PATH_INFO"] == _DOCUMENT_PATH:
            return Response(json.dumps(self.document), content_type="application/json")(environ, start_response)
        return self._app(environ, start_response)

    def operations(self) -> list[Any]:
        schema = schemathesis.openapi.from_wsgi(_DOCUMENT_PATH, self)
        return [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]

    def undeclared_code(self, operation: Any, answer: Any) -> str | None:
        """The code of a problem that the operation's responses do not list, or None."""
        if "problem+json" not in answer.headers.get("content-type", [""])[0]:
            return None
        described = self.document["paths"][operation.path][operation.method]["responses"]
        response = described.get(str(answer.status_code), {})
        shared = self.document["components"]["responses"].get(response.get("$ref", "").rpartition("/")[2], {})
        listed = re.findall(r"`(\w+)`", response.get("description") or shared.get("description", ""))
        code = answer.json()["code"]
        return None if code in listed else f"{answer.status_code} {code}"
