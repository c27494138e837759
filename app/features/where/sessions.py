"""The sessions of an attempt on the queue's server and on targets: what each does, and who blocks it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import UUID

from dataloader.app import log
from dataloader.app.db.encoding import array, unquoted_array
from dataloader.app.db.statements import Executor, statements
from dataloader.app.errors import DatabaseUnavailable, RightsMissing
from dataloader.app.features.targets.servers import FULL_WAIT_SEC, STATEMENT_TIMEOUT_SEC, Question, TargetServers
from dataloader.app.wording import format_duration

QUEUE_SERVER = "queue server"  # its name here; the others are those of targets
MAX_STATEMENT_LENGTH = 500
MAX_SESSIONS = 20  # of an attempt on one server, and as many that block them
MAX_TARGETS = 10  # that are asked for one job
_CUT = "…"
_NOT_VISIBLE = "the role may not see what these sessions do: their user is another one, and it lacks pg_read_all_stats"
_PREFIX_PARTS = 3  # of dataloader:<job>:<run>
BOUNDS = f"SET LOCAL statement_timeout = '{STATEMENT_TIMEOUT_SEC}s'; SET LOCAL lock_timeout = '1s'"
# What quotes may be in: comments, names, and constants of three forms. In that of E'…' a backslash escapes.
_QUOTED = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|"(?:""|[^"])*(?:"|\Z)|\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)"""
    r"""|(?P<escapes>(?<!\w)[eE]'(?:''|\\.|[^'\\])*(?:'|\\?\Z))|(?P<constant>'(?:''|[^'])*(?:'|\Z))""",
    re.DOTALL,
)

Row = Sequence[Any]


@dataclass(frozen=True, kw_only=True)
class SqlSession:
    """A session of the attempt. `statement` is the last one, without its text constants: the current one while `state`
    is active. `lock_on` is the table whose lock it waits for, or whose row. `waits_for`: the pids that block it; 0 is a
    prepared transaction. `visible`: the role may see what it does; otherwise its state, times, wait and statement are
    null."""

    pid: int
    database: str | None
    user: str | None
    state: str | None
    state_sec: float | None
    transaction_sec: float | None
    wait_event_type: str | None
    wait_event: str | None
    statement: str | None
    lock_on: str | None
    waits_for: list[int]
    visible: bool


@dataclass(frozen=True, kw_only=True)
class Blocker:
    """A session that blocks one of the attempt, or another blocker. `root`: it waits for no lock itself. `job_id`: it
    is the session of an attempt of that job. A `pid` of 0 is a prepared transaction."""

    pid: int
    application_name: str | None
    user: str | None
    database: str | None
    kind: str | None
    state: str | None
    state_sec: float | None
    transaction_sec: float | None
    waits_for: list[int]
    root: bool
    job_id: UUID | None

    @property
    def owner(self) -> str:
        """Such as `psql (user ann)`: what is the same in each run."""
        if self.pid == 0:
            return "a prepared transaction"
        if self.job_id is not None:
            return f"job {self.job_id}"
        name = self.application_name or self.kind or "a session"
        return f"{name} (user {self.user})" if self.user else name

    @property
    def description(self) -> str:
        """Such as `pid 77 (psql, user ann), idle in transaction, its transaction 12 min old`."""
        if self.pid == 0:
            return "a prepared transaction"
        if self.job_id is not None:
            names = [f"job {self.job_id}"]
        else:
            kind = None if self.kind == "client backend" else self.kind
            names = [name for name in (self.application_name or kind, self.user and f"user {self.user}") if name]
        state = f", {self.state}" if self.state else ""
        age = "" if self.transaction_sec is None else f", its transaction {format_duration(self.transaction_sec)} old"
        who = f" ({', '.join(names)})" if names else ""
        return f"pid {self.pid}{who}{state}{age}"


@dataclass(frozen=True, kw_only=True)
class ServerSessions:
    """The sessions of the attempt on one server, and their blockers, roots first. `problem`: why it was not read, or
    what the role may not see there."""

    server: str
    problem: str | None
    sessions: list[SqlSession] = field(default_factory=list)
    blockers: list[Blocker] = field(default_factory=list)


@dataclass(frozen=True)
class BlockedSession:
    """For what a session waits: the table, and who holds it up at the root, without times."""

    lock_on: str | None
    holder: str | None


@dataclass(frozen=True)
class _Reading:
    """What was read by a connection to one database of a server."""

    server: str
    problem: str | None = None
    sessions: Sequence[tuple[str, SqlSession]] = ()  # each with the name of its attempt
    blockers: Sequence[Blocker] = ()
    started_at: str | None = None  # of the server, by which the same one is known under another name
    database: str | None = None


def read_servers(
    executor: Executor,
    servers: TargetServers,
    targets: Collection[str],
    names: Sequence[str],
    *,
    wait_sec: float = FULL_WAIT_SEC,
) -> dict[str, list[ServerSessions]]:
    """Read the sessions of these attempts on the queue's server and on targets, which are asked at once; by the
    application name of the attempt."""
    asked = list(dict.fromkeys(target for target in targets if not servers.is_queue_database(target)))[:MAX_TARGETS]
    questions: dict[tuple[str, Hashable], Question] = {
        (target, ("where", *names)): partial(_read_target, target, names) for target in asked
    }
    readings = [_read_queue_server(executor, names)]
    for (target, _), answer in servers.ask(questions, wait_sec=wait_sec).items():
        reading: _Reading | None = answer.value
        readings.append(reading or _Reading(target, answer.problem))
    owners = _owners(readings)
    return {name: [_sessions_of(name, reading, owners) for reading in readings] for name in names}


