"""Print the OpenAPI document: `python -m app.web > docs/openapi.json`, which a test compares."""

from __future__ import annotations

import json
import sys

from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.web import WebOptions, create_app
from pipelines.contract import Pipelines


def document_text() -> str:
    """The document as it is checked in: with the default limits, readable in a diff. Asks no database."""
    app = create_app(JobQueue(Pool("")), Pipelines(), WebOptions(version="0"))
    return json.dumps(app.test_client().get("/openapi.json").json, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document_text())
