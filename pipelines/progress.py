"""What a generator may yield as progress, and what is refused: a row of data that would land in the job's progress.

A yielded mapping is progress if it has a number under `processed` or `percent`, or no other keys than the words below,
or if it is a plain dict of a few numbers, such as `{"loaded": 500, "skipped": 3}`. A row has texts, dates or `None`, or
is of a class of its cursor's; a few plain numbers cannot be known from a row, and are let through.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

WORDS = frozenset({
    "processed", "done", "total", "percent", "unit", "counts", "stage", "step", "steps", "page", "pages", "rows",
    "message",
})  # fmt: skip
_NUMBERS = ("processed", "percent")
_MAX_NUMBERS = 8
_MAX_KEYS, _MAX_KEY_LENGTH = 5, 40


class NotProgress(TypeError):
    """A generator has yielded data. What it yields is written nowhere, so the job has not done its work."""

    permanent = True  # the same try again would end the same way


def check_progress(step: Any) -> None:
    """Raises NotProgress for a mapping that is no progress, and for a sequence such as a row of a cursor."""
    if isinstance(step, Mapping):
        if any(_is_number(step.get(name)) for name in _NUMBERS) or WORDS.issuperset(step) or _is_tally(step):
            return
    elif not isinstance(step, Sequence) or isinstance(step, str | bytes | bytearray):
        return
    raise NotProgress(
        f"the pipeline has yielded {_name(step)}, which is no progress, and nothing else that a generator yields is"
        " kept: write rows where they belong, and yield Progress(done, total), a mapping with a number under"
        " 'processed' such as {'processed': 3, 'total': 10}, or nothing"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_tally(step: Mapping[Any, Any]) -> bool:
    return type(step) is dict and len(step) <= _MAX_NUMBERS and all(_is_number(value) for value in step.values())


def _name(step: Any) -> str:
    """Its type and its keys: no value, for a value may be private."""
    kind = type(step).__name__
    if not isinstance(step, Mapping):
        return f"a {kind}"
    keys = [str(key)[:_MAX_KEY_LENGTH] for key in step]
    return f"a {kind} with the keys {', '.join(keys[:_MAX_KEYS])}{' …' if len(keys) > _MAX_KEYS else ''}"
