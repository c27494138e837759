"""Parsers of option values, and the options that several commands share: JSON, a task's arguments, filters of jobs."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, Any, TypeVar
from uuid import UUID

import click

from dataloader.app.queue.job import WAIT_STATES, Status
from dataloader.app.wording import parse_duration

T = TypeVar("T")
_PART_OF_ID = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}|[0-9a-f]{4,8}(?:…|\.{2,3})[0-9a-f]{4,12}")
POSITIVE, NOT_NEGATIVE, TEXT_FILE = click.IntRange(min=1), click.IntRange(min=0), click.File("r", encoding="utf-8")
AS_JSON_META_KEY = "dataloader.app.cli.as_json"  # in the context's meta: print errors as JSON
ARGS_META_KEY = "dataloader.app.cli.args"  # likewise: the options that gave arguments, each with the names of these
_UNIT_BYTES = {"k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([kmg])i?b?", re.IGNORECASE)


def option_type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """A parser as the type of an option: its ValueError is the user's to read."""

    def parsed(raw: str) -> T:
        try:
            return parse(raw)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return parsed


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def parse_object(raw: str) -> dict[str, Any]:
    try:
        value = json.loads(raw, parse_constant=_reject_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError('a JSON object is needed, such as {"sleep1": 1}')
    return value


def parse_pair(raw: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON if it can be read as JSON, else text."""
    name, equals, value = raw.partition("=")
    if not name or not equals:
        raise ValueError(f"{raw!r} is not NAME=VALUE, such as date=2026-11-21")
    try:
        return name, json.loads(value, parse_constant=_reject_constant)
    except (ValueError, RecursionError):
        return name, value


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


def parse_time(raw: str) -> datetime:
    """An RFC 3339 time, in the zone of the terminal if it names none, or "in 1h 30m" from now."""
    word, _, duration = raw.strip().partition(" ")
    try:
        if word.lower() == "in" and duration.strip()[-1:].isalpha():  # "in 5" may mean minutes
            return datetime.now(UTC) + timedelta(seconds=parse_duration(duration))
        return datetime.fromisoformat(raw.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f'{raw!r} is not a time; write 2026-11-21T06:00:00+03:00, 2026-11-21 06:00 (in your zone), or "in 5m"'
        ) from None


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


TIME, OBJECT, RATE = option_type(parse_time), option_type(parse_object), option_type(parse_rate)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    def store_flag(ctx: click.Context, _param: click.Parameter, value: bool) -> bool:
        ctx.meta[AS_JSON_META_KEY] = value
        return value

    option = click.option(
        "--json", "as_json", is_flag=True, callback=store_flag, help="Answer in JSON, for programs; errors too."
    )
    return option(command)


def parse_size(raw: str) -> int:
    """Bytes of a text like 800MB or 4 GB, by 1024."""
    found = _SIZE.fullmatch(raw.strip())
    if found is None or (size := int(float(found[1]) * _UNIT_BYTES[found[2].lower()])) < 1:
        raise ValueError(f"{raw!r} is not a size; one looks like 800MB or 4GB")
    return size


class Seconds(click.ParamType[float]):
    """Seconds as a number, or a text with units such as 90s, 5m or 1h 30m."""

    name = "duration"

    def __init__(self, min_sec: float = 0.0, *, min_open: bool = False) -> None:
        self._min_sec, self._min_open = min_sec, min_open

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if seconds < self._min_sec or (self._min_open and seconds == self._min_sec):
            bound = f"more than {self._min_sec:g}" if self._min_open else f"{self._min_sec:g} or more"
            self.fail(f"{value!r} is not {bound} seconds", param, ctx)
        return int(seconds) if seconds.is_integer() else seconds


@dataclass(frozen=True)
class PartOfId:
    """The first digits of a job's id, or its short form, `01a2…f554`: the service knows the whole."""

    text: str


class JobId(click.ParamType[UUID | PartOfId]):
    """A job's id, or a part that no other job's id has."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> UUID | PartOfId:
        part = parse_job_id(str(value))
        if part is None:
            self.fail(f"{value!r} is no job id; eight or more of its first digits are enough", param, ctx)
        return part


def parse_job_id(text: str) -> UUID | PartOfId | None:
    """Return the id, or a part of one, or None for another text."""
    try:
        return UUID(text)
    except ValueError:
        is_part = _PART_OF_ID.fullmatch(text.strip().lower()) is not None
        return PartOfId(text.strip()) if is_part else None


class RenamedOption(click.Option):
    """An option that also accepts the name that it had in an earlier release."""

    def __init__(self, *args: Any, former: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.former = former

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        opts, self.opts = self.opts, [*self.opts, self.former]
        super().add_to_parser(parser, ctx)
        self.opts = opts


SECONDS, DURATION = Seconds(), Seconds(1)


def limit_option_to(maximum: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """--limit, up to what the API lists at once."""
    return click.option(
        "--limit", type=click.IntRange(1, maximum), default=50, show_default=True, help="List at most this many."
    )


limit_option = limit_option_to(1000)


def args_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command --arg, --args and --args-file, and the merged arguments as `args`."""

    @click.option("--arg", "pairs", type=option_type(parse_pair), multiple=True,
                  help="One argument; may be repeated. Its value is JSON if it can be read so, else text.")  # fmt: skip
    @click.option("--args", "args_text", type=OBJECT, help="Arguments as a JSON object.")
    @click.option("--args-file", type=TEXT_FILE,
                  help="A file with them as a JSON object; - is stdin. --args overrides it, --arg both.")  # fmt: skip
    @functools.wraps(command)
    def with_args(
        *, pairs: Sequence[tuple[str, Any]], args_text: dict[str, Any] | None, args_file: IO[str] | None, **options: Any
    ) -> None:
        try:
            from_file = {} if args_file is None else parse_object(args_file.read())
        except ValueError as error:
            raise click.BadParameter(f"{args_file and args_file.name}: {error}", param_hint="--args-file") from error
        sources = [("--args-file", from_file), ("--args", args_text or {}), ("--arg", dict(pairs))]
        click.get_current_context().meta[ARGS_META_KEY] = [(name, [*given]) for name, given in sources if given]
        command(args={**from_file, **(args_text or {}), **dict(pairs)}, **options)

    return with_args


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that select jobs."""
    options = (
        click.option("--job-id", help="Only jobs with one of these ids, separated by commas."),
        click.option("--idempotency-key", help="Only the job with this idempotency key."),
        click.option("--queue", help="Only jobs in this queue."),
        click.option("--status", help=f"Only jobs with one of these, separated by commas: {', '.join(Status)}."),
        click.option("--wait-state", type=click.Choice(WAIT_STATES), help="Only queued jobs that wait like this."),
        click.option("--task", help="Only jobs of this task."),
        click.option("--lock-key", help="Only jobs with this lock key."),
        click.option("--partition-key", help="Only jobs with this partition key."),
        click.option("--producer", help="Only jobs requested by this producer."),
        click.option("--consumer-group", help="Only jobs of this consumer group."),
        click.option("--tag", help="Only jobs with this tag."),
        click.option("--fingerprint", help="Only jobs whose last error has this fingerprint; see `failures`."),
        click.option(
            "--warnings",
            flag_value=True,
            default=None,
            type=bool,
            help="Only jobs that succeeded with data checks that did not pass.",
        ),
        click.option("--created-from", type=TIME, help="Only jobs created then or later."),
        click.option("--created-to", type=TIME, help="Only jobs created before this time."),
        click.option("--finished-from", type=TIME, help="Only jobs that ended then or later."),
        click.option("--finished-to", type=TIME, help="Only jobs that ended before this time."),
        click.option("--text", help="Only jobs with this text in their args or error."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def parse_queue(raw: str) -> dict[str, Any]:
    """Parse QUEUE:THREADS."""
    queue, _, threads = raw.rpartition(":")
    if not queue or not threads.isdecimal():
        raise ValueError(f"{raw!r} is not QUEUE:THREADS, such as etl.default:2")
    return {"queue": queue, "concurrency": int(threads)}


def parse_label(raw: str) -> tuple[str, bool | str]:
    """Parse NAME, NAME=true, NAME=false or NAME=TEXT."""
    name, equals, value = raw.partition("=")
    if not name or (equals and not value):
        raise ValueError(f"{raw!r} is neither NAME nor NAME=VALUE, such as gpu or zone=north")
    return name, {"": True, "true": True, "false": False}.get(value, value)
