"""References to secrets in args, `{"$secret": "name"}`. Only the worker that runs the job reads the secret."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipelines.arg_schema import ArgError, format_path

KEY = "$secret"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", re.ASCII)
_MAX_DEPTH = 200


class BadReference(ValueError):
    """A mapping with `$secret` that is no valid reference; the message says where."""


def secret_name(value: Any) -> str | None:
    """Return the name in a reference, or None for another value. Raises BadReference."""
    if not isinstance(value, Mapping) or KEY not in value:
        return None
    name = value[KEY]
    if len(value) != 1:
        raise BadReference(f'{{"{KEY}": …}} has no other keys; here it has {len(value) - 1} more')
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadReference(f'the name in {{"{KEY}": …}} is of letters, digits, _, - and ., up to 100 of them')
    return name


def find_references(args: Any) -> list[tuple[str, str]]:
    """Return the path and the secret's name of each reference. Raises BadReference."""
    return list(_walk(args, ()))


def _walk(value: Any, steps: tuple[str | int, ...]) -> Iterator[tuple[str, str]]:
    try:
        name = secret_name(value)
    except BadReference as error:
        raise BadReference(f"{format_path(steps) or 'args'}: {error}") from None
    if name is not None:
        yield format_path(steps), name
    elif len(steps) < _MAX_DEPTH:
        items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for step, item in items:
            yield from _walk(item, (*steps, step))


def substitute(args: Any, get_secret: Callable[[str], str]) -> Any:
    """Return args with each reference replaced by the value of its secret."""
    name = secret_name(args)
    if name is not None:
        return get_secret(name)
    if isinstance(args, Mapping):
        return {key: substitute(value, get_secret) for key, value in args.items()}
    if isinstance(args, list):
        return [substitute(value, get_secret) for value in args]
    return args


def outside_refs(errors: list[ArgError], args: Mapping[str, Any]) -> list[ArgError]:
    """Drop errors that a reference may have caused: only the worker knows the value. An invalid reference is an error."""
    try:
        paths = [path for path, _ in find_references(args)]
    except BadReference as error:
        return [*errors, ("", str(error))]
    if not paths:
        return errors
    return [(at, message) for at, message in errors if at and not any(_is_within(at, path) for path in paths)]


def _is_within(location: str, ancestor: str) -> bool:
    return location == ancestor or location.startswith((f"{ancestor}.", f"{ancestor}["))
