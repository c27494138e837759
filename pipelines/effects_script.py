"""SQL that fences the transaction of a program which is not ours, such as psql: what `effects.TargetRow` does for
connections of Python.

The texts hold for either setting of standard_conforming_strings and for each encoding of a client: they are ASCII but
for the name of the table.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple
from uuid import UUID

from dataloader.pipelines.effects import encode_position
from dataloader.pipelines.json_values import encode_strictly
from dataloader.pipelines.target_transactions import MAX_RESULT_BYTES

_TABLE_NAME = re.compile(r'(?:[a-z_][a-z0-9_]*|"(?:[^"\0]|"")+")\.(?:[a-z_][a-z0-9_]*|"(?:[^"\0]|"")+")')
_MAX_FENCE = 2**63 - 1
_HAS_ROW = "job_id = '{job_id}' AND run_id = '{run_id}' AND fence = {fence}"
_BEGIN = """\
BEGIN;
{require}"""
_REQUIRE = """\
DO {tag}
BEGIN
    PERFORM FROM {table} WHERE {has_row} FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING MESSAGE = {message}, HINT = {hint}, ERRCODE = 'raise_exception';
    END IF;
END {tag};
"""
_WRITE = """\
DO {tag}
BEGIN
    UPDATE {table}
       SET position = coalesce({position}, position), result = {result}, done_at = {done_at}, at = clock_timestamp()
     WHERE {has_row};
    IF NOT FOUND THEN
        RAISE EXCEPTION USING MESSAGE = {message}, HINT = {hint}, ERRCODE = 'raise_exception';
    END IF;
END {tag};
"""
_REFUSE = """\
DO {tag}
BEGIN
    RAISE EXCEPTION USING MESSAGE = {message}, ERRCODE = 'raise_exception';
END {tag};
"""


class ProgramRow(NamedTuple):
    """The row of the job whose attempt has started the program."""

    job_id: UUID
    run_id: UUID
    fence: int
    table: str  # with its schema, quoted


def parse_row(job_id: str, run_id: str, fence: str, table: str) -> ProgramRow:
    """Raises ValueError."""
    if not re.fullmatch(r"\d{1,19}", fence, re.ASCII) or int(fence) > _MAX_FENCE:
        raise ValueError(f"DL_FENCE is {fence!r}, which is no fence")
    if not _TABLE_NAME.fullmatch(table):
        raise ValueError(f"DL_EFFECTS_TABLE is {table!r}, which is no quoted name of a table with its schema")
    try:
        return ProgramRow(UUID(job_id), UUID(run_id), int(fence), table)
    except ValueError:
        raise ValueError(f"DL_JOB_ID and DL_RUN_ID are {job_id!r} and {run_id!r}, which are no ids") from None


def begin_script(row: ProgramRow) -> str:
    """Begin a transaction that has locked the row, so that the next attempt waits for its end."""
    return _BEGIN.format(require=_require(row))


def end_script(row: ProgramRow, *, position: str | None, is_final: bool, result: str | None) -> str:
    """Write the position (JSON) or that there is nothing left to do, and commit."""
    if position is None and not is_final:
        return f"{_require(row)}COMMIT;\n"
    values = {
        "position": "NULL" if position is None else f"{quote_literal(position)}::jsonb",
        "result": "NULL" if result is None else f"{quote_literal(result)}::jsonb",
        "done_at": "clock_timestamp()" if is_final else "NULL",
    }
    return f"{_fill(_WRITE, row, **values)}COMMIT;\n"


def refusal_script(message: str) -> str:
    """A transaction that has failed: what follows is refused, and nothing is written without the fence, whether or not
    the program that executes this stops at an error."""
    text = _REFUSE.replace("{message}", quote_literal(message))
    text = text.replace("{tag}", _tag_for(text))
    return f"BEGIN;\n{text}"


def parse_position(text: str) -> str:
    """Return it as JSON in one line. Raises ValueError."""
    return encode_position(_parse_json("the position", text))


def parse_result(text: str) -> str:
    """Likewise for a result."""
    encoded = encode_strictly(_parse_json("the result", text))
    size = len(encoded.encode())
    if size > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {size:,} bytes of JSON; at most {MAX_RESULT_BYTES:,} are kept")
    return encoded


def quote_literal(text: str) -> str:
    """A literal of ASCII, for either setting of standard_conforming_strings."""
    escaped = "".join(_ESCAPES.get(char, char) if char.isascii() else _escape(char) for char in text)
    return f"E'{escaped}'"


_ESCAPES = {"\\": "\\\\", "'": "''", "\n": "\\n", "\r": "\\r"}


def _escape(char: str) -> str:
    return f"\\U{ord(char):08X}"


def _parse_json(name: str, text: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_parse_finite_float)
        encode_strictly(value)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{name} is not JSON that can be kept: {error}") from error
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is too large")
    return number


def _require(row: ProgramRow) -> str:
    return _fill(_REQUIRE, row)


def _fill(template: str, row: ProgramRow, **values: str) -> str:
    message = (
        f"another attempt has job {row.job_id} now: run {row.run_id}, fence {row.fence}, may not write here any more"
    )
    named = {
        "table": row.table,
        "has_row": _HAS_ROW.format(job_id=row.job_id, run_id=row.run_id, fence=row.fence),
        "message": quote_literal(message),
        "hint": quote_literal("Nothing of this transaction is committed. The attempt that owns the job does the work."),
        **values,
    }
    tag = _tag_for(" ".join(named.values()))
    return template.format(tag=tag, **named)


def _tag_for(text: str) -> str:
    """A dollar quote that is not in the text."""
    return next(tag for tag in (f"$dataloader{n or ''}$" for n in range(len(text) + 1)) if tag not in text)
