"""`{"$secret": "name"}`: stands in args where a secret is to be, which only the worker that runs the job puts there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipelines.fit import FieldFault, path

WORD = "$secret"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_DEEPEST = 200


class BadReference(ValueError):
    """What looks like a reference and is none; the message says where."""


def name_of(value: Any) -> str | None:
    """The secret's name, of a reference. Raises BadReference for one that is spoilt: what it means is not guessed."""
    if not isinstance(value, Mapping) or WORD not in value:
        return None
    name = value[WORD]
    if len(value) != 1:
        raise BadReference(f'{{"{WORD}": …}} stands alone, and here it has {len(value) - 1} more beside it')
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadReference(f'the name in {{"{WORD}": …}} is of letters, digits, _, - and ., up to 100 of them')
    return name


def references(args: Any) -> list[tuple[str, str]]:
    """(where, name of the secret) of each. Raises BadReference, saying where."""
    return [(where, name) for where, name in _walk(args, ())]


def _walk(value: Any, steps: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
    try:
        name = name_of(value)
    except BadReference as error:
        raise BadReference(f"{path(steps) or 'args'}: {error}") from None
    if name is not None:
        yield path(steps), name
    elif len(steps) < _DEEPEST:
        parts = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for step, part in parts:
            yield from _walk(part, (*steps, step))


def put_in(args: Any, read: Callable[[str], str]) -> Any:
    """The same args with each reference replaced by what `read` gives for its name."""
    name = name_of(args)
    if name is not None:
        return read(name)
    if isinstance(args, Mapping):
        return {key: put_in(value, read) for key, value in args.items()}
    if isinstance(args, list):
        return [put_in(value, read) for value in args]
    return args


def not_about(faults: list[FieldFault], args: Mapping[str, Any]) -> list[FieldFault]:
    """Without those that a reference has caused, or may have: what is to stand there is known to the worker alone. One
    that is spoilt is a fault of its own."""
    try:
        places = [where for where, _ in references(args)]
    except BadReference as error:
        return [*faults, ("", str(error))]
    if not places:
        return faults
    return [fault for fault in faults if fault[0] and not any(_within(fault[0], place) for place in places)]


def _within(where: str, place: str) -> bool:
    return where == place or where.startswith((f"{place}.", f"{place}["))
