"""The row of a job in a target's table `dl_effects`, which fences what its attempts write there. Portable.

The fact is kept in the target, in the target's own transactions, so that it is true whatever dies between two
statements; docs/targets.md has the protocol. The connection is one of psycopg2 or psycopg 3.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date, time
from typing import Any, NamedTuple
from uuid import UUID

from dataloader.pipelines.json_values import encode_strictly
from dataloader.pipelines.reported_state import copy_as_json
from dataloader.pipelines.retry import Fail, Snooze

MAX_POSITION_BYTES = 64_000  # of JSON
MAX_WAIT_SEC = 10  # for a transaction of the previous attempt
RELEASE_SEC = 30.0  # before the job starts again when that was not enough
STILL_OPEN = "the previous attempt's transaction is still open in target"  # begins what such a job says
_COLUMNS = {
    "job_id": "uuid",
    "fence": "bigint",
    "run_id": "uuid",
    "position": "jsonb",
    "result": "jsonb",
    "done_at": "timestamp with time zone",
    "at": "timestamp with time zone",
}
CREATE_TABLE = """\
CREATE TABLE IF NOT EXISTS dl_effects (
    job_id   uuid        PRIMARY KEY,
    fence    bigint      NOT NULL,  -- which attempt of the job may write: a later one has a higher number
    run_id   uuid        NOT NULL,  -- that attempt
    position jsonb,                 -- where the next attempt resumes
    result   jsonb,                 -- of the attempt that finished
    done_at  timestamptz,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
)"""
_LOCK_NUMBER = 1684828535  # of the transaction that creates the table
_FIND_TABLE = """
SELECT current_schema(), quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
       AND has_table_privilege(c.oid, 'UPDATE'),
       (SELECT json_object_agg(a.attname, format_type(a.atttypid, NULL))
          FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)::text,
       EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
                WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indnkeyatts = 1
                  AND i.indpred IS NULL AND a.attname = 'job_id'),
       current_schema() IS NOT NULL AND has_schema_privilege(current_schema(), 'CREATE'), current_user,
       quote_ident(current_user)
  FROM (VALUES (to_regclass('dl_effects'))) AS t (oid)
       LEFT JOIN pg_class c ON c.oid = t.oid
       LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
"""
_INSERT_ROW = """
INSERT INTO {table} (job_id, fence, run_id) VALUES (%s::uuid, 0, %s::uuid) ON CONFLICT (job_id) DO NOTHING
"""
_LOCK_ROW = """
SELECT fence, position::text, result::text, done_at IS NOT NULL FROM {table} WHERE job_id = %s::uuid FOR UPDATE
"""
_RAISE_FENCE = """
UPDATE {table} SET fence = %s, run_id = %s::uuid, at = clock_timestamp() WHERE job_id = %s::uuid
"""
_REQUIRE_FENCE = """
SELECT txid_current() FROM {table} WHERE job_id = %s::uuid AND run_id = %s::uuid AND fence = %s FOR UPDATE NOWAIT
"""
_WRITE_POSITION = """
UPDATE {table}
   SET position = coalesce(%s::jsonb, position), result = %s::jsonb, done_at = CASE WHEN %s THEN clock_timestamp() END,
       at = clock_timestamp()
 WHERE job_id = %s::uuid AND run_id = %s::uuid AND fence = %s
