"""What a doctor asks: facts about server, role, tables and queue, with no more rights than the service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg2

from app.db.connection import AsyncConnection, connect
from app.db.encoding import array
from app.db.schema import SchemaVersion
from app.queue.jobs import Executor

_CLOCK_SAMPLES = 3
_CLIENT_COUNT = 4
_NO_SUCH_STATEMENT = "26000"


@dataclass(frozen=True)
class SchemaObject:
    """Something of the schema, in words that are the same wherever it stands."""

    definition: str
    problem: str | None = None  # it is there, and not in order


@dataclass(frozen=True)
class TableStats:
    name: str
    live_rows: int
    dead_rows: int
    since_vacuum_sec: float | None  # ago; None: never
    size_bytes: int  # bytes, with its indexes


@dataclass(frozen=True)
class Transaction:
    """What keeps vacuum from dead rows: a session's transaction, a prepared one, or a replication slot."""

    which: str  # a process id, `prepared` or `slot`
    name: str
    user: str
    state: str
    age_sec: float | None
    query: str
    here: bool  # in this database


@dataclass(frozen=True)
class Pooler:
    """How a connection behaves when others are there."""

    shared: bool  # two clients were served by one server process
    wandered: bool  # one client was served by two
    lost_state: bool  # a setting of the session was gone, or somebody else's
    lost_prepared: bool


class DatabaseFacts:
    def __init__(self, executor: Executor) -> None:
        self.schema = self._schema = executor.schema
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute

    def server(self, settings: Iterable[str]) -> tuple[Mapping[str, Any], float]:
        """What the server says of itself, and by how many seconds its clock is ahead of ours."""
        told: Mapping[str, Any] = {}
        best, ahead = float("inf"), 0.0
        for _ in range(_CLOCK_SAMPLES):  # the quickest answer tells the time best
            sent = time.time()
            told = json.loads(self._execute("doctor_server", {"names": array(settings)})[0][0])
            took = time.time() - sent
            if took < best:
                best, ahead = took, float(told["now"]) - (sent + took / 2)
        return told, ahead

    def missing_rights(self, required: Sequence[tuple[str, str]]) -> dict[str, str]:
        """By table, what the role may not do; of (table, right)."""
        asked = {
            "schema": self._schema,
            "tables": array(table for table, _ in required),
            "rights": array(right for _, right in required),
        }
        return {row[0]: row[1] for row in self._execute("doctor_rights", asked)}

    def schema_version(self) -> SchemaVersion | None:
        rows = self._execute("schema_version")
        return SchemaVersion(*rows[0]) if rows else None

    def schema_objects(self) -> dict[str, SchemaObject]:
        return {
            name: SchemaObject(form, fault)
            for name, form, fault in self._execute("schema_objects", {"schema": self._schema})
        }

    def is_retention_paused(self) -> bool:
        """Whether the tables were upgraded from version 0, and are cleaned only on request."""
        return bool(self._execute("is_retention_paused")[0][0])

    def tables(self) -> list[TableStats]:
        return [TableStats(*row) for row in self._execute("doctor_tables", {"schema": self._schema})]

    def transactions(self, *, older_sec: float) -> list[Transaction]:
        return [Transaction(*row) for row in self._execute("doctor_transactions", {"older_sec": older_sec})]

    def queue(self) -> Mapping[str, Any]:
        told: Mapping[str, Any] = json.loads(self._execute("doctor_queue")[0][0])
        return told


def detect_pooler(dsn: str, *, timeout_sec: float) -> Pooler:
    """Does something stand between us and the server that hands one server process to several clients?

    While several clients are connected, and one after the other holds a transaction open, each must have a server
    process of its own, with what it has set and prepared.
    """
    clients = [connect(dsn, name="dataloader-doctor", timeout_sec=timeout_sec) for _ in range(_CLIENT_COUNT)]
    try:
        pids = [_set_session_state(wire, n, timeout_sec) for n, wire in enumerate(clients)]
        again, lost_prepared = [], False
        for n, wire in enumerate(clients):
            wire.execute("BEGIN", None, timeout_sec)  # while the one before still holds its own
            again.append(
                wire.execute("SELECT pg_backend_pid(), current_setting('dl.doctor', true)", None, timeout_sec)[0]
            )
            lost_prepared = _has_lost_prepared(wire, timeout_sec) or lost_prepared
            if n:
                clients[n - 1].execute("ROLLBACK", None, timeout_sec)
        return Pooler(
            shared=len(set(pids)) < len(pids),
            wandered=any(before != after for before, (after, _) in zip(pids, again, strict=True)),
            lost_state=any(mark != str(n) for n, (_, mark) in enumerate(again)),
            lost_prepared=lost_prepared,
        )
    except psycopg2.OperationalError:  # the second transaction had to wait for the end of the first
        return Pooler(shared=True, wandered=False, lost_state=False, lost_prepared=False)
    finally:
        for wire in clients:
            for last in ("ROLLBACK", "DEALLOCATE dl_doctor", "RESET dl.doctor"):  # who knows whose session it was
                with suppress(psycopg2.Error):
                    wire.execute(last, None, timeout_sec)
            wire.close()


def _has_lost_prepared(connection: AsyncConnection, timeout_sec: float) -> bool:
    try:
        connection.execute("EXECUTE dl_doctor", None, timeout_sec)
    except psycopg2.Error as error:
        return error.pgcode == _NO_SUCH_STATEMENT
    return False


def _set_session_state(connection: AsyncConnection, number: int, timeout_sec: float) -> int:
    with suppress(psycopg2.Error):  # somebody else's, behind a pooler
        connection.execute("DEALLOCATE dl_doctor", None, timeout_sec)
    connection.execute(f"PREPARE dl_doctor AS SELECT {number}", None, timeout_sec)
    return int(
        connection.execute(f"SELECT pg_backend_pid(), set_config('dl.doctor', '{number}', false)", None, timeout_sec)[
            0
        ][0]
    )
