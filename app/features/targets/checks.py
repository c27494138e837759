"""The part of doctor: whether targets can be reached and are fenced, and what is left over there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID

from dataloader.app.acts.findings import Finding, Severity, error, info, ok, warning
from dataloader.app.db.statements import Executor
from dataloader.app.features.targets.rows import MAX_KEPT_READ, KeptRows, TargetRows, read_states
from dataloader.app.features.targets.server_rows import MAX_COUNTED_ROWS, IdleHolder, TableState
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.queue.attempt_sessions import attempt_application_name
from dataloader.app.wording import format_count, format_duration

_MAX_LISTED = 5  # tasks in one message


def check_targets(executor: Executor, servers: TargetServers | None) -> Iterator[Finding]:
    """Contacts the targets of the settings that a task names, or that have rows."""
    rows, servers = TargetRows(executor), servers or TargetServers({})
    tasks, kept = rows.tasks(), {entry.target: entry for entry in rows.kept()}
    yield from _unknown_targets(servers, kept)
    states = read_states(servers, sorted(tasks.keys() | kept.keys()))
    for target, answer in states.items():
        named_by = tasks.get(target, [])
        if answer.value is None:
            if servers.entry_of(target) is not None:
                yield _unreachable(target, str(answer.problem), named_by)
            continue
        state: TableState = answer.value
        yield _fence_finding(target, state, named_by)
        yield from _left_rows(target, state, kept.get(target))
        yield from _idle_sessions(target, state, rows)


def _unknown_targets(servers: TargetServers, kept: Mapping[str, KeptRows]) -> Iterator[Finding]:
    for target, entry in kept.items():
        if servers.entry_of(target) is None:
            yield info(
                "target_unknown",
                f"{_counted(entry.rows)} of jobs may be in a target that the settings do not name: {target!r}",
                f"name {target!r} in DL_TARGETS of a worker, which then deletes those that no job needs",
                target=target,
                rows=entry.rows,
            )


def _unreachable(target: str, problem: str, tasks: list[str]) -> Finding:
    message = f"target {target!r}, which {_named_by(tasks)}, cannot be read from here: {problem}"
    remedy = f"start its server, or correct the entry {target!r} of DL_TARGETS"
    find = warning if tasks else info
    return find("target_unreachable", message, remedy, target=target, tasks=tasks, problem=problem)


def _fence_finding(target: str, state: TableState, tasks: list[str]) -> Finding:
    """Not fenced is a fault where a task names the target: others use it without transactions."""
    facts = {"target": target, "tasks": tasks, "table": state.name, "rows": state.rows}
    if state.has_other_shape:
        return error("target_table", f"{state.problem}; each of its jobs fails", state.remedy, **facts)
    if state.problem is not None:
        severity = Severity.WARNING if tasks else Severity.INFO
        fact = state.problem.removesuffix(f"; {state.remedy}").partition("; its owner creates it")[0]
        message = f"not fenced: {fact}; an attempt that has lost its job may go on writing there"
        return Finding("target_not_fenced", severity, message, state.remedy, facts)
    if state.name is None:
        return ok("target_not_fenced", f"target {target!r} gets its table dl_effects by the first attempt", **facts)
    more = " or more" if state.rows is not None and state.rows > MAX_COUNTED_ROWS else ""
    return ok("target_not_fenced", f"target {target!r} is fenced: {_counted(state.rows or 0)}{more}", **facts)


def _left_rows(target: str, state: TableState, kept: KeptRows | None) -> Iterator[Finding]:
    if state.name is not None and not state.may_delete:
        yield info(
            "target_rows",
            f"rows of jobs that have ended stay in target {target!r}, whose role may not delete them",
            f"GRANT DELETE ON {state.name} TO {state.role}",
            target=target,
            table=state.name,
        )
    elif kept is not None and kept.overdue:
        more = " at least" if kept.overdue >= MAX_KEPT_READ else ""
        yield info(
            "target_rows",
            f"rows that no job needs are left in target {target!r}:{more} {kept.overdue:,}",
            "a worker whose DL_TARGETS has it deletes them within hours; its log says why if it cannot",
            target=target,
            overdue=kept.overdue,
        )


def _idle_sessions(target: str, state: TableState, rows: TargetRows) -> Iterator[Finding]:
    """Sessions that hold rows and do nothing. That of a running attempt may wait for something else."""
    attempts = {holder.pid: _job_of(holder) for holder in state.idle_holders}
    running = rows.running({job_id for job_id in attempts.values() if job_id is not None})
    for holder in state.idle_holders:
        job_id = attempts[holder.pid]
        run = running.get(job_id) if job_id is not None else None
        is_running = (
            job_id is not None and run is not None and holder.application_name == attempt_application_name(job_id, run)
        )
        whose = _whose(holder, job_id, is_running=is_running)
        message = (
            f"in target {target!r} {whose} (pid {holder.pid}) has been idle in a transaction that holds rows of "
            f"{state.name} for {format_duration(holder.idle_sec)}: a next attempt of their jobs waits for its end"
        )
        find = info if is_running else warning
        remedy = f"dataloader cancel {job_id}" if is_running else f"SELECT pg_terminate_backend({holder.pid})"
        advice = "if it is not waiting for something on purpose" if is_running else f"there, in target {target!r}"
        yield find("target_sessions", message, f"{remedy}; {advice}", target=target, **vars(holder))


def _job_of(holder: IdleHolder) -> UUID | None:
    kind, _, rest = holder.application_name.partition(":")
    try:
        return UUID(rest.partition(":")[0]) if kind == "dataloader" else None
    except ValueError:
        return None


def _whose(holder: IdleHolder, job_id: UUID | None, *, is_running: bool) -> str:
    if job_id is None:
        return f"the session {holder.application_name!r}" if holder.application_name else "a session without a name"
    return f"the {'running attempt' if is_running else 'session of an attempt that has ended'} of job {job_id}"


def _named_by(tasks: list[str]) -> str:
    if not tasks:
        return "has rows of jobs"
    if len(tasks) == 1:
        return f"the task {tasks[0]} names"
    more = len(tasks) - _MAX_LISTED
    return f"the tasks {', '.join(tasks[:_MAX_LISTED])}{f' and {more} more' if more > 0 else ''} name"


def _counted(rows: int) -> str:
    return format_count(min(rows, MAX_COUNTED_ROWS), "row")
