"""Commands where, top, account and costs: where running jobs are, for what their time went, and what it cost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import click

from dataloader.app.cli.output import Table, is_json
from dataloader.app.cli.parsing import option
from dataloader.app.cli.remote import RemoteService, remote_command
from dataloader.app.features.where.account_lines import account_lines
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


def _hours(field: str) -> Callable[[Any], str]:
    return lambda day: f"{day[field]:.2f} h"


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


@remote_command("account", operation="show_account", only="", short_help="Show for what the time of a job went.")
def show_account(service: RemoteService, *, job_id: UUID) -> None:
    """Show for what the time of a job's attempts went: by kind, place and statement, next to the usual run of its task.

    Attempts that ran for less than ten seconds have no account.
    """
    service.perform("show_account", account_lines, job_id=job_id)


_TOTALS = Table(
    "days",
    "day!, task!, attempts, run=run_hours, cpu=cpu_hours, memory=memory_gb_hours, rows, cost",
    "No attempt of this time has an account.",
    cells={name: _hours(f"{name}_hours") for name in ("run", "cpu")} | {"memory": _hours("memory_gb_hours")},
)


@remote_command("costs", operation="list_account_totals", short_help="Show what tasks used, by day.")
def show_costs(service: RemoteService, **query: Any) -> None:
    """Show what the attempts of each task used on each day: hours of runs, of CPUs and of gigabytes of memory, rows,
    and money if the settings have prices.
    """
    service.perform("list_account_totals", _TOTALS, **query)


COMMANDS = {"Jobs": (locate, show_account), "Watch": (show_top, show_costs)}
