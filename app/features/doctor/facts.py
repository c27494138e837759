"""Facts about server, role, tables and queue, read with no more rights than the service has."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import extensions as ext

from dataloader.app.db.connection import AsyncConnection, ServerTimeout, connect, translate_errors
from dataloader.app.db.encoding import array
from dataloader.app.db.schema import SchemaVersion
from dataloader.app.db.statements import Executor

_CLOCK_SAMPLES = 3
_CLIENT_COUNT = 4
_MAX_READY = 500


@dataclass(frozen=True)
class SchemaObject:
    definition: str  # without the name of the schema
    problem: str | None = None  # such as an index that is not valid


@dataclass(frozen=True)
class TableStats:
    name: str
    live_rows: int
    dead_rows: int
    since_vacuum_sec: float | None  # None: never
    size_bytes: int  # with its indexes


@dataclass(frozen=True)
class Transaction:
    """What keeps vacuum from removing dead rows: a session's transaction, a prepared one, or a replication slot."""

    kind: str  # a process id, `prepared` or `slot`
    name: str
    user: str
    state: str
    age_sec: float | None
    query: str
    is_in_database: bool  # in this one


@dataclass(frozen=True)
class LockHolder:
    """A session of others that holds a lock on jobs, or on their table."""

    pid: int
    name: str
    user: str
    state: str
    age_sec: float  # of its transaction
    query: str
    mode: str

    @property
    def has_table(self) -> bool:
        """Whether no other session can write any job."""
        return self.mode not in ("RowShareLock", "RowExclusiveLock")


@dataclass(frozen=True)
class Pooler:
    """How connections behave while others are open."""

    shared: bool  # two clients were served by one server process
    wandered: bool  # one client was served by two
    lost_state: bool  # a setting of the session was gone, or another client's
    lost_prepared: bool


class DatabaseFacts:
    def __init__(self, executor: Executor) -> None:
        self.executor, self.schema = executor, executor.schema
        self._execute: Callable[..., list[tuple[Any, ...]]] = executor.execute

    def server(self, settings: Iterable[str]) -> tuple[Mapping[str, Any], float]:
        """The server's facts and settings, and how many seconds its clock is ahead of ours."""
        server: Mapping[str, Any] = {}
        shortest_sec, ahead_sec = float("inf"), 0.0
        for _ in range(_CLOCK_SAMPLES):  # the shortest round trip gives the best estimate
            sent_at = time.time()
            server = json.loads(self._execute("doctor_server", {"names": array(settings)})[0][0])
            round_trip_sec = time.time() - sent_at
            if round_trip_sec < shortest_sec:
                shortest_sec, ahead_sec = round_trip_sec, float(server["now"]) - (sent_at + round_trip_sec / 2)
        return server, ahead_sec

    def missing_rights(self, required: Sequence[tuple[str, str]]) -> dict[str, str]:
        """The rights the role lacks, by table."""
        parameters = {
            "schema": self.schema,
            "tables": array(table for table, _ in required),
            "rights": array(right for _, right in required),
        }
        return dict(self._execute("doctor_rights", parameters))

    def schema_version(self) -> SchemaVersion | None:
        rows = self._execute("schema_version")
        return SchemaVersion(*rows[0]) if rows else None

    def schema_objects(self) -> dict[str, SchemaObject]:
        rows = self._execute("schema_objects", {"schema": self.schema})
        return {name: SchemaObject(definition, problem) for name, definition, problem in rows}

    def tables(self) -> list[TableStats]:
        return [TableStats(*row) for row in self._execute("doctor_tables", {"schema": self.schema})]

    def transactions(self, *, older_sec: float) -> list[Transaction]:
        return [Transaction(*row) for row in self._execute("doctor_transactions", {"older_sec": older_sec})]

    def lock_holders(self, *, older_sec: float) -> list[LockHolder]:
        parameters = {"schema": self.schema, "older_sec": older_sec}
        return [LockHolder(*row) for row in self._execute("doctor_lock_holders", parameters)]

    def queue(self, *, max_ready: int = _MAX_READY) -> Mapping[str, Any]:
        """The state of the queue, with the tasks of the first `max_ready` jobs of each queue."""
        queue: Mapping[str, Any] = json.loads(self._execute("doctor_queue", {"max_ready": max_ready})[0][0])
        return queue

    def foreign_keys(self) -> Sequence[tuple[str, int, str]]:
        """Keys that jobs wait for and that sessions without such a job hold. It reads all locks of the server."""
        keys: Sequence[tuple[str, int, str]] = json.loads(self._execute("doctor_lock_keys")[0][0])
        return keys


