"""What is written on the command line in words of its own: times, objects, pairs, and which jobs are meant."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from app.cli.service import usage
from app.queue.job import Status

_STATUSES = ", ".join(Status)
UNITS = {"s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}
SPAN = re.compile(r"in\s+((?:\d+\s*[smhd]\s*)+)", re.IGNORECASE)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def parse_object(told: str) -> dict[str, Any]:
    try:
        value = json.loads(told, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError('a JSON object would do, such as {"sleep1": 1}')
    return value


def parse_pair(told: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON if it can be read as JSON, else text."""
    name, equals, value = told.partition("=")
    if not name or not equals:
        raise ValueError(f"{told!r} is not NAME=VALUE, such as date=2026-11-21")
    try:
        return name, json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return name, value


def parse_moment(told: str) -> datetime:
    """An RFC 3339 time, or "in 1h 30m" counted from this machine's clock."""
    span = SPAN.fullmatch(told.strip())
    try:
        if span:
            parts = re.findall(r"(\d+)\s*([smhd])", span[1].lower())
            return datetime.now(UTC) + sum((int(count) * UNITS[unit] for count, unit in parts), timedelta())
        at = datetime.fromisoformat(told.strip())
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f'{told!r} is no time; write 2026-11-21T06:00:00+03:00, or "in 5m"') from None
    raise ValueError(f"{told!r} has no zone; write it with one, such as {at.isoformat()}+03:00")


def filters(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which jobs are meant."""
    for option in reversed(
        (
            click.option("--queue", help="Only jobs of this queue."),
            click.option("--status", help=f"Only jobs with one of these, separated by commas: {_STATUSES}."),
            click.option("--task", help="Only jobs of this task."),
            click.option("--lock-key", help="Only jobs with this key."),
            click.option("--partition-key", help="Only jobs of this slice of work."),
            click.option("--producer", help="Only jobs that this one asked for."),
            click.option(
                "--created-from",
                type=usage(parse_moment),
                help="Only jobs made then or later (RFC 3339).",
            ),
            click.option("--created-to", type=usage(parse_moment), help="Only jobs made before this time."),
            click.option("--finished-from", type=usage(parse_moment), help="Only jobs that ended then or later."),
            click.option("--finished-to", type=usage(parse_moment), help="Only jobs that ended before this time."),
            click.option("--text", "words", help="Only jobs with this text in their args or error."),
        )
    ):
        command = option(command)
    return command


def filter_of(told: Mapping[str, Any]) -> dict[str, Any]:
    """What the options said, as the API names it."""
    return {("text" if name == "words" else name): value for name, value in told.items() if value is not None}
