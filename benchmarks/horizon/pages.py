"""Counts the pages that each statement touches, by table and index, exactly and whatever else the machine does."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.rounds import median
from dataloader.app.db.connection import Session

CATALOG = "catalog"  # the tables of PostgreSQL itself: read when a statement is planned
# By object id; the name of a TOAST table is that of its table, and a partition's is that of the partitioned table.
_RELATIONS = """
SELECT c.oid, CASE WHEN c.relnamespace = 'pg_catalog'::regnamespace OR i.indrelid < 16384 OR t.oid < 16384 THEN %s
                   ELSE regexp_replace(coalesce(t.relname || ' (toast)', c.relname),
                                       '_(default|\\d{8}\\w*?)(?=$|_|\\s)', '') END
  FROM pg_class c
       LEFT JOIN pg_index i ON i.indexrelid = c.oid
       LEFT JOIN pg_class t ON t.reltoastrelid = coalesce(i.indrelid, c.oid)
 WHERE c.relkind IN ('r', 'i', 't', 'S')
"""
_COUNTS = """
SELECT r.oid, pg_stat_get_xact_blocks_fetched(r.oid), pg_stat_get_xact_tuples_returned(r.oid)
  FROM unnest('{%s}'::oid[]) AS r (oid)
 WHERE pg_stat_get_xact_blocks_fetched(r.oid) > 0
"""
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Execution:
    pages: Counter[str]  # by table or index
    entries: Counter[str]  # that scans of an index have returned, alive or dead; of a table, rows of sequential scans
    ms: float


@dataclass(frozen=True)
class Figure:
    """What the executions of a statement cost, each value a median."""

    pages: float
    catalog_pages: float
    ms: float
    by_relation: Mapping[str, float]  # pages
    entries: Mapping[str, float]

    @classmethod
    def of(cls, executions: list[Execution]) -> Figure:
        totals = [execution.pages.total() - execution.pages[CATALOG] for execution in executions]
        catalog = [execution.pages[CATALOG] for execution in executions]
        by_relation = _medians([execution.pages for execution in executions])
        entries = _medians([execution.entries for execution in executions])
        return cls(median(totals), median(catalog), median([each.ms for each in executions]), by_relation, entries)


def _medians(counters: list[Counter[str]]) -> dict[str, float]:
    names = {name for counter in counters for name in counter} - {CATALOG}
    return {name: median([counter[name] for counter in counters]) for name in names}


Statement = tuple[str, str]  # the activity that it is part of, and its name


class Recorder:
    """While it records, each statement of its sessions is a transaction of its own, between two reads of the counters.

    The counters are those of the session's open transaction, per table and index, so that nothing else is in them; what
    the functions and triggers of a statement read is.
    """

    def __init__(self) -> None:
        self.is_recording = False
        self._activity = ""
        self._relations: dict[int, str] = {}
        self._counts = ""
        self._executions: dict[Statement, list[Execution]] = defaultdict(list)

    @contextmanager
    def activity(self, name: str) -> Iterator[None]:
        outer, self._activity = self._activity, name
        try:
            yield
        finally:
            self._activity = outer

    def start(self, session: Session) -> None:
        self._relations = dict(session.execute_raw(_RELATIONS.replace("%s", f"'{CATALOG}'")))
        self._counts = _COUNTS % ",".join(map(str, self._relations))
        self._executions.clear()
        self.is_recording = True

    def stop(self) -> dict[Statement, Figure]:
        self.is_recording = False
        return {statement: Figure.of(executions) for statement, executions in self._executions.items()}

    def count(self, session: Session, name: str, run: Callable[[], Any]) -> Any:
        session.execute_raw("BEGIN")
        try:
            before = {oid: counts for oid, *counts in session.execute_raw(self._counts)}
            started_at = time.perf_counter()
            result = run()
            ms = (time.perf_counter() - started_at) * 1000
            pages, entries = Counter[str](), Counter[str]()
            for oid, fetched, returned in session.execute_raw(self._counts):
                fetched_before, returned_before = before.get(oid, (0, 0))
                pages[self._relations[oid]] += fetched - fetched_before
                entries[self._relations[oid]] += returned - returned_before
        except BaseException:
            session.execute_raw("ROLLBACK")
            raise
        session.execute_raw("COMMIT")
        self._executions[self._activity, name].append(Execution(pages, entries, ms))
        return result


class MeasuredSession(Session):
    """A session of the product's whose statements a recorder counts."""

    def __init__(self, dsn: str, recorder: Recorder, *, name: str) -> None:
        super().__init__(dsn, application_name=name, command_timeout_sec=300.0)
        self._recorder = recorder

    def execute(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        if not self._recorder.is_recording:
            return super().execute(name, parameters)
        result: list[Row] = self._recorder.count(
            self, name, lambda: super(MeasuredSession, self).execute(name, parameters)
        )
        return result

    def ask(self, names: Iterable[str]) -> Row:
        names = tuple(names)
        if not self._recorder.is_recording:
            return super().ask(names)
        row: Row = self._recorder.count(self, "has_work", lambda: super(MeasuredSession, self).ask(names))
        return row
