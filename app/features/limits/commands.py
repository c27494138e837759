"""Commands about limits and circuit breakers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from dataloader.app.cli import text
from dataloader.app.cli.parsing import DURATION, NOT_NEGATIVE, POSITIVE, RATE, without_none
from dataloader.app.cli.service_options import RemoteGroup, RemoteService, create_option
from dataloader.app.cli.tables import Table
from dataloader.app.wording import format_duration

limits = RemoteGroup("limits", help="Manage limits: how many jobs run at a time, and how many start in a time.")
breakers = RemoteGroup("breakers", help="Manage the circuit breakers of tasks; pause or resume a task.")
name_argument, task_argument = click.argument("name"), click.argument("task")


def _format_allowance(limit: text.Payload) -> str:
    allowances = []
    if limit["concurrency"] is not None:
        allowances.append(f"{limit['concurrency']} at once")
    if limit["rate"] is not None:
        burst = f", {limit['burst']} of them at once" if (limit["burst"] or 1) > 1 else ""
        allowances.append(f"{limit['rate']} in {format_duration(limit['per_sec'])}{burst}")
    return " and ".join(allowances) or "no limit"


def _format_use(limit: text.Payload) -> str:
    waiting = f"{limit['waiting']}{'' if limit['waiting_exact'] else '+'}"
    return f"{limit['used']} in use, {waiting} waiting"


_LIMITS = Table(
    "limit=name, setting, allowed, used, waiting, since, note",
    {
        "allowed": _format_allowance,
        "waiting": lambda limit: f"{limit['waiting']}{'' if limit['waiting_exact'] else '+'}",
        "since": lambda limit: limit["waiting_since"] and text.format_time(limit["waiting_since"]),
    },
    uncut="limit, allowed, used, waiting",
    empty_message="No limits.",
)


def _limit_path(name: str) -> str:
    return f"/api/v1/limits/{quote(name, safe='')}"


@limits.command("list", short_help="List the limits.")
def limits_list(service: RemoteService) -> None:
    """List limits with what is used, and how many jobs wait for them."""
    service.print_list(service.get("/api/v1/limits"), "limits", _LIMITS)


@limits.command("show", short_help="Show a limit and the jobs that hold it.")
@name_argument
def limits_show(service: RemoteService, *, name: str) -> None:
    """Show what a limit allows, and the jobs that hold it."""
    limit = service.get(_limit_path(name))
    lines = [f"{text.one_line(name)}: {_format_allowance(limit)}; {_format_use(limit)}"]
    for holder in limit["holders"]:
        since = text.format_time(holder["started_at"]) if holder["started_at"] else ""
        lines.append(f"  {holder['job_id']}  {holder['weight']}  {text.one_line(holder['task'])}  since {since}")
    service.print_payload(limit, *lines)


@limits.command("set", short_help="Create or replace a limit.")
@name_argument
@click.option("--concurrency", type=NOT_NEGATIVE, help="Weight of the jobs that run at a time; 0: none may start.")
@click.option("--rate", type=RATE, metavar="N/PERIOD", help="Starts in a period: 10/s, 100/1m, 5/30s.")
@click.option("--burst", type=POSITIVE, help="Of a rate, how many may start at once.  [default: 1]")
@click.option("--note", help="The reason, shown with the limit.")
def limits_set(service: RemoteService, *, name: str, rate: tuple[int, float] | None, **options: Any) -> None:
    """Create or replace a limit. A job names limits when it is triggered, or its task does.

    \b
      dataloader limits set warehouse --concurrency 4
      dataloader limits set partner-api --rate 10/s
      dataloader limits set 'tenant:*' --concurrency 2     the default of tenant:acme, tenant:other …
      dataloader limits set task:load.sales --concurrency 1
    """
    body = without_none(options) | ({} if rate is None else {"rate": rate[0], "per_sec": rate[1]})
    setting = service.client.request("PUT", _limit_path(name), body=body, repeatable=True)
    service.print_warnings(setting)
    service.print_payload(setting, f"Limit {text.one_line(name)}: {_format_allowance(setting)}.")


@limits.command("delete", short_help="Delete a limit.")
@name_argument
def limits_delete(service: RemoteService, *, name: str) -> None:
    """Delete a limit; jobs that wait for it may start."""
    service.print_payload(service.delete(_limit_path(name)), f"Limit {text.one_line(name)} is deleted.")


def _breaker_state(breaker: text.Payload) -> str:
    is_paused = breaker["state"] == "open" and breaker["probe_at"] is None
    return "paused" if is_paused else str(breaker["state"]).replace("_", "-")


_BREAKERS = Table(
    "task, state, failed=failed_in_row, waiting, opened=opened_at, reason",
    {"state": _breaker_state},
    uncut="task, state",
    empty_message="No task has a circuit breaker, and none is paused.",
)


def _breaker_path(task: str) -> str:
    return f"/api/v1/tasks/{quote(task, safe='')}/breaker"


def _change_breaker(service: RemoteService, task: str, body: text.Payload, *, create: bool) -> None:
    query = {"strict": None if create else True}
    found = service.client.request("PUT", _breaker_path(task), query=query, body=body, repeatable=True)
    state = "resumed" if body.get("state") == "closed" else _breaker_state(found)
    _print_breaker(service, found, state)


def _print_breaker(service: RemoteService, breaker: text.Payload, state: str) -> None:
    why = f": {text.one_line(breaker['reason'])}" if breaker["reason"] else ""
    service.print_payload(breaker, f"{text.one_line(breaker['task'])} is {state}{why}.")


@breakers.command("list", short_help="List the circuit breakers.")
def breakers_list(service: RemoteService) -> None:
    """List the circuit breakers of tasks, those that are not closed first."""
    service.print_list(service.get("/api/v1/breakers"), "breakers", _BREAKERS)


@breakers.command("show", short_help="Show the breaker of a task.")
@task_argument
def breakers_show(service: RemoteService, *, task: str) -> None:
    """Show the breaker of TASK."""
    found = service.get(_breaker_path(task))
    _print_breaker(service, found, _breaker_state(found))


@breakers.command("pause", short_help="Pause a task.")
@task_argument
@click.option("--note", "reason", help="Why the task is paused.")
@create_option
def breakers_pause(service: RemoteService, *, task: str, reason: str | None, create: bool) -> None:
    """Pause TASK: none of its jobs starts until it is resumed. Running jobs continue.

    \b
      dataloader breakers pause load.sales --note "the warehouse is being moved"
    """
    _change_breaker(service, task, without_none({"state": "open", "reason": reason}), create=create)


@breakers.command("resume", short_help="Resume a task.")
@task_argument
@click.option("--note", "reason", help="Why the task is resumed.")
@create_option
def breakers_resume(service: RemoteService, *, task: str, reason: str | None, create: bool) -> None:
    """Resume TASK: close its breaker, whether attempts or a person have opened it."""
    _change_breaker(service, task, without_none({"state": "closed", "reason": reason}), create=create)


@breakers.command("set", short_help="Change the breaker of a task.")
@task_argument
@click.option("--failures", type=POSITIVE, help="It opens after so many attempts in a row that ended with an error.")
@click.option("--window", "window_sec", type=DURATION, help="A row of failures ends so long after its last one.")
@click.option("--resume", "resume_sec", type=DURATION, help="How long after opening one job is tried.")
@create_option
def breakers_set(service: RemoteService, *, task: str, create: bool, **options: Any) -> None:
    """Change when the breaker of TASK opens, and when one job is tried after that.

    \b
      dataloader breakers set load.sales --failures 5 --resume 300
    """
    body = without_none(options)
    if not body:
        raise click.UsageError("nothing to set; see --help for the options")
    _change_breaker(service, task, body, create=create)


@breakers.command("delete", short_help="Delete the breaker of a task.")
@task_argument
def breakers_delete(service: RemoteService, *, task: str) -> None:
    """Delete the breaker of TASK; jobs that wait for it may start."""
    service.print_payload(service.delete(_breaker_path(task)), f"The breaker of {text.one_line(task)} is deleted.")
