"""What `serve` and `worker` print when they run: addresses, and a first command to try."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from dataloader._address import DEFAULT_URL
from dataloader.app.cli import text
from dataloader.app.cli.invocation import dataloader_command
from dataloader.app.cli.parsing import DEFAULT_QUEUE
from dataloader.app.runtime.startup import Startup, last_error
from dataloader.app.wording import format_count

if TYPE_CHECKING:
    from dataloader.app.config import Settings

_FIRST_TASK = "noop"
_ANY_ADDRESS = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound


def serve_banner(settings: Settings, startup: Startup, *, workers: bool) -> str:
    url = service_address(settings.app_host, settings.app_port)
    if startup.outage is not None:
        return _banner(startup, "", f"  API      {url} answers 503 until then")
    return _banner(
        startup,
        f"dataloader is ready at {url}\n  API      {url}/docs (OpenAPI: {url}/openapi.json)",
        _format_place(settings, None if workers else f"none here; run `{dataloader_command()} worker`"),
        *_first_job(settings, startup, url, workers=workers),
        "Ctrl-C stops everything.",
    )


def _first_job(settings: Settings, startup: Startup, url: str, *, workers: bool) -> tuple[str, ...]:
    """Commands that start a job which this process runs; where it would run none, the command that lists the tasks."""
    where = "" if url == DEFAULT_URL else f" --url {url}"
    queues = [entry.queue for entry in settings.workers] if workers else []
    if _FIRST_TASK not in startup.tasks or not queues:
        return (
            "List the tasks that it can be asked for, in another terminal:",
            f"  {dataloader_command()} tasks",
        )
    queue = DEFAULT_QUEUE if DEFAULT_QUEUE in queues else queues[0]
    option = "" if queue == DEFAULT_QUEUE else f" --queue {shlex.quote(queue)}"
    body = {"queue": queue, "task": _FIRST_TASK, "lock_key": "first", "args": {"sleep1": 30}}
    return (
        "Try a first job, in another terminal:",
        f"  {dataloader_command()} trigger {_FIRST_TASK}{option} --arg sleep1=1 --watch{where}",
        "or, with curl (put the job_id of the first answer into the other two):",
        f"  curl -s {url}/api/v1/jobs/trigger -H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(body, ensure_ascii=False))}",
        f"  curl -s {url}/api/v1/jobs/JOB_ID/status",
        f"  curl -s -X POST {url}/api/v1/jobs/JOB_ID/cancel",
    )


def worker_banner(settings: Settings, startup: Startup) -> str:
    return _banner(startup, "dataloader works", _format_place(settings), "Ctrl-C stops it.")


def _banner(startup: Startup, head: str, details: str, *more: str) -> str:
    """The lines of a process that is ready, or of one that waits for its database."""
    if startup.outage is not None:
        head, more = (
            f"dataloader is not ready: {startup.outage}",
            ("It tries again until the database is there. Ctrl-C stops it.",),
        )
    lines = [head, f"  database {startup.database}", details]
    if startup.failures and startup.outage is None:
        lines.append(f"  broken   {format_count(len(startup.failures), 'module')}; the tasks of others work:")
        for name, trace in startup.failures.items():
            lines.append(f"    {text.one_line(name)}: {text.one_line(last_error(trace))}")
    return "\n".join([*lines, *more])


def service_address(host: str, port: int) -> str:
    """The URL of the service for a browser on this machine; a wildcard address becomes 127.0.0.1."""
    visit = "127.0.0.1" if host in _ANY_ADDRESS else host
    return f"http://[{visit}]:{port}" if ":" in visit else f"http://{visit}:{port}"


def _format_place(settings: Settings, workers: str | None = None) -> str:
    shown = _format_workers(settings) if workers is None else workers
    return f"  workers  {shown}\n  times    {settings.timezone} (TIMEZONE)"


def _format_workers(settings: Settings) -> str:
    if not settings.workers:
        return "none: WORKERS_JSON names no queue"
    return ", ".join(f"{w.queue} × {format_count(w.concurrency, 'thread')}" for w in settings.workers)
