"""Checks what a generator yields as progress. A row of data is refused: it would be stored as the job's progress.

A mapping is progress if it has a number under `processed` or `percent`, or only keys of PROGRESS_KEYS, or if it is a
dict of a few numbers, such as `{"loaded": 500, "skipped": 3}`. Rows have texts, dates or None, or a class of their
cursor; a row of a few numbers looks like progress and is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

PROGRESS_KEYS = frozenset({
    "processed", "done", "total", "percent", "unit", "counts", "stage", "step", "steps", "page", "pages", "rows",
    "message",
})  # fmt: skip
_NUMBER_KEYS = ("processed", "percent")
_MAX_NUMBERS = 8
_MAX_KEYS, _MAX_KEY_LENGTH = 5, 40


class NotProgress(TypeError):
    """A generator yielded data. Nothing stores it, so the job did not do its work."""

    permanent = True  # a retry would fail again


def check_progress(value: Any) -> None:
    """Raises NotProgress for other mappings, and for sequences such as a cursor's rows."""
    if isinstance(value, Mapping):
        if (
            any(_is_number(value.get(name)) for name in _NUMBER_KEYS)
            or PROGRESS_KEYS.issuperset(value)
            or _is_number_mapping(value)
        ):
            return
    elif not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return
    raise NotProgress(
        f"the pipeline has yielded {_describe(value)}, which is no progress, and nothing else that a generator yields is"
        " kept: write rows where they belong, and yield Progress(done, total), a mapping with a number under"
        " 'processed' such as {'processed': 3, 'total': 10}, or nothing"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_number_mapping(candidate: Mapping[Any, Any]) -> bool:
    return (
        type(candidate) is dict
        and len(candidate) <= _MAX_NUMBERS
        and all(_is_number(value) for value in candidate.values())
    )


def _describe(value: Any) -> str:
    """The type and keys; no values, which may be private."""
    kind = type(value).__name__
    if not isinstance(value, Mapping):
        return f"a {kind}"
    keys = [str(key)[:_MAX_KEY_LENGTH] for key in value]
    return f"a {kind} with the keys {', '.join(keys[:_MAX_KEYS])}{' …' if len(keys) > _MAX_KEYS else ''}"
