"""The sessions of a running job, and sentences about what they wait for."""

from __future__ import annotations

from collections.abc import Sequence

from dataloader.app.db.statements import Executor
from dataloader.app.features.targets.rows import TargetRows
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.features.where.sessions import QUEUE_SERVER, ServerSessions, SqlSession, read_servers
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.queue.job import Job
from dataloader.app.wording import format_duration


def read_sessions(
    executor: Executor, servers: TargetServers, job: Job, *, only_named: bool = False, wait_sec: float
) -> list[ServerSessions]:
    """The sessions of a running job. Of the targets those are asked first that the job or its task names, and no others
    if `only_named`."""
    if job.run_id is None:
        return []
    rows = TargetRows(executor)
    named = [claimed.target for claimed in rows.of_job(job.id)]
    named += [target for target, tasks in rows.tasks().items() if job.task in tasks]
    others = () if only_named else servers.names
    known = [target for target in (*named, *others) if servers.dsn_of(target) is not None]
    name = attempt_application_name(job.id, job.run_id)
    return read_servers(executor, servers, known, [name], wait_sec=wait_sec)[name]


def find_blocked(servers: Sequence[ServerSessions]) -> list[tuple[ServerSessions, SqlSession]]:
    """The sessions that wait for a lock."""
    return [(server, session) for server in servers for session in server.sessions if session.waits_for]


def describe_sql(servers: Sequence[ServerSessions]) -> str | None:
    """The session that is blocked, else the one whose statement has run longest; None: no statement is executed."""
    if blocked := find_blocked(servers):
        return describe_lock(*blocked[0])
    active = [(server, session) for server in servers for session in server.sessions if session.state == "active"]
    if not active:
        return None
    server, session = max(active, key=lambda found: found[1].state_sec or 0.0)
    wait = f", and waits for {session.wait_event_type}: {session.wait_event}" if session.wait_event_type else ""
    since = "" if session.state_sec is None else f" for {format_duration(session.state_sec)}"
    return f"a statement{_on(server)} has run{since}{wait}"


def describe_lock(server: ServerSessions, session: SqlSession) -> str:
    """For what a session waits, who holds it, and who holds that one up at the root."""
    since = "" if session.state_sec is None else f" {format_duration(session.state_sec)}"
    lock = f"a lock on {session.lock_on}" if session.lock_on else "a lock"
    text = f"a statement{_on(server)} has waited{since} for {lock}"
    by_pid = {blocker.pid: blocker for blocker in server.blockers}
    direct = [by_pid[pid] for pid in session.waits_for if pid in by_pid]
    if not direct:
        return text
    if holders := [blocker for blocker in direct if blocker.root]:
        return f"{text}, held by {holders[0].description}"
    root = next((blocker for blocker in server.blockers if blocker.root), None)
    text = f"{text}, behind {direct[0].description}"
    return text if root is None else f"{text}; at the root is {root.description}"


def _on(server: ServerSessions) -> str:
    return "" if server.server == QUEUE_SERVER else f" in target {server.server!r}"
