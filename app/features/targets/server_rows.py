"""What is read and deleted in a target: rows of dl_effects, and the sessions that hold them.

A statement here is bounded by settings of its transaction alone: behind a pooler a setting of the session would reach
the loads of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from dataloader.app.db.encoding import array, from_row
from dataloader.app.features.targets.servers import STATEMENT_TIMEOUT_SEC
from dataloader.app.wording import format_duration
from dataloader.pipelines.effects import EffectsTable
from dataloader.pipelines.retry import Fail

MAX_COUNTED_ROWS = 100_000
_SESSION_PREFIX = "dataloader:{job_id}:"  # of the application_name of an attempt's sessions
_BOUNDS = """
SET TRANSACTION ISOLATION LEVEL READ COMMITTED, {access};
SET LOCAL statement_timeout = '{timeout_sec}s'; SET LOCAL lock_timeout = '1s'
"""
# The row's xmax is the transaction that has locked it or changes it, while that is in progress: to lock the row here
# would write to the target at each look.
_ROW = """
SELECT e.run_id, e.fence, e.position::text, e.done_at, e.at,
       EXISTS (SELECT FROM pg_locks l
                WHERE l.locktype = 'transactionid' AND l.transactionid = e.xmax
                  AND l.mode = 'ExclusiveLock' AND l.granted)
  FROM {table} e
 WHERE e.job_id = %(job_id)s::uuid
"""
_HOLDERS = """
SELECT l.pid
  FROM {table} e JOIN pg_locks l ON l.transactionid = e.xmax
 WHERE e.job_id = %(job_id)s::uuid AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
       AND l.pid IS NOT NULL
"""
# Those of the job, those that hold its row, and those for which these wait.
_SESSIONS = """
WITH holders AS MATERIALIZED (
    {holders}
), own AS MATERIALIZED (
    SELECT a.pid, a.application_name, a.state, a.xact_start, a.pid IN (SELECT pid FROM holders) AS holds_row,
           CASE WHEN a.wait_event_type = 'Lock' THEN pg_blocking_pids(a.pid) ELSE '{}' END AS waits_for
      FROM pg_stat_activity a
     WHERE a.pid <> pg_backend_pid() AND a.datname = current_database()
       AND (left(a.application_name, length(%(prefix)s)) = %(prefix)s OR a.pid IN (SELECT pid FROM holders))
), blocking AS (
    SELECT a.pid, a.application_name, a.state, a.xact_start, false, CAST('{}' AS int[])
      FROM pg_stat_activity a
     WHERE a.pid IN (SELECT unnest(waits_for) FROM own) AND a.pid NOT IN (SELECT pid FROM own)
)
SELECT s.pid, coalesce(s.application_name, ''), s.state, s.xact_start,
       CAST(extract(epoch FROM clock_timestamp() - s.xact_start) AS float8), s.holds_row, s.waits_for
  FROM (SELECT * FROM own UNION ALL SELECT * FROM blocking) s
 ORDER BY s.holds_row DESC, s.xact_start, s.pid
 LIMIT 20
"""
_COUNT_ROWS = "SELECT count(*) FROM (SELECT FROM {table} LIMIT %(max_rows)s) counted"
_TABLE_STATE = """
SELECT has_table_privilege(%(table)s, 'DELETE'), pg_is_in_recovery(), quote_ident(current_user)
"""
# A transaction that has begun behind a fence, or has ended one, has such a lock of the table.
_IDLE_HOLDERS = """
SELECT DISTINCT a.pid, coalesce(a.application_name, ''),
       CAST(extract(epoch FROM clock_timestamp() - a.state_change) AS float8)
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.relation = CAST(%(table)s AS regclass) AND l.granted
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
   AND a.state LIKE 'idle in transaction%%' AND a.state_change < clock_timestamp() - %(idle_sec)s * interval '1 second'
 ORDER BY 3 DESC
 LIMIT 20
"""
# A row that is locked stays until the next time, and so does one that a later attempt has claimed.
_DELETE_ROWS = """
WITH ended AS (
    SELECT * FROM unnest(%(job_ids)s::uuid[], %(fences)s::bigint[]) AS e (job_id, fence)
), unlocked AS (
    SELECT t.job_id
      FROM {table} t JOIN ended e ON t.job_id = e.job_id
     WHERE t.fence <= e.fence
       FOR UPDATE OF t SKIP LOCKED
)
DELETE FROM {table} WHERE job_id IN (SELECT job_id FROM unlocked)
"""
_LEFT_ROWS = "SELECT job_id FROM {table} WHERE job_id = ANY (%(job_ids)s::uuid[])"


@dataclass(frozen=True)
class EffectsRow:
    """The row of a job in a target. `locked`: a transaction is open that has locked it, or changes it."""

    run_id: UUID
    fence: int
    position: Any
    done_at: datetime | None
    at: datetime
    locked: bool


@dataclass(frozen=True)
class TargetSession:
    """A session in a target: of an attempt of the job, one that holds the job's row, or one that these wait for. `run`
    is the start of the attempt's run id, null for a session of others."""

    pid: int
    application_name: str
    run: str | None
    state: str | None
    transaction_started_at: datetime | None
    transaction_sec: float | None
    holds_row: bool
    waits_for: list[int]

    @property
    def description(self) -> str:
        """Such as `the session of run 1a2b3c4d (pid 77), idle in transaction, for 12 min`."""
        if self.run is not None:
            name = f"the session of run {self.run}"
        else:
            name = f"the session {self.application_name!r}" if self.application_name else "a session without a name"
        state = f", {self.state}" if self.state else ""
        age = "" if self.transaction_sec is None else f", for {format_duration(self.transaction_sec)}"
        waits = f", which waits for pid {', '.join(map(str, self.waits_for))}" if self.waits_for else ""
        return f"{name} (pid {self.pid}){state}{age}{waits}"


