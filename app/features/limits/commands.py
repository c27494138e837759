"""Commands about limits and circuit breakers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from dataloader.app.cli import text
from dataloader.app.cli.output import Table
from dataloader.app.cli.parsing import Parsed, option
from dataloader.app.cli.remote import CREATE, RemoteGroup, RemoteService
from dataloader.app.wording import format_duration, parse_duration


def _format_allowance(limit: text.Payload) -> str:
    allowances = []
    if limit["concurrency"] is not None:
        allowances.append(f"{limit['concurrency']} at once")
    if limit["rate"] is not None:
        burst = f", {limit['burst']} of them at once" if (limit["burst"] or 1) > 1 else ""
        allowances.append(f"{limit['rate']} in {format_duration(limit['per_sec'])}{burst}")
    return " and ".join(allowances) or "no limit"


def _limit_lines(limit: text.Payload) -> Iterator[str]:
    use = f"{limit['used']} in use, {limit['waiting']}{'' if limit['waiting_exact'] else '+'} waiting"
    yield f"{limit['name']}: {_format_allowance(limit)}; {use}"
    for holder in limit["holders"]:
        since = text.format_time(holder["started_at"]) if holder["started_at"] else ""
        yield f"  {holder['job_id']}  {holder['weight']}  {holder['task']}  since {since}"


def _setting_line(setting: text.Payload) -> str:
    return f"Limit {setting['name']}: {_format_allowance(setting)}."


def parse_rate(raw: str) -> tuple[int, float]:
    """Starts and seconds of a text like 10/s, 100/1m or 5/30s."""
    count, _, period = raw.strip().partition("/")
    try:
        number, seconds = int(count), parse_duration(period if period[:1].isdigit() else f"1{period or '?'}")
    except ValueError:
        number, seconds = 0, 0.0
    if number < 1 or seconds <= 0:
        raise ValueError(f"{raw!r} is not a rate; one looks like 10/s, 100/1m or 5/30s")
    return number, seconds


_LIMITS = Table(
    "limits",
    "limit=name!, setting, allowed!, used!, waiting!, since=waiting_since, note",
    "No limits.",
    cells={"allowed": _format_allowance},
)

limits = RemoteGroup("limits", help="Manage limits: how many jobs run at a time, and how many start in a time.")
limits.add("list", "list_limits", _LIMITS)
limits.add("show", "get_limit", _limit_lines)
limits.add("delete", "delete_limit", "Limit {name} is deleted.")


@limits.command("set", operation="set_limit", omit="per_sec strict")
@option("--rate", type=Parsed("n/period", parse_rate), help="Starts in a period: 10/s, 100/1m, 5/30s.")
def set_limit(service: RemoteService, *, rate: tuple[int, float] | None, **fields: Any) -> None:
    """Create or replace a limit. A job names limits when it is triggered, or its task does.

    \b
      dataloader limits set warehouse --concurrency 4
      dataloader limits set partner-api --rate 10/s
      dataloader limits set 'tenant:*' --concurrency 2     the default of tenant:acme, tenant:other …
      dataloader limits set task:load.sales --concurrency 1
    """
    count, per_sec = rate or (None, None)
    service.perform("set_limit", _setting_line, rate=count, per_sec=per_sec, **fields)


# ── circuit breakers ────────────────────────────────────────────────────────────────────────────────────────────────


def _breaker_state(breaker: text.Payload) -> str:
    is_paused = breaker["state"] == "open" and breaker["probe_at"] is None
    return "paused" if is_paused else str(breaker["state"]).replace("_", "-")


def _breaker_line(breaker: text.Payload, state: str = "") -> str:
    why = f": {breaker['reason']}" if breaker["reason"] else ""
    return f"{breaker['task']} is {state or _breaker_state(breaker)}{why}."


_BREAKERS = Table(
    "breakers",
    "task!, state!, failed=failed_in_row, waiting, opened=opened_at, reason",
    "No task has a circuit breaker, and none is paused.",
    cells={"state": _breaker_state},
)
_NOTE = {"reason": "--note", "strict": CREATE}

breakers = RemoteGroup("breakers", help="Manage the circuit breakers of tasks; pause or resume a task.")
breakers.add("list", "list_breakers", _BREAKERS)
breakers.add("show", "get_breaker", _breaker_line)
breakers.add(
    "pause", "set_breaker", _breaker_line, only="", options=_NOTE, fixed={"state": "open"},
    short_help="Pause a task.",
    help='Pause TASK: none of its jobs starts until it is resumed. Running jobs continue.\n\n\b\n  dataloader breakers '
    'pause load.sales --note "the warehouse is being moved"',
)  # fmt: skip
breakers.add(
    "resume", "set_breaker", lambda breaker: _breaker_line(breaker, "resumed"), only="", options=_NOTE,
    fixed={"state": "closed"}, short_help="Resume a task.",
    help="Resume TASK: close its breaker, whether attempts or a person have opened it.",
)  # fmt: skip
breakers.add("delete", "delete_breaker", "The breaker of {task} is deleted.")


@breakers.command("set", operation="set_breaker", only="failures window_sec resume_sec", options={"strict": CREATE})
def set_breaker(service: RemoteService, *, task: str, strict: bool | None, **fields: Any) -> None:
    """Change when the breaker of TASK opens, and when one job is tried after that.

    \b
      dataloader breakers set load.sales --failures 5 --resume 300
    """
    if not any(fields.values()):
        raise click.UsageError("nothing to set; see --help for the options")
    service.perform("set_breaker", _breaker_line, task=task, strict=strict, **fields)


COMMANDS = {"Queues and workers": (limits, breakers)}
