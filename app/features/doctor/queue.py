"""Checks of bloat, long transactions, workers and jobs that no worker claims."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dataloader.app.acts.findings import Finding, error, info, join_names, ok, warning
from dataloader.app.features.doctor.facts import LockHolder, TableStats, Transaction
from dataloader.app.queue.labels import describe_missing, format_labels
from dataloader.app.wording import format_count, format_duration, suggestion

LONG_TRANSACTION_SEC = 300.0
LONG_LOCK_SEC = 60.0  # as long as a lease is by default
_VERY_LONG_TRANSACTION_SEC = 3600.0
_MIN_DEAD_ROWS, _MIN_DEAD_SHARE = 50_000, 0.5
_MAX_TASKS_SHOWN = 5
_MANY_LISTENERS = 30  # of one host
_UNKNOWN_TASK_REMEDY = (
    "add its package to DL_PIPELINES of a worker, and restart that; `dataloader tasks` lists the known tasks; "
    "if the trigger misspelt a task: dataloader bulk cancel --task NAME"
)
_LISTENER_TEXTS = {
    "listening": "with a LISTEN connection",
    "off": "without (DL_LISTEN=off)",
}


def check_tables(tables: Sequence[TableStats]) -> Iterator[Finding]:
    bloated = [
        table
        for table in tables
        if table.dead_rows > _MIN_DEAD_ROWS and table.dead_rows > _MIN_DEAD_SHARE * max(table.live_rows, 1)
    ]
    for table in bloated:
        ago = "never" if table.since_vacuum_sec is None else f"{table.since_vacuum_sec / 60:.0f} minutes ago"
        yield warning(
            "bloat",
            f"{table.name} has {table.dead_rows:,} dead rows and {table.live_rows:,} live ones; last vacuum: {ago}",
            f"VACUUM {table.name}; if they stay, end the transactions below first",
            table=table.name, dead=table.dead_rows, live=table.live_rows, bytes=table.size_bytes,
        )  # fmt: skip
    if not bloated:
        size = sum(table.size_bytes for table in tables)
        yield ok("bloat", f"no table is bloated; together they take {size / 2**20:,.0f} MB", bytes=size)


def check_transactions(transactions: Sequence[Transaction]) -> Iterator[Finding]:
    for transaction in transactions:
        name, facts = transaction.name, vars(transaction)
        if transaction.kind == "slot":
            message = f"the replication slot {name} ({transaction.state}) keeps vacuum from removing dead rows"
            remedy = f"SELECT pg_drop_replication_slot('{name}'); or let its reader catch up"
            yield warning("transactions", message, remedy, **facts)
        elif transaction.kind == "prepared":
            age = format_duration(transaction.age_sec or 0)
            message = f"the prepared transaction {name} of {transaction.user} is {age} old"
            yield warning("transactions", message, f"ROLLBACK PREPARED '{name}'", **facts)
        else:
            yield _transaction_finding(transaction, facts)
    if not transactions:
        yield ok("transactions", f"no transaction is older than {LONG_TRANSACTION_SEC / 60:.0f} minutes")


def _transaction_finding(transaction: Transaction, facts: Mapping[str, Any]) -> Finding:
    name = transaction.name or "a session without a name"
    message = (
        f"{name} (pid {transaction.kind}, {transaction.user or 'another role'}) has had a transaction for "
        f"{format_duration(transaction.age_sec or 0)}"
    )
    message += f", {transaction.state}" if transaction.state else ""
    message += f": {transaction.query}" if transaction.query else ""
    terminate = f"SELECT pg_terminate_backend({transaction.kind})"
    if transaction.name.startswith("dataloader-"):
        return error("transactions", message, f"{terminate}; the service has no transaction of that length", **facts)
    is_old = (transaction.age_sec or 0) > _VERY_LONG_TRANSACTION_SEC or transaction.state.startswith("idle")
    is_of_job = transaction.name.startswith("dataloader:")  # a load of hours is nothing wrong
    report = warning if transaction.is_in_database and is_old and not is_of_job else info
    remedy = f"{terminate}; or wait for its end: until then vacuum removes no dead row"
    return report("transactions", message, remedy, **facts)


def check_lock_holders(holders: Sequence[LockHolder]) -> Iterator[Finding]:
    for holder in holders:
        what = "the table of jobs" if holder.has_table else "jobs that it has changed or locked"
        message = (
            f"{holder.name or 'a session without a name'} (pid {holder.pid}, {holder.user}) has had a lock on {what}"
            f" for {format_duration(holder.age_sec)}: their leases are not renewed, and healthy jobs run again"
        )
        message += f"; {holder.state}" if holder.state else ""
        message += f": {holder.query}" if holder.query else ""
        yield warning("locks", message, f"SELECT pg_terminate_backend({holder.pid})", **vars(holder))
    if not holders:
        yield ok("locks", f"no session of others has held a lock on jobs for {LONG_LOCK_SEC:.0f} s")


def check_queue(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Also of the overview, which reads no locks: `foreign_keys` may be missing."""
    checks = (
        _check_workers,
        _check_reapers,
        _check_labels,
        _check_running,
        _check_lock_keys,
        _check_worker_names,
    )
    findings = [finding for check in checks for finding in check(facts)]
    yield from findings
    if not findings:
        workers = format_count(facts["live"], "live worker process", "live worker processes")
        yield ok("queue", f"{workers}, and no job waits in vain", live=facts["live"])