def detect_pooler(dsn: str, *, timeout_sec: float) -> Pooler:
    """Whether a pooler gives one server process to several clients.

    Several clients connect, and one after the other opens a transaction. Each must have a server process of its own,
    with its settings and prepared statements. Where a transaction has to wait for the end of another client's, twice in
    a row, the server process is shared. Raises DatabaseUnavailable when a connection breaks.
    """
    with translate_errors():
        for _ in range(2):
            with suppress(_TransactionWaits):
                return _compare_clients(dsn, timeout_sec=timeout_sec)
        return Pooler(shared=True, wandered=False, lost_state=False, lost_prepared=False)


class _TransactionWaits(Exception):
    """A transaction did not begin in time while another client's was open."""


def _compare_clients(dsn: str, *, timeout_sec: float) -> Pooler:
    clients = [connect(dsn, name="dataloader-doctor", timeout_sec=timeout_sec) for _ in range(_CLIENT_COUNT)]
    try:
        pids = [_set_session_state(client, n, timeout_sec) for n, client in enumerate(clients)]
        states, lost_prepared = [], False
        for n, client in enumerate(clients):
            client.execute("BEGIN", None, timeout_sec)  # while the one before still holds its own
            query = "SELECT pg_backend_pid(), current_setting('dl.doctor', true)"
            states.append(client.execute(query, None, timeout_sec)[0])
            lost_prepared = lost_prepared or not _is_prepared(client, timeout_sec)
            if n:
                clients[n - 1].execute("ROLLBACK", None, timeout_sec)
        return Pooler(
            shared=len(set(pids)) < len(pids),
            wandered=any(before != after for before, (after, _) in zip(pids, states, strict=True)),
            lost_state=any(value != str(n) for n, (_, value) in enumerate(states)),
            lost_prepared=lost_prepared,
        )
    except psycopg2.OperationalError as error:
        if isinstance(error, ServerTimeout) or "query_wait_timeout" in str(error):  # the latter ends PgBouncer's queue
            raise _TransactionWaits from error
        raise
    finally:
        for client in clients:
            with suppress(psycopg2.Error):
                if client.info.transaction_status != ext.TRANSACTION_STATUS_IDLE:
                    client.execute("ROLLBACK", None, timeout_sec)
                _deallocate(client, timeout_sec)  # a pooler may keep the session
                client.execute("RESET dl.doctor", None, timeout_sec)
            client.close()


# The server logs each statement that fails: what is not there is not executed.


def _is_prepared(connection: AsyncConnection, timeout_sec: float) -> bool:
    query = "SELECT count(*) FROM pg_prepared_statements WHERE name = 'dl_doctor'"
    return bool(connection.execute(query, None, timeout_sec)[0][0])


def _deallocate(connection: AsyncConnection, timeout_sec: float) -> None:
    if _is_prepared(connection, timeout_sec):
        connection.execute("DEALLOCATE dl_doctor", None, timeout_sec)


def _set_session_state(connection: AsyncConnection, number: int, timeout_sec: float) -> int:
    with suppress(psycopg2.Error):  # behind a pooler another client may have prepared it, or deallocate it now
        _deallocate(connection, timeout_sec)
    connection.execute(f"PREPARE dl_doctor AS SELECT {number}", None, timeout_sec)
    query = f"SELECT pg_backend_pid(), set_config('dl.doctor', '{number}', false)"
    return int(connection.execute(query, None, timeout_sec)[0][0])
