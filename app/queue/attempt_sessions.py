"""Ends the sessions that attempts have open, on every server that the settings name.

A server does not notice that a client has died while it runs the client's statement. So before a job is queued again or
settled after a death, a lost lease or a stop, the sessions of its attempt are ended. They have the attempt's name as
`application_name`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg2
from psycopg2 import extensions as ext

from dataloader.app.db.connection import split_hosts
from dataloader.app.db.statements import statements
from dataloader.app.errors import UnknownTarget

QUEUE_DATABASE = "queue database"  # the name in reports of the server that no target names
END_SESSIONS_TIMEOUT_SEC = 2.0  # to reach a server, and again for its sessions to end
_JOIN_MARGIN_SEC = 0.5  # beyond both, for a thread that waits for a name server
_POLL_INTERVAL_SEC, _MAX_POLL_INTERVAL_SEC = 0.01, 0.1


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """Where an attempt may write: the queue's own database, and the targets that the settings name."""

    dsn: str
    schema: str
    targets: Mapping[str, str]
    connect_timeout_sec: float = 10.0
    wrap_drivers: bool = True  # also connections that its code opens itself are stopped

    @property
    def client_options(self) -> dict[str, Any]:
        """Of libpq: how a client finds that its server does not answer any more."""
        return {
            "connect_timeout": max(2, int(self.connect_timeout_sec)),
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        }

    def dsn_of(self, target: str) -> str:
        """The target's own DSN, else that of `default`, else the queue's database. Raises UnknownTarget."""
        dsn = self.targets.get(target) or self.targets.get("default") or self.dsn
        if not dsn:
            raise UnknownTarget(target, tuple(self.targets))
        return dsn


@dataclass(frozen=True)
class ServerSessions:
    """The sessions of an attempt on one server."""

    target: str
    is_reached: bool
    ended: int = 0
    remaining: tuple[str, ...] = ()  # names of those still there: of other roles, or of a stuck process


@dataclass(frozen=True)
class SessionsEnded:
    servers: tuple[ServerSessions, ...] = ()

    @property
    def ended(self) -> int:
        return sum(server.ended for server in self.servers)

    @property
    def is_complete(self) -> bool:
        return not any(server.remaining or not server.is_reached for server in self.servers)

    @property
    def unresolved_targets(self) -> list[str]:
        """The targets on which something may still run."""
        return [server.target for server in self.servers if server.remaining or not server.is_reached]

    def targets_with_session(self, name: str) -> list[str]:
        """The targets on which a statement of the attempt with this name may still run."""
        return [server.target for server in self.servers if name in server.remaining or not server.is_reached]


def attempt_application_name(job_id: UUID, run_id: UUID) -> str:
    """At most 63 bytes, which is what a server keeps of a name; the start of the run's id spares its successor."""
    return f"dataloader:{job_id}:{str(run_id)[:8]}"


def server_dsns(settings: ConnectionSettings) -> dict[str, str]:
    """Every server of the settings by the name for reports, each account once. Every host of a DSN is a server of its
    own: after a failover an attempt's session may be on the former one."""
    servers: dict[str, str] = {}
    named = {QUEUE_DATABASE: settings.dsn, **settings.targets} if settings.dsn else dict(settings.targets)
    for name, dsn in named.items():
        hosts = split_hosts(dsn)
        for host in hosts:
            label = name if len(hosts) == 1 else f"{name} at {ext.parse_dsn(host).get('host', 'its address')}"
            if host not in servers.values():
                servers[label] = host
    return servers


def foreign_server_dsns(settings: ConnectionSettings) -> dict[str, str]:
    """The servers other than the queue's own database."""
    own = set(split_hosts(settings.dsn)) if settings.dsn else set()
    return {name: dsn for name, dsn in server_dsns(settings).items() if dsn not in own}


def all_unreached(servers: Iterable[str]) -> SessionsEnded:
    return SessionsEnded(tuple(ServerSessions(target, is_reached=False) for target in servers))


def end_sessions(
    servers: Mapping[str, str], names: Iterable[str], *, timeout_sec: float = END_SESSIONS_TIMEOUT_SEC
) -> SessionsEnded:
    """End the sessions of these names on all the servers at once, and wait until they are gone.

    Returns after twice the timeout at the latest. Never raises: what could not be ended is in the report.
    """
    wanted = sorted(set(names))
    if not wanted or not servers:
        return SessionsEnded()
    reports = {target: ServerSessions(target, is_reached=False) for target in servers}
    threads = [
        threading.Thread(
            target=_end_sessions_on, args=(reports, target, dsn, wanted, timeout_sec), name="end-sessions", daemon=True
        )
        for target, dsn in servers.items()
    ]
    started = [thread for thread in threads if start_thread(thread)]
    deadline = time.monotonic() + 2 * timeout_sec + _JOIN_MARGIN_SEC
    for thread in started:
        thread.join(max(0.0, deadline - time.monotonic()))
    return SessionsEnded(tuple(reports[target] for target in servers))


def start_thread(thread: threading.Thread) -> bool:
    """False: the system has no resources for another thread, which must not end the calling one."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


def _end_sessions_on(
    reports: dict[str, ServerSessions], target: str, dsn: str, names: Sequence[str], timeout_sec: float
) -> None:
    """Each step replaces the report, so that it is right whenever it is read."""
    with suppress(psycopg2.Error), closing(_connect(dsn, timeout_sec)) as connection:
        seen: set[int] = set()
        deadline, pause = time.monotonic() + timeout_sec, _POLL_INTERVAL_SEC
        while True:
            left = _terminate_once(connection, names)
            seen |= left.keys()
            reports[target] = ServerSessions(target, True, len(seen) - len(left), tuple(sorted(set(left.values()))))
            if not left or time.monotonic() > deadline:
                return
            time.sleep(pause)  # pg_terminate_backend only sends the signal
            pause = min(2 * pause, _MAX_POLL_INTERVAL_SEC)


def _terminate_once(connection: Any, names: Sequence[str]) -> dict[int, str]:
    with connection.cursor() as cursor:
        cursor.execute(statements("public")["end_attempt_sessions"].text, {"names": list(names)})
        return {pid: name for pid, name, _ in cursor.fetchall()}


def _connect(dsn: str, timeout_sec: float) -> Any:
    """A blocking one: psycopg2 looks up the address of an asynchronous connection without releasing the GIL."""
    connection = psycopg2.connect(
        ext.make_dsn(dsn, target_session_attrs="any"),  # a former primary may have sessions, too
        application_name="dataloader-stop",
        connect_timeout=max(2, int(timeout_sec)),  # libpq knows no shorter one
        tcp_user_timeout=int(timeout_sec * 1000),
    )
    connection.autocommit = True
    return connection