@dataclass(frozen=True)
class JobInTarget:
    """What a target has of a job."""

    row: EffectsRow | None
    sessions: list[TargetSession]


@dataclass(frozen=True)
class IdleHolder:
    """A session that does nothing in an open transaction, and holds rows of dl_effects."""

    pid: int
    application_name: str
    idle_sec: float


@dataclass(frozen=True)
class TableState:
    """The table dl_effects of a target, as its role finds it."""

    name: str | None = None
    problem: str | None = None  # why transactions there are not fenced
    remedy: str = ""
    has_other_shape: bool = False
    rows: int | None = None
    may_delete: bool = True
    role: str = ""  # quoted
    idle_holders: list[IdleHolder] = field(default_factory=list)


def read_job(connection: Any, target: str, job_id: UUID) -> JobInTarget:
    table = EffectsTable(connection, target)
    try:
        table.find_existing()
    except Fail:
        table.name = None
    prefix = _SESSION_PREFIX.format(job_id=job_id)
    parameters = {"job_id": str(job_id), "prefix": prefix}
    holders = "SELECT 0 AS pid" if table.name is None else _of_table(_HOLDERS, table.name)
    with _bounded(connection) as cursor:
        cursor.execute(_SESSIONS.replace("{holders}", holders), parameters)
        sessions = [_session(row, prefix) for row in cursor.fetchall()]
        if table.name is None:
            return JobInTarget(None, sessions)
        cursor.execute(_of_table(_ROW, table.name), parameters)
        row = cursor.fetchone()
    return JobInTarget(None if row is None else from_row(EffectsRow, row), sessions)


def _session(row: Sequence[Any], prefix: str) -> TargetSession:
    pid, name, state, started_at, age_sec, holds_row, waits_for = row
    run = name.removeprefix(prefix) if name.startswith(prefix) else None
    return TargetSession(pid, name, run, state, started_at, age_sec, holds_row, list(waits_for))


def read_table(connection: Any, target: str, *, idle_sec: float) -> TableState:
    """`idle_sec`: how long a session must have been idle in its transaction to be listed."""
    table = EffectsTable(connection, target)
    try:
        table.find_existing()
    except Fail as shape:
        fact, _, remedy = str(shape).rpartition("; ")
        return TableState(problem=fact, remedy=remedy, has_other_shape=True)
    if table.name is None:
        return TableState(problem=table.problem, remedy=table.remedy)
    parameters = {"table": table.name, "max_rows": MAX_COUNTED_ROWS + 1, "idle_sec": idle_sec}
    with _bounded(connection) as cursor:
        cursor.execute(_TABLE_STATE, parameters)
        may_delete, is_standby, role = cursor.fetchone()
        cursor.execute(_of_table(_COUNT_ROWS, table.name), parameters)
        (rows,) = cursor.fetchone()
        cursor.execute(_IDLE_HOLDERS, parameters)
        idle_holders = [IdleHolder(*row) for row in cursor.fetchall()]
    problem = f"the server of target {target!r} is a standby, which takes no writes" if is_standby else None
    return TableState(
        name=table.name, problem=problem, remedy="name its primary in DL_TARGETS" if is_standby else "", rows=rows,
        may_delete=may_delete, role=role, idle_holders=idle_holders,
    )  # fmt: skip


def delete_rows(connection: Any, target: str, fences: dict[UUID, int], *, timeout_sec: int) -> list[UUID]:
    """Delete the rows of these jobs with these fences or older ones; return the jobs that have no row there now. Raises
    Fail where that cannot be done."""
    table = EffectsTable(connection, target)
    table.find_existing()
    if table.name is None:
        if table.problem is not None and table.remedy.startswith("GRANT"):
            raise Fail(table.problem)
        return [*fences]  # there is no table
    parameters = {"job_ids": array(fences), "fences": array(fences.values())}
    with _bounded(connection, "READ WRITE", timeout_sec) as cursor:
        cursor.execute(_of_table(_DELETE_ROWS, table.name), parameters)
        cursor.execute(_of_table(_LEFT_ROWS, table.name), parameters)
        left = {str(job_id) for (job_id,) in cursor.fetchall()}
    return [job_id for job_id in fences if str(job_id) not in left]


@contextmanager
def _bounded(connection: Any, access: str = "READ ONLY", timeout_sec: int = STATEMENT_TIMEOUT_SEC) -> Iterator[Any]:
    with connection, connection.cursor() as cursor:
        cursor.execute(_BOUNDS.format(access=access, timeout_sec=timeout_sec))
        yield cursor


def _of_table(text: str, table: str) -> str:
    return text.replace("{table}", table.replace("%", "%%"))
