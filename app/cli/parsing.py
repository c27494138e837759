"""Types of option values, and the options that several commands share: JSON, a task's arguments."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, Any, TypeVar
from uuid import UUID

import click

from dataloader.app.wording import parse_duration

T = TypeVar("T")
_PART_OF_ID = re.compile(r"[0-9a-f]{8}[0-9a-f-]{0,28}|[0-9a-f]{4,8}(?:…|\.{2,3})[0-9a-f]{4,12}")
AS_JSON_META_KEY = "dataloader.app.cli.as_json"  # in the context's meta: print errors as JSON
ARGS_META_KEY = "dataloader.app.cli.args"  # likewise: the options that gave arguments, each with the names of these
DEFAULT_LIMIT = 50  # of lists
_MAX_SEC = 100 * 365.25 * 86_400  # of a duration; the clock of the system takes little more
DEFAULT_QUEUE = "etl.default"  # of a job whose task has none


class Option(click.Option):
    """An option whose help shows the kind of its value, else the last word of its name. `former`: its earlier names."""

    def __init__(self, *args: Any, former: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._former = former
        if self.metavar is None and not self.is_flag and not isinstance(self.type, click.Choice):
            kind = _METAVARS.get(type(self.type), self.type.name.upper() if isinstance(self.type, Parsed) else "")
            self.metavar = kind or self.opts[-1].rpartition("-")[2].upper()

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        opts, self.opts = self.opts, [*self.opts, *self._former]
        super().add_to_parser(parser, ctx)
        self.opts = opts


option = functools.partial(click.option, cls=Option)


class Parsed(click.ParamType[T]):
    """The type of an option whose value a function parses; its ValueError is the user's to read."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]  # a default
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_float(raw: str) -> float:
    if math.isinf(value := float(raw)):
        raise ValueError(f"{raw} is beyond the largest number")
    return value


def load_json(raw: str) -> Any:
    """Raises ValueError, also for numbers that cannot be sent as JSON, and RecursionError."""
    return json.loads(raw, parse_constant=_reject_constant, parse_float=_parse_float)


def parse_object(raw: str) -> dict[str, Any]:
    try:
        value = load_json(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError('a JSON object is needed, such as {"sleep1": 1}')
    return value


def read_object(file: IO[str], option_name: str) -> dict[str, Any]:
    """The JSON object of a file. Raises BadParameter."""
    try:
        return parse_object(file.read())
    except ValueError as error:
        raise click.BadParameter(f"{file.name}: {error}", param_hint=option_name) from error


def parse_pair(raw: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON if it can be read as JSON, else text."""
    name, equals, value = raw.partition("=")
    if not name or not equals:
        raise ValueError(f"{raw!r} is not NAME=VALUE, such as date=2026-11-21")
    try:
        return name, load_json(value)
    except (ValueError, RecursionError):
        return name, value


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


def seconds(min_sec: float = 0.0, *, min_open: bool = False) -> Parsed[float]:
    """The type of seconds as a number, or a text with units such as 90s, 5m or 1h 30m."""

    def parse(raw: str) -> float:
        value = parse_duration(raw)
        if value < min_sec or (min_open and value == min_sec):
            bound = f"more than {min_sec:g}" if min_open else f"{min_sec:g} or more"
            raise ValueError(f"{raw!r} is not {bound} seconds")
        if value > _MAX_SEC:
            raise ValueError(f"{raw!r} is more than 100 years")
        return int(value) if value.is_integer() else value

    return Parsed("duration", parse)


@dataclass(frozen=True)
class PartOfId:
    """The first digits of a job's id, or its short form, `01a2…f554`: the service knows the whole."""

    text: str


def parse_job_id(text: str) -> UUID | PartOfId | None:
    """Return the id, or a part of one, or None for another text."""
    try:
        return UUID(text)
    except ValueError:
        is_part = _PART_OF_ID.fullmatch(text.strip().lower()) is not None
        return PartOfId(text.strip()) if is_part else None


def _required_job_id(raw: str) -> UUID | PartOfId:
    if (part := parse_job_id(raw)) is None:
        raise ValueError(f"{raw!r} is no job id; eight or more of its first digits are enough")
    return part


NUMBER, POSITIVE, ID = click.IntRange(min=0), click.IntRange(min=1), click.UUID
TEXT_FILE = click.File("r", encoding="utf-8")
TIME, OBJECT, JOB_ID = Parsed("time", parse_time), Parsed("json", parse_object), Parsed("id", _required_job_id)
SECONDS, DURATION = seconds(), seconds(1)
_METAVARS = {
    click.IntRange: "NUMBER",
    click.FloatRange: "NUMBER",
    click.types.FloatParamType: "NUMBER",
    type(TEXT_FILE): "FILE",
    type(ID): "ID",
}


def _store_json_flag(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    ctx.meta[AS_JSON_META_KEY] = value


json_option = option("--json", is_flag=True, expose_value=False, callback=_store_json_flag,
                     help="Answer in JSON, for programs; errors too.")  # fmt: skip


def args_options(command: Callable[..., T]) -> Callable[..., T]:
    """Give a command --arg, --args and --args-file, and the merged arguments as `args`: None if no option gave any."""

    @option("--arg", "pairs", type=Parsed("name=value", parse_pair), multiple=True,
            help="One argument; may be repeated. Its value is JSON if it can be read so, else text.")  # fmt: skip
    @option("--args", "args_text", type=OBJECT, help="Arguments as a JSON object.")
    @option("--args-file", type=TEXT_FILE,
            help="A file with them as a JSON object; - is stdin. --args overrides it, --arg both.")  # fmt: skip
    @functools.wraps(command)
    def with_args(
        *positional: Any,
        pairs: Sequence[tuple[str, Any]],
        args_text: dict[str, Any] | None,
        args_file: IO[str] | None,
        **options: Any,
    ) -> T:
        from_file = {} if args_file is None else read_object(args_file, "--args-file")
        sources = [("--args-file", from_file), ("--args", args_text or {}), ("--arg", dict(pairs))]
        click.get_current_context().meta[ARGS_META_KEY] = [(name, [*given]) for name, given in sources if given]
        is_given = bool(pairs) or args_text is not None or args_file is not None
        args = {**from_file, **(args_text or {}), **dict(pairs)} if is_given else None
        return command(*positional, args=args, **options)

    return with_args
