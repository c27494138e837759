"""What a doctor asks: facts about server, role, tables and queue, with no more rights than the service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg2

from app.queue.jobqueue import Source
from app.queue.schema import Stand
from app.queue.session import Wire, connect
from app.queue.values import array

_ROUND_TRIPS = 3
_CLIENTS = 4
_NO_SUCH_STATEMENT = "26000"


@dataclass(frozen=True)
class Thing:
    """Something of the schema, in words that are the same wherever it stands."""

    form: str
    fault: str | None = None  # it is there, and not in order


@dataclass(frozen=True)
class Table:
    name: str
    live: int
    dead: int
    vacuumed_sec: float | None  # ago; None: never
    size: int  # bytes, with its indexes


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


class Examination:
    def __init__(self, source: Source) -> None:
        self.schema = self._schema = source.schema
        self._ask: Callable[..., list[tuple[Any, ...]]] = source.ask

    def server(self, settings: Iterable[str]) -> tuple[Mapping[str, Any], float]:
        """What the server says of itself, and by how many seconds its clock is ahead of ours."""
        told: Mapping[str, Any] = {}
        best, ahead = float("inf"), 0.0
        for _ in range(_ROUND_TRIPS):  # the quickest answer tells the time best
            sent = time.time()
            told = json.loads(self._ask("doctor_server", {"names": array(settings)})[0][0])
            took = time.time() - sent
            if took < best:
                best, ahead = took, float(told["now"]) - (sent + took / 2)
        return told, ahead

    def missing_rights(self, wanted: Sequence[tuple[str, str]]) -> dict[str, str]:
        """By table, what the role may not do; of (table, right)."""
        asked = {
            "schema": self._schema,
            "tables": array(table for table, _ in wanted),
            "rights": array(right for _, right in wanted),
        }
        return {row[0]: row[1] for row in self._ask("doctor_rights", asked)}

    def stand(self) -> Stand | None:
        rows = self._ask("schema_version")
        return Stand(*rows[0]) if rows else None

    def catalogue(self) -> dict[str, Thing]:
        return {name: Thing(form, fault) for name, form, fault in self._ask("catalogue", {"schema": self._schema})}

    def is_retention_held(self) -> bool:
        """Whether the tables were upgraded from version 0, and are cleaned only on request."""
        return bool(self._ask("retention_held")[0][0])

    def tables(self) -> list[Table]:
        return [Table(*row) for row in self._ask("doctor_tables", {"schema": self._schema})]

    def transactions(self, *, older_sec: float) -> list[Transaction]:
        return [Transaction(*row) for row in self._ask("doctor_transactions", {"older_sec": older_sec})]

    def queue(self) -> Mapping[str, Any]:
        told: Mapping[str, Any] = json.loads(self._ask("doctor_queue")[0][0])
        return told


def find_pooler(dsn: str, *, timeout: float) -> Pooler:
    """Does something stand between us and the server that hands one server process to several clients?

    While several clients are connected, and one after the other holds a transaction open, each must have a server
    process of its own, with what it has set and prepared.
    """
    clients = [Wire(connect(dsn, name="dataloader-doctor", timeout=timeout)) for _ in range(_CLIENTS)]
    try:
        pids = [_mark(wire, n, timeout) for n, wire in enumerate(clients)]
        again, lost_prepared = [], False
        for n, wire in enumerate(clients):
            wire.ask("BEGIN", None, timeout)  # while the one before still holds its own
            again.append(wire.ask("SELECT pg_backend_pid(), current_setting('dl.doctor', true)", None, timeout)[0])
            lost_prepared = _lost(wire, timeout) or lost_prepared
            if n:
                clients[n - 1].ask("ROLLBACK", None, timeout)
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
                    wire.ask(last, None, timeout)
            wire.close()


def _lost(wire: Wire, timeout: float) -> bool:
    try:
        wire.ask("EXECUTE dl_doctor", None, timeout)
    except psycopg2.Error as error:
        return error.pgcode == _NO_SUCH_STATEMENT
    return False


def _mark(wire: Wire, n: int, timeout: float) -> int:
    with suppress(psycopg2.Error):  # somebody else's, behind a pooler
        wire.ask("DEALLOCATE dl_doctor", None, timeout)
    wire.ask(f"PREPARE dl_doctor AS SELECT {n}", None, timeout)
    return int(wire.ask(f"SELECT pg_backend_pid(), set_config('dl.doctor', '{n}', false)", None, timeout)[0][0])
