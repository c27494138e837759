"""Commands where and top: where one running job is, and all of them."""

from __future__ import annotations

import sys
import time
from typing import Any
from uuid import UUID

import click

from dataloader.app.cli.output import Table, is_json
from dataloader.app.cli.parsing import option
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.features.where.where_lines import where_lines

_INTERVAL_SEC = 2.0


@remote_command(
    "where", operation="locate_job", only="", short_help="Show where a running job is, and what it waits for."
)
@option("--watch", "watching", is_flag=True, help="Show it again every two seconds until the job does not run.")
@option("--all", "shows_all", is_flag=True, help="Show each frame of other code than the task's, too.")
def locate(service: RemoteService, *, job_id: UUID, watching: bool, shows_all: bool) -> None:
    """Show where a running job is: the stack of its task, the innermost call first, its processes, its sessions in the
    queue's database and in targets, and who blocks them.

    \b
      dataloader where JOB_ID
      dataloader where JOB_ID --watch

    Its worker process is asked now, which takes less than a second.
    """
    while True:
        if watching and sys.stdout.isatty():
            click.clear()
        answer = service.perform("locate_job", lambda found: where_lines(found, shows_all=shows_all), job_id=job_id)
        if not watching or answer["status"] != "running":
            return
        time.sleep(_INTERVAL_SEC)
        if not is_json():
            click.echo()


_RUNNING = Table(
    "jobs",
    "job=job_id!, task, progress, running=running_sec!, cpu=cpu_percent, memory=memory_mb, where=summary",
    "No job runs.",
    cells={
        "cpu": lambda job: _with_unit(job["cpu_percent"], "%"),
        "memory": lambda job: _with_unit(job["memory_mb"], "MB"),
    },
)


def _with_unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:.0f} {unit}"


@remote_command("top", operation="list_running_jobs", short_help="Show what runs, and where it is.")
def show_top(service: RemoteService, **query: Any) -> None:
    """Show the running jobs, those first that have run longest: progress, CPU, memory, and where each of them is. On a
    terminal the list is new every two seconds, and has keys: the stack and the log of the chosen job, and its cancel.
    In a pipe, and with --json, it is printed once.
    """
    if is_json() or not (sys.stdin.isatty() and sys.stdout.isatty()):
        service.perform("list_running_jobs", _RUNNING, **query)
        return
    from dataloader.app.features.where.top_loop import run_top  # noqa: PLC0415 - modules of a terminal

    run_top(service, query)


COMMANDS = {"Jobs": (locate,), "Watch": (show_top,)}