RETURNING txid_current()
"""
LOCK_NOT_AVAILABLE = "55P03"
# Of CREATE TABLE: the role may not, or another process has created it meanwhile.
_EXPECTED_ERRORS = ("42501", "42P07", "23505", "3F000")


ENDED_BY_BLOCK = (
    "the block of ctx.transaction() has ended its transaction by itself, with COMMIT or ROLLBACK: what it has written"
    " does not commit together with the position"
)


class DrawnFence(NamedTuple):
    """What the queue gives out."""

    number: int  # higher than those of all earlier claims of the job
    former: int = 0  # of the last claim of the job in this target, if it had a fence there


class TargetState(NamedTuple):
    """What a target knows of a job when an attempt has claimed its row there."""

    problem: str | None = None  # why its transactions are not fenced; None: they are
    position: Any = None
    is_done: bool = False  # an attempt has finished the work
    result: Any = None  # of that attempt
    former_fence: int = 0  # that the row had before
    was_claimed: bool = False  # by an attempt before, as the queue knows; the row may be gone since


class FenceLost(Exception):
    """A later attempt of the job has claimed the row."""


class EffectsTable:
    """The table of one target, on one connection."""

    def __init__(self, connection: Any, target: str) -> None:
        self.connection, self.target = connection, target
        self.name: str | None = None  # with its schema, quoted; None: not fenced
        self.problem: str | None = None  # the fact, and the remedy
        self.remedy = ""

    def find(self) -> None:
        """Find the table, or create it where the role may. Raises Fail for a table of another shape."""
        if not self.find_existing():
            self._create()
            if not self.find_existing():
                self._set_problem(f"target {self.target!r} has no table dl_effects, and creating it did not succeed")

    def _create(self) -> None:
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{MAX_WAIT_SEC}s'")
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK_NUMBER])
                cursor.execute(CREATE_TABLE)
            self.connection.commit()
        except Exception as error:
            self.connection.rollback()
            if sqlstate_of(error) not in _EXPECTED_ERRORS:
                raise

    def find_existing(self) -> bool:
        """Find the table without creating it; return False if it does not exist and the role may create it. Raises Fail
        for a table of another shape."""
        with self.connection.cursor() as cursor:
            cursor.execute(_FIND_TABLE)
            schema, name, may_write, columns, has_key, may_create, role, quoted_role = cursor.fetchone()
        self.connection.rollback()
        if name is None:
            if may_create:
                return False
            where = "on its search_path" if schema is None else f"in its schema {schema}"
            self._set_problem(
                f"target {self.target!r} has no table dl_effects {where}, and its role {role} may not create one"
            )
        elif problem := _shape_problem(json.loads(columns), has_key):
            raise Fail(
                f"the table {name} of target {self.target!r} is not the one that keeps what attempts have written: "
                f"{problem}; rename it, or compare it with dataloader targets schema"
            )
        elif not may_write:
            self._set_problem(
                f"the role {role} of target {self.target!r} may not read and write the table {name}",
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO {quoted_role}",
            )
        else:
            self.name = name
        return True

    def _set_problem(self, fact: str, remedy: str = "") -> None:
        self.remedy = remedy or f"dataloader targets schema {shlex.quote(self.target)} | psql"
        self.problem = f"{fact}; " + (self.remedy if remedy else f"its owner creates it with: {self.remedy}")


def _shape_problem(columns: Mapping[str, str], has_key: bool) -> str | None:
    for name, kind in _COLUMNS.items():
        if name not in columns:
            return f"it has no column {name}"
        if columns[name] != kind:
            return f"its column {name} is {columns[name]}, not {kind}"
    return None if has_key else "job_id is not its primary key"


class TargetRow:
    """The row of one job, as one of its attempts sees it. Its connection is not in a transaction between the calls of
    `claim`, `begin` and `end`, but for that which `begin` opens."""

    def __init__(self, table: EffectsTable, job_id: UUID, run_id: UUID) -> None:
        self.table = table
        self.fence = 0
        self._transaction_id = 0
        self._job_id, self._run_id = str(job_id), str(run_id)

    def claim(self, draw_fence: Callable[[], DrawnFence]) -> TargetState:
        """Raise the fence, so that no earlier attempt commits any more, and return where to resume.

        `draw_fence` asks the queue, which knows whether this attempt owns the job, while the row is locked: so the row
        can be claimed neither by an attempt that has lost its job, nor made once more after it was deleted. A
        transaction of the previous attempt holds the row; it is waited for. Raises Snooze when that takes too long, and
        FenceLost.
        """
        if self.table.name is None:
            return TargetState(self.table.problem)
        connection = self.table.connection
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute(f"SET LOCAL lock_timeout = '{MAX_WAIT_SEC}s'")
                state = self._lock(cursor)
                drawn = draw_fence()
                self.fence = drawn.number
                if state is None:
                    raise self._unusable()
                if state.former_fence >= self.fence:
                    raise FenceLost(
                        f"the row in target {self.table.target!r} has the fence {state.former_fence}, and"
                        f" the queue gives out {self.fence}"
                    )
                cursor.execute(self._sql(_RAISE_FENCE), [self.fence, self._run_id, self._job_id])
                if cursor.rowcount != 1:
                    raise self._unusable()
            connection.commit()
        except BaseException as error:
            with suppress(Exception):
                connection.rollback()
            if sqlstate_of(error) == LOCK_NOT_AVAILABLE:
                raise Snooze(RELEASE_SEC, f"{STILL_OPEN} {self.table.target!r}") from error
            raise
        return state._replace(was_claimed=drawn.former > 0)

    def _unusable(self) -> RuntimeError:
        return RuntimeError(
            f"the row of this job in {self.table.name} of target {self.table.target!r} cannot be read and written: is"
            " there row security, or a trigger?"
        )

    def _lock(self, cursor: Any) -> TargetState | None:
        """Make the row unless it exists, and lock it. None: it cannot be seen."""
        cursor.execute(self._sql(_INSERT_ROW), [self._job_id, self._run_id])
        cursor.execute(self._sql(_LOCK_ROW), [self._job_id])
        row = cursor.fetchone()
        if row is None:
            return None
        fence, position, result, is_done = row
        return TargetState(None, _load(position), is_done, _load(result), int(fence))

    def begin(self) -> None:
        """Lock the row until the end of the transaction that this opens: the next attempt waits for that end. Raises
        FenceLost, and an error of the driver with LOCK_NOT_AVAILABLE while another session has the lock."""
        if self.table.name is not None:
            with self.table.connection.cursor() as cursor:
                self._transaction_id = self._require_fence(cursor)

    def end(self, *, position: str | None = None, is_final: bool = False, result: str | None = None) -> None:
        """Write in the same transaction, right before its commit, where the next attempt resumes, or that there is
        nothing left to do. All values are JSON. Raises FenceLost."""
        if self.table.name is None:
            return
        with self.table.connection.cursor() as cursor:
            if position is None and not is_final:
                transaction_id = self._require_fence(cursor)  # a rollback within has unlocked the row
            else:
                cursor.execute(self._sql(_WRITE_POSITION), [position, result, is_final, *self._key])
                transaction_id = _value_of(cursor.fetchone())
        if transaction_id != self._transaction_id:
            raise RuntimeError(ENDED_BY_BLOCK)

    def _sql(self, text: str) -> str:
        return text.replace("{table}", str(self.table.name).replace("%", "%%"))

    @property
    def _key(self) -> list[Any]:
        return [self._job_id, self._run_id, self.fence]

    def _require_fence(self, cursor: Any) -> int:
        cursor.execute(self._sql(_REQUIRE_FENCE), self._key)
        return _value_of(cursor.fetchone())


def _value_of(row: Any) -> int:
    if row is None:
        raise FenceLost
    return int(row[0])


def encode_position(position: Any) -> str:
    """Return it as JSON, with dates and numbers of all kinds as texts. Raises ValueError."""
    _require_json(position)
    return encode_strictly(copy_as_json(position, MAX_POSITION_BYTES, "this position"))


def _require_json(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _require_json(key)
            _require_json(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _require_json(item)
    elif not (value is None or isinstance(value, (bool, int, float, str, date, time, UUID)) or _is_number(value)):
        raise ValueError(
            f"a position is JSON: texts, numbers, dates, lists, and objects of these, not a {type(value).__name__}"
        )


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and hasattr(value, "__round__")


def _load(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def sqlstate_of(error: BaseException) -> str | None:
    return getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
