"""What `serve` and `worker` say once they run: what is where, and what to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.client import DEFAULT_URL
from app.wording import counted

if TYPE_CHECKING:
    from app.config import Settings

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound


def serve_banner(settings: Settings, database: str, *, workers: bool) -> str:
    url = address(settings.app_host, settings.app_port)
    return "\n".join(
        [
            f"dataloader is ready at {url}",
            f"  API      {url}/docs (OpenAPI: {url}/openapi.json)",
            f"  database {database}",
            f"  workers  {_workers(settings) if workers else 'none here; run `dataloader worker`'}",
            "Try a first job:",
            "  dataloader trigger noop --arg sleep1=1 --watch" + ("" if url == DEFAULT_URL else f" --url {url}"),
            "or, with curl (put the job_id of the first answer into the other two):",
            f"  curl -s {url}/api/v1/jobs/trigger -H 'Content-Type: application/json' \\",
            """    -d '{"queue": "etl.default", "task": "noop", "lock_key": "first", "args": {"sleep1": 30}}'""",
            f"  curl -s {url}/api/v1/jobs/JOB_ID/status",
            f"  curl -s -X POST {url}/api/v1/jobs/JOB_ID/cancel",
            "Ctrl-C stops everything.",
        ]
    )


def worker_banner(settings: Settings, database: str) -> str:
    return "\n".join(
        [
            "dataloader works",
            f"  database {database}",
            f"  workers  {_workers(settings)}",
            "Ctrl-C stops it.",
        ]
    )


def address(host: str, port: int) -> str:
    """Where a person on this machine finds the service: one listens everywhere, but visits somewhere."""
    visit = "127.0.0.1" if host in ANYWHERE else host
    return f"http://[{visit}]:{port}" if ":" in visit else f"http://{visit}:{port}"


def _workers(settings: Settings) -> str:
    if not settings.workers:
        return "none: WORKERS_JSON names no queue"
    return ", ".join(f"{w.queue} × {counted(w.concurrency, 'thread')}" for w in settings.workers)
