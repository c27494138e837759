"""What `serve` and `worker` say once they run: what is where, and what to try next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.cli import text
from app.cli.invocation import dataloader_command
from app.client import DEFAULT_URL
from app.host.startup import Startup, last_error
from app.wording import counted

if TYPE_CHECKING:
    from app.config import Settings

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound


def serve_banner(settings: Settings, startup: Startup, *, workers: bool) -> str:
    url = address(settings.app_host, settings.app_port)
    if startup.outage is not None:
        return _not_ready(startup, f"  API      {url} answers 503 until then")
    command = f"{dataloader_command()} trigger noop --arg sleep1=1 --watch"
    return "\n".join(
        [
            f"dataloader is ready at {url}",
            f"  API      {url}/docs (OpenAPI: {url}/openapi.json)",
            f"  database {startup.database}",
            f"  workers  {_workers(settings) if workers else f'none here; run `{dataloader_command()} worker`'}",
            *_broken(startup),
            "Try a first job, in another terminal:",
            f"  {command}" + ("" if url == DEFAULT_URL else f" --url {url}"),
            "or, with curl (put the job_id of the first answer into the other two):",
            f"  curl -s {url}/api/v1/jobs/trigger -H 'Content-Type: application/json' \\",
            """    -d '{"queue": "etl.default", "task": "noop", "lock_key": "first", "args": {"sleep1": 30}}'""",
            f"  curl -s {url}/api/v1/jobs/JOB_ID/status",
            f"  curl -s -X POST {url}/api/v1/jobs/JOB_ID/cancel",
            "Ctrl-C stops everything.",
        ]
    )


def worker_banner(settings: Settings, startup: Startup) -> str:
    workers = f"  workers  {_workers(settings)}"
    if startup.outage is not None:
        return _not_ready(startup, workers)
    return "\n".join(
        ["dataloader works", f"  database {startup.database}", workers, *_broken(startup), "Ctrl-C stops it."]
    )


def _not_ready(startup: Startup, line: str) -> str:
    return "\n".join(
        [
            f"dataloader is not ready: {startup.outage}",
            f"  database {startup.database}",
            line,
            "It tries again until the database is there. Ctrl-C stops it.",
        ]
    )


def _broken(startup: Startup) -> list[str]:
    if not startup.broken:
        return []
    return [
        f"  broken   {counted(len(startup.broken), 'module')}; the tasks of others work:",
        *(f"    {text.clean(name)}: {text.clean(last_error(trace))}" for name, trace in startup.broken.items()),
    ]


def address(host: str, port: int) -> str:
    """Where a person on this machine finds the service: one listens everywhere, but visits somewhere."""
    visit = "127.0.0.1" if host in ANYWHERE else host
    return f"http://[{visit}]:{port}" if ":" in visit else f"http://{visit}:{port}"


def _workers(settings: Settings) -> str:
    if not settings.workers:
        return "none: WORKERS_JSON names no queue"
    return ", ".join(f"{w.queue} × {counted(w.concurrency, 'thread')}" for w in settings.workers)
