"""Print what is made of the routes, and kept in the repository, where tests compare it:

python -m app.web > docs/openapi.json
python -m app.web client | ruff format - > app/client/operations.py
"""

from __future__ import annotations

import json
import sys

from app.queue.jobqueue import JobQueue
from app.queue.pool import Pool
from app.web import WebOptions, create_app
from app.web.clientcode import client_code
from pipelines.contract import Pipelines


def document_text() -> str:
    """The document as it is checked in: with the default limits, readable in a diff. Asks no database."""
    app = create_app(JobQueue(Pool("")), Pipelines(), WebOptions(version="0"))
    return json.dumps(app.test_client().get("/openapi.json").json, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    told = document_text()
    sys.stdout.write(client_code(json.loads(told)) if sys.argv[1:] == ["client"] else told)