def _read_queue_server(executor: Executor, names: Sequence[str]) -> _Reading:
    try:
        return _read(QUEUE_SERVER, executor.execute, names)
    except (DatabaseUnavailable, RightsMissing) as error:
        return _Reading(QUEUE_SERVER, str(log.mask(str(error))))


def _owners(readings: Sequence[_Reading]) -> dict[tuple[str | None, int], _Reading]:
    """By which reading each session is shown: that of its own database, since a server lists those of all of them."""
    owners: dict[tuple[str | None, int], _Reading] = {}
    for reading in readings:
        for _, session in reading.sessions:
            key = (reading.started_at, session.pid)
            if key not in owners or session.database == reading.database:
                owners[key] = reading
    return owners


def _sessions_of(name: str, reading: _Reading, owners: Mapping[tuple[str | None, int], _Reading]) -> ServerSessions:
    own = [
        session
        for of_name, session in reading.sessions
        if of_name == name and owners[reading.started_at, session.pid] is reading
    ]
    hidden = None if all(session.visible for session in own) else _NOT_VISIBLE
    return ServerSessions(
        server=reading.server,
        problem=reading.problem or hidden,
        sessions=own[:MAX_SESSIONS],
        blockers=_blockers_of(own, reading.blockers)[:MAX_SESSIONS],
    )


def _blockers_of(sessions: Sequence[SqlSession], blockers: Sequence[Blocker]) -> list[Blocker]:
    """Those for which these sessions wait, and so on up to the roots."""
    waits_for = {blocker.pid: blocker.waits_for for blocker in blockers}
    reached: set[int] = set()
    pending = [pid for session in sessions for pid in session.waits_for]
    while pending:
        pid = pending.pop()
        if pid not in reached:
            reached.add(pid)
            pending += waits_for.get(pid, ())
    return [blocker for blocker in blockers if blocker.pid in reached]


def _read_target(target: str, names: Sequence[str], connection: Any) -> _Reading:
    """In a read-only transaction whose bounds end with it: behind a pooler the session is another's afterwards."""
    named = statements("public")
    with connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute(BOUNDS)

        def execute(statement: str, parameters: dict[str, Any]) -> list[Row]:
            cursor.execute(named[statement].text, parameters)
            rows: list[Row] = cursor.fetchall()
            return rows

        return _read(target, execute, names)


def _read(server: str, execute: Callable[[str, dict[str, Any]], Sequence[Row]], names: Sequence[str]) -> _Reading:
    rows = execute("where_sessions", {"names": array(names)})
    sessions = [(row[0], _session(row[1:-2])) for row in rows]
    waiting = [session.pid for _, session in sessions if session.waits_for]
    blockers = []
    if waiting:
        blockers = [_blocker(row) for row in execute("where_blockers", {"pids": unquoted_array(waiting)})]
    started_at, database = rows[0][-2:] if rows else (None, None)
    return _Reading(server, None, sessions, blockers, started_at, database)


def read_blocked(
    server: str, execute: Callable[[str, dict[str, Any]], Sequence[Row]], names: Sequence[str]
) -> dict[int, BlockedSession]:
    """For what the sessions of these attempts wait that wait for a lock, by pid."""
    reading = _read(server, execute, names)
    blocked = {}
    for _, session in reading.sessions:
        if session.waits_for:
            blockers = _blockers_of([session], reading.blockers)
            roots = [blocker for blocker in blockers if blocker.root]
            direct = [blocker for blocker in blockers if blocker.pid in session.waits_for]  # those of a deadlock
            holder = next(iter([*roots, *direct]), None)
            blocked[session.pid] = BlockedSession(session.lock_on, None if holder is None else holder.owner)
    return blocked


def _session(row: Row) -> SqlSession:
    pid, database, user, state, state_sec, transaction_sec, wait_type, wait_event, query, lock_on, waits_for = row
    visible = state is not None
    return SqlSession(
        pid=pid,
        database=database,
        user=user,
        state=state,
        state_sec=_age(state_sec),
        transaction_sec=_age(transaction_sec),
        wait_event_type=wait_type,
        wait_event=wait_event,
        statement=show_statement(query) if visible and query else None,
        lock_on=lock_on,
        waits_for=[*dict.fromkeys(waits_for)],
        visible=visible,
    )


def _blocker(row: Row) -> Blocker:
    pid, application_name, user, database, kind, state, state_sec, transaction_sec, waits_for = row
    return Blocker(
        pid=pid,
        application_name=application_name or None,
        user=user,
        database=database,
        kind=kind,
        state=state,
        state_sec=_age(state_sec),
        transaction_sec=_age(transaction_sec),
        waits_for=[*dict.fromkeys(waits_for)],
        root=not waits_for,
        job_id=job_of_session(application_name),
    )


def _age(seconds: float | None) -> float | None:
    """Without the fraction of a clock that was set back."""
    return None if seconds is None else round(max(0.0, seconds), 1)


def job_of_session(application_name: str | None) -> UUID | None:
    """The job whose attempt has opened a session of this name."""
    parts = (application_name or "").split(":", _PREFIX_PARTS)
    if len(parts) >= _PREFIX_PARTS and parts[0] == "dataloader":
        with suppress(ValueError):
            return UUID(parts[1])
    return None


def show_statement(query: str) -> str:
    """The beginning of a statement, masked as log lines are, without its text constants: a driver that fills in
    parameters has made constants of them."""
    shown = " ".join(str(log.mask(_QUOTED.sub(_hide, query))).split())
    return shown if len(shown) <= MAX_STATEMENT_LENGTH else shown[: MAX_STATEMENT_LENGTH - 1] + _CUT


def _hide(found: re.Match[str]) -> str:
    if found["tag"] is not None:
        return f"$${_CUT}$$"
    if found["escapes"] is None and found["constant"] is None:
        return found[0]
    return "''" if found[0] == "''" else f"'{_CUT}'"
