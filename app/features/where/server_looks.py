"""What the sessions of attempts do, looked at again and again by the sampler: one statement a server and second.

Each server has a connection and a thread of its own, so that a server that does not answer delays no look at another.
A server on which no attempt has a session is looked at less often, and one that took long for the answer not for a
while.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dataloader.app.db.encoding import array
from dataloader.app.db.statements import statements
from dataloader.app.features.targets.servers import Inquiry, TargetServers
from dataloader.app.features.where.sessions import BOUNDS, BlockedSession, read_blocked, show_statement
from dataloader.pipelines.portable import clock
from dataloader.workers.threads import Backoff

MAX_ANSWER_SEC = 0.1  # that a server may take
_FIRST_PAUSE_SEC, _MAX_PAUSE_SEC = 30.0, 600.0  # of looks at a server that took longer
_IDLE_INTERVALS = 10  # between looks at a server on which no attempt has a session
_BLOCKERS_INTERVAL_SEC = 10.0
_RECONNECT_SEC = 60.0
_IDLE_SEC = 60.0
_MAX_STATEMENT_LENGTH = 160
_NUMBERS = re.compile(r"(?<![\w$.\"])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b")
_LISTS = re.compile(r"(?:'…'|…)(?:\s*,\s*(?:'…'|…|NULL|true|false))+")
_TUPLES = re.compile(r"(\(…\))(?:\s*,\s*\(…\))+")


@dataclass(frozen=True)
class SessionLook:
    """A session at one moment. The ages are of its statement and of its state."""

    server: str
    is_own: bool  # of the database by which the server was asked: it alone knows the names of tables
    pid: int
    state: str | None  # None: the role may not see it
    wait_event_type: str | None
    wait_event: str | None
    statement: str | None
    statement_sec: float
    state_sec: float
    blocked: BlockedSession | None = None

    @property
    def is_blocked(self) -> bool:
        return self.state == "active" and self.wait_event_type == "Lock"

    @property
    def wait(self) -> str | None:
        return f"{self.wait_event_type}: {self.wait_event}" if self.wait_event_type else None


def shorten_statement(query: str) -> str:
    """The statement without any constant, so that executions with other values are the same."""
    shown = _NUMBERS.sub("…", show_statement(query))
    shown = _TUPLES.sub(r"\1", _LISTS.sub("…", shown)).strip(" ;")
    return shown if len(shown) <= _MAX_STATEMENT_LENGTH else shown[: _MAX_STATEMENT_LENGTH - 1] + "…"


class _ServerLooks:
    """The looks at one server, by a thread that waits for each request."""

    def __init__(self, server: str, servers: TargetServers) -> None:
        self.server, self._servers = server, servers
        self._requested, self.is_closed = threading.Event(), False
        self._names: Sequence[str] = ()
        self._inquiry: Inquiry | None = None
        self._backoff = Backoff(first_sec=_FIRST_PAUSE_SEC, max_sec=_MAX_PAUSE_SEC)
        self._blocked: dict[int, BlockedSession] = {}
        self._blockers_read_at = 0.0
        self._next_at = 0.0
        self.looks: Mapping[str, Sequence[SessionLook]] = {}  # by attempt; replaced by the thread, as the next ones
        self.looked_at = 0.0
        self.problem: str | None = None
        self.look_count = 0

    def request(self, names: Sequence[str], now: float, interval_sec: float) -> None:
        if now < self._next_at:
            return
        if self._inquiry is not None and self._inquiry.done.is_set():
            self.problem = self._inquiry.answer.problem or self.problem
            self._inquiry, self._next_at, self.looks = None, now + _RECONNECT_SEC, {}
            return
        self._next_at = now + interval_sec * (0.5 if self.looks or self.look_count == 0 else _IDLE_INTERVALS)
        self._names = names
        self._requested.set()
        if self._inquiry is None:
            self._inquiry = self._servers.start(self.server, self._serve)

    def close(self) -> None:
        self.is_closed = True
        self._requested.set()

    def _serve(self, connection: Any) -> None:
        """Answer requests by this connection until the sampler ends."""
        connection.autocommit = True
        while not self.is_closed and self._requested.wait(_IDLE_SEC):
            self._requested.clear()
            if not self.is_closed:
                self._look(connection)

    def _look(self, connection: Any) -> None:
        named = statements("public")

        def execute(statement: str, parameters: dict[str, Any]) -> list[Any]:
            with connection.cursor() as cursor:
                cursor.execute(f"{BOUNDS}; {named[statement].text}", parameters)  # as one message, one transaction
                rows: list[Any] = cursor.fetchall()
                return rows

        ((rows, server_sec),) = execute("sample_sessions", {"names": array(self._names)})
        looks = [
            (
                name,
                SessionLook(
                    self.server, own, pid, state, wait_type, wait, query, statement_sec or 0.0, state_sec or 0.0
                ),
            )
            for name, own, pid, state, wait_type, wait, query, statement_sec, state_sec in rows
        ]
        waiting = [look.pid for _, look in looks if look.is_blocked]
        now = clock()
        if waiting and (
            now - self._blockers_read_at > _BLOCKERS_INTERVAL_SEC or not self._blocked.keys() >= {*waiting}
        ):
            names = sorted({name for name, look in looks if look.is_blocked})
            self._blocked, self._blockers_read_at = read_blocked(self.server, execute, names), now
        found: dict[str, list[SessionLook]] = {}
        for name, look in looks:
            values = {**vars(look), "statement": look.statement and shorten_statement(look.statement)}
            if look.is_blocked:
                values["blocked"] = self._blocked.get(look.pid)
            found.setdefault(name, []).append(SessionLook(**values))
        self.looks, self.looked_at = found, clock()
        self.look_count += 1
        hidden = any(look.state is None for _, look in looks)
        self.problem = "the role may not see what the sessions do" if hidden else None
        if server_sec > MAX_ANSWER_SEC:
            pause_sec = self._backoff.next_sec()
            self._next_at = clock() + pause_sec
            self.problem = (
                f"it took {server_sec * 1000:.0f} ms to answer, so that it was not asked for {pause_sec:.0f} s"
            )
        else:
            self._backoff = Backoff(first_sec=_FIRST_PAUSE_SEC, max_sec=_MAX_PAUSE_SEC)


class ServerLooks:
    """Looks at the queue's server and at targets. The sampler's thread uses it."""

    def __init__(self, dsns: Mapping[str, str], interval_sec: float) -> None:
        """`dsns` are those of databases, by the name of the server."""
        self._interval_sec = interval_sec
        servers = TargetServers(dsns)
        by_dsn = {dsn: name for name, dsn in reversed([*dsns.items()])}  # the first name of each
        self._servers = [_ServerLooks(name, servers) for name in dsns if name in by_dsn.values()]

    def request(self, names: Sequence[str]) -> None:
        """Have the sessions of these attempts looked at, without waiting for it."""
        if names:
            now = clock()
            for server in self._servers:
                server.request(names, now, self._interval_sec)

    def latest(self, name: str) -> list[SessionLook]:
        """The last looks at the sessions of an attempt that are not older than two intervals."""
        oldest = clock() - 2 * self._interval_sec - MAX_ANSWER_SEC
        looks = [look for server in self._servers if server.looked_at >= oldest for look in server.looks.get(name, ())]
        return sorted(looks, key=lambda look: not look.is_own)

    @property
    def problems(self) -> dict[str, str]:
        return {server.server: server.problem for server in self._servers if server.problem is not None}

    @property
    def look_count(self) -> int:
        return sum(server.look_count for server in self._servers)

    def close(self) -> None:
        for server in self._servers:
            server.close()
