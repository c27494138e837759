"""Waits for the locks of a migration in short tries: while one waits, every statement that comes after it waits too.

A transaction that has written to a table, and a dump, keep the lock that they have until they end, which may be hours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from psycopg2.errors import LockNotAvailable, QueryCanceled

from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.wording import format_duration

_TRY_SEC = 0.2
_HARMLESS_WAIT_SEC = 5.0
_FIRST_PAUSE_SEC, _MAX_PAUSE_SEC = 0.5, 5.0
_REPORT_INTERVAL_SEC = 15.0
_DEADLOCK_TIMEOUT_MARGIN_SEC = 0.2
_HOLDERS = """
SELECT a.pid, a.usename, a.application_name, coalesce(a.backend_type, 'client backend'),
       extract(epoch FROM clock_timestamp() - min(a.xact_start))::float8
  FROM pg_locks l
  JOIN pg_class c ON c.oid = l.relation AND c.relnamespace = current_schema()::regnamespace
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'relation' AND l.granted AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 GROUP BY a.pid, a.usename, a.application_name, a.backend_type
 ORDER BY 5 DESC NULLS LAST
 LIMIT 3
"""
Done = TypeVar("Done")


@dataclass(frozen=True)
class LockLimits:
    """`try_sec`: how long a try may wait for a lock. `max_wait_sec`: for one that makes no other statement wait."""

    try_sec: float
    max_wait_sec: float


class LockStatements(NamedTuple):
    waiting: str  # it makes no statement of the queue wait
    blocking: Sequence[str]  # they are to be one message with what needs the locks


def lock_statements(altered: Collection[str], changed: Collection[str], limits: LockLimits) -> LockStatements:
    """Lock these tables before they are altered, or their triggers changed.

    A lock that conflicts with none of a statement that reads or writes comes first, and waits for a vacuum, until
    PostgreSQL cancels it. Then a try has its time for all tables that are altered together, and as much for the others:
    while it waits for one, all statements wait for those that it has. Workers lock dl_jobs before the tables of events
    and workers.
    """

    def lock(tables: Iterable[str], mode: str) -> list[str]:
        ordered = sorted(set(tables), key=lambda table: (table != "dl_jobs", table))
        return [f"LOCK TABLE {', '.join(ordered)} IN {mode} MODE;"] if ordered else []

    return LockStatements(
        waiting="".join([
            f"SET LOCAL lock_timeout = '{min(limits.max_wait_sec, _HARMLESS_WAIT_SEC)}s';",
            *lock([*altered, *changed], "SHARE UPDATE EXCLUSIVE"),
            f"SET LOCAL lock_timeout = '{min(limits.try_sec, _TRY_SEC)}s';",
            f"SET LOCAL statement_timeout = '{min(limits.try_sec, _TRY_SEC)}s'",
        ]),
        blocking=[
            *lock(altered, "ACCESS EXCLUSIVE"),
            *lock(changed, "SHARE ROW EXCLUSIVE"),
            "SET LOCAL statement_timeout = 0;",
        ],
    )  # fmt: skip


class TableLocks:
    """Repeats a migration whose transaction could not lock a table, until `max_wait_sec` have passed.

    `ask` executes a question in a session of its own, with the queue's schema as the search path; `report` is given a
    sentence for the operator now and then.
    """

    def __init__(
        self, ask: Callable[[str], list[tuple[Any, ...]]], max_wait_sec: float, report: Callable[[str], None]
    ) -> None:
        self._ask, self._max_wait_sec, self._report = ask, max_wait_sec, report
        self._try_sec = min(_TRY_SEC, max_wait_sec)
        self._reported_at = -_REPORT_INTERVAL_SEC

    def repeat(self, migrate: Callable[[float], Done]) -> Done:
        """`migrate` is given the seconds that a try may wait for one lock."""
        ends_at, pause_sec = time.monotonic() + self._max_wait_sec, _FIRST_PAUSE_SEC
        while True:
            try:
                return migrate(self._try_sec)
            except DatabaseUnavailable as error:
                if not isinstance(error.__cause__, LockNotAvailable | QueryCanceled):
                    raise
                holders = self._ask(_HOLDERS)
                if time.monotonic() + pause_sec > ends_at:
                    raise DatabaseUnavailable(
                        f"lock timeout: no lock on the queue's tables within {format_duration(self._max_wait_sec)};"
                        f" {_describe(holders)}. Nothing was changed: end that session, or run `dataloader migrate`"
                        " again with a longer --lock-wait"
                    ) from error
            self._report_holders(holders)
            self._give_way_to_vacuum(holders)
            time.sleep(pause_sec)
            pause_sec = min(pause_sec * 2, _MAX_PAUSE_SEC)

    def _report_holders(self, holders: list[tuple[Any, ...]]) -> None:
        if time.monotonic() - self._reported_at >= _REPORT_INTERVAL_SEC:
            self._reported_at = time.monotonic()
            self._report(f"waiting for the tables; {_describe(holders)}")

    def _give_way_to_vacuum(self, holders: list[tuple[Any, ...]]) -> None:
        """PostgreSQL cancels a vacuum of its own for one who has waited for deadlock_timeout, and not sooner."""
        self._try_sec = min(_TRY_SEC, self._max_wait_sec)
        if holders and all(kind == "autovacuum worker" for _, _, _, kind, _ in holders):
            ((deadlock_timeout_ms,),) = self._ask(
                "SELECT setting::float8 FROM pg_settings WHERE name = 'deadlock_timeout'"
            )
            self._try_sec = deadlock_timeout_ms / 1000 + _DEADLOCK_TIMEOUT_MARGIN_SEC


def _describe(holders: list[tuple[Any, ...]]) -> str:
    if not holders:
        return "the session that held one has ended since"
    return "they are locked by " + ", ".join(
        f"{application or kind!r} (pid {pid}, role {role}"
        + (")" if age_sec is None else f", in a transaction since {format_duration(age_sec)})")
        for pid, role, application, kind, age_sec in holders
    )
