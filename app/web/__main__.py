"""Print the OpenAPI document that is kept in the repository: `python -m app.web > docs/openapi.json`."""

from __future__ import annotations

import json
import sys

from app.db.pool import Pool
from app.queue.jobs import JobQueue
from app.web import WebOptions, create_app
from pipelines.contract import Pipelines


def document_text() -> str:
    """The document as it is checked in: with the default limits, readable in a diff. Asks no database."""
    app = create_app(JobQueue(Pool("")), Pipelines(), WebOptions(version="0"))
    return json.dumps(app.test_client().get("/openapi.json").json, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document_text())
