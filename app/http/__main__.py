"""Print the OpenAPI document that is kept in the repository: `python -m dataloader.app.http > docs/openapi.json`."""

from __future__ import annotations

import json
import sys

from flask import Flask

from dataloader.app.db.pool import Pool
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines


def described_app() -> Flask:
    """An app with the default limits. It asks no database."""
    return create_app(JobQueue(Pool("")), Pipelines(), WebOptions(version="0"))


def document_text() -> str:
    """The document as it is checked in, readable in a diff."""
    return json.dumps(described_app().test_client().get("/openapi.json").json, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document_text())