def check_listeners(counts: Sequence[tuple[str, str, int]]) -> Iterator[Finding]:
    """`counts`: host, state of the listener, worker processes."""
    by_state: Counter[str] = Counter()
    for _, state, workers in counts:
        by_state[state] += workers
    crowded = [
        (host, workers) for host, state, workers in counts if state == "listening" and workers >= _MANY_LISTENERS
    ]
    if crowded:
        host, workers = max(crowded, key=lambda found: found[1])
        yield info(
            "listeners",
            f"{workers} worker processes of {host} have a LISTEN connection each: notifications cost the server more",
            "run fewer processes with more threads each on this host, or set DL_LISTEN=off: idle workers then poll",
            host=host, workers=workers,
        )  # fmt: skip
    elif by_state:
        modes = ", ".join(
            f"{workers} {_LISTENER_TEXTS.get(state, state)}" for state, workers in sorted(by_state.items())
        )
        yield ok("listeners", f"notifications of worker processes: {modes}", **by_state)


def _check_workers(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if queues := facts["queues_without_worker"]:
        yield error(
            "queues_without_worker",
            f"jobs wait in {join_names(queues)}, which no live worker serves",
            " ".join(["dataloader worker", *(f"--queue {shlex.quote(f'{name}:1')}" for name in queues)])
            + "; if the trigger misspelt a name: dataloader bulk cancel --queue NAME",
            *(("queue", name) for name in queues),
            queues=queues,
        )
    known = frozenset(facts["known_tasks"])
    tasks = facts["tasks_without_worker"]
    for task in tasks[:_MAX_TASKS_SHOWN]:
        yield error(
            "tasks_without_worker",
            f"no live worker knows {task}; jobs wait{suggestion(task, known)}",
            _UNKNOWN_TASK_REMEDY,
            ("task", task),
            tasks=[task],
        )
    if others := tasks[_MAX_TASKS_SHOWN:]:
        yield error(
            "tasks_without_worker",
            f"no live worker knows {join_names(others)} either; jobs wait",
            _UNKNOWN_TASK_REMEDY,
            tasks=others,
        )


def _check_reapers(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if facts["live"] and not facts["reaping"]:
        yield error(
            "no_reaper",
            "no live worker process takes the jobs of dead ones: all have DL_REAPER=false. Jobs of a process that dies "
            "stay running, and hold their keys",
            "remove DL_REAPER=false from the environment of at least one worker process, and restart it",
            workers=facts["live"],
        )


def _check_labels(facts: Mapping[str, Any]) -> Iterator[Finding]:
    waiting = facts["labels_without_worker"]
    if waiting:
        queue, task, requires = waiting[0]
        labels = [label_set for of_queue, label_set in facts["labels"] if of_queue == queue]
        more = f"; the same of {format_count(len(waiting) - 1, 'other task')}" if len(waiting) > 1 else ""
        options = [f"--label {shlex.quote(format_labels({name: value}))}" for name, value in requires.items() if value]
        yield error(
            "labels_without_worker",
            f"{describe_missing(task, requires, labels, queue=queue)}; jobs wait{more}",
            " ".join(["dataloader worker", f"--queue {shlex.quote(f'{queue}:1')}", *options])
            + "; on a machine that is what its labels say",
            *sorted({("task", name) for _, name, _ in waiting}),
            tasks=sorted({name for _, name, _ in waiting}),
        )


def _check_running(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if expired := facts["expired"]:
        job, worker, seconds = expired[0]
        yield error(
            "expired_leases",
            f"{format_count(len(expired), 'run')} lost the lease and no reaper requeues it, such as job {job} of "
            f"{worker}, {format_duration(seconds)} ago",
            "dataloader worker; the reaper of any worker process requeues them",
            *(("job", job) for job, _, _ in expired),
            runs=expired,
        )
    if odd := facts["odd_leases"]:
        job, worker, until, heartbeat = odd[0]
        yield warning(
            "odd_leases",
            f"{len(odd)} running jobs have a lease or a heartbeat further in the future than any worker writes, "
            f"such as job {job} of {worker or 'no worker'}: lease until {until}, heartbeat {heartbeat or 'never'}",
            "another service has written it, or the server's clock was set back; the job is reaped lease_ttl_sec after "
            "its last heartbeat; only claims and heartbeats should write lease_expires_at",
            runs=odd,
        )
    if unstopped := facts["unstopped"]:
        job, worker, reason = unstopped[0]
        yield warning(
            "stuck_jobs",
            f"asked to stop and still running: {format_count(len(unstopped), 'run')}, such as job {job} of {worker}: "
            f"{reason or 'canceled'}",
            f"end the worker process {worker} with SIGTERM: after DL_SHUTDOWN_GRACE_SEC it leaves them; the pipeline "
            "should reach safe points",
            runs=unstopped,
        )


def _check_lock_keys(facts: Mapping[str, Any]) -> Iterator[Finding]:
    if foreign := facts.get("foreign_keys"):
        key, pid, name = foreign[0]
        yield warning(
            "foreign_keys",
            f"held by sessions that run no such job: {format_count(len(foreign), 'key')} that jobs wait for, such as "
            f"{key!r} by {name or 'a session'} (pid {pid})",
            "; ".join(f"SELECT pg_terminate_backend({holder})" for holder in sorted({pid for _, pid, _ in foreign}))
            + "; an attempt that lost its lease, or another service with the same key",
            keys=foreign,
        )


def _check_worker_names(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for name, workers in facts["shared_names"]:
        yield error(
            "shared_worker_names",
            f"{len(workers)} live worker processes have DL_WORKER_NAME={name}: {join_names(workers)}",
            "give each a name of its own, or none: while both live neither takes over the other's jobs, and a "
            "frozen one loses its jobs",
            *(("worker", worker) for worker in workers),
            name=name, workers=workers,
        )  # fmt: skip
