"""Bloat, transactions that are in the way, and what waits in vain."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.doctor.findings import Finding, error, info, ok, warning
from app.queue.examination import Table, Transaction
from app.wording import counted

LONG_SEC = 300.0
_VERY_LONG_SEC = 3600.0
_FEW_DEAD, _DEAD_SHARE = 50_000, 0.5
_SHOWN = 5


def judge_tables(tables: Sequence[Table]) -> Iterator[Finding]:
    bloated = [table for table in tables if table.dead > _FEW_DEAD and table.dead > _DEAD_SHARE * max(table.live, 1)]
    for table in bloated:
        ago = "never" if table.vacuumed_sec is None else f"{table.vacuumed_sec / 60:.0f} minutes ago"
        yield warning(
            "bloat",
            f"{table.name} has {table.dead:,} dead rows beside {table.live:,} live ones; vacuum was there {ago}",
            f"VACUUM {table.name}; if they stay, end the transactions below first",
            table=table.name, dead=table.dead, live=table.live, bytes=table.size,
        )  # fmt: skip
    if not bloated:
        size = sum(table.size for table in tables)
        yield ok("bloat", f"no table is bloated; together they take {size / 2**20:,.0f} MB", bytes=size)


def judge_retention(is_held: bool, *, is_decided: bool) -> Iterator[Finding]:
    if is_held and not is_decided:
        yield info(
            "retention",
            "the tables were upgraded from version 0, and workers delete nothing from them",
            "DL_RETENTION=true lets workers delete what is older than DL_KEEP_…, DL_RETENTION=false keeps everything",
        )


def judge_transactions(found: Sequence[Transaction]) -> Iterator[Finding]:
    for one in found:
        facts = {**vars(one)}
        if one.which == "slot":
            yield warning(
                "transactions",
                f"the replication slot {one.name} ({one.state}) keeps dead rows from vacuum",
                f"SELECT pg_drop_replication_slot('{one.name}'); or let its reader catch up",
                **facts,
            )
        elif one.which == "prepared":
            yield warning(
                "transactions",
                f"the prepared transaction {one.name} of {one.user} is {_age(one)} old",
                f"ROLLBACK PREPARED '{one.name}'",
                **facts,
            )
        else:
            yield _session(one, facts)
    if not found:
        yield ok("transactions", f"no transaction is older than {LONG_SEC / 60:.0f} minutes")


def _session(one: Transaction, facts: Mapping[str, Any]) -> Finding:
    name = one.name or "a session without a name"
    told = f"{name} (pid {one.which}, {one.user or 'another role'}) has had a transaction for {_age(one)}"
    told += f", {one.state}" if one.state else ""
    told += f": {one.query}" if one.query else ""
    end = f"SELECT pg_terminate_backend({one.which})"
    remedy = f"{end}; or let it end: until then vacuum removes no dead row"
    if one.name.startswith("dataloader-"):
        return error("transactions", told, f"{end}; none of ours is ever that long", **facts)
    say = warning if one.here and ((one.age_sec or 0) > _VERY_LONG_SEC or one.state.startswith("idle")) else info
    return say("transactions", told, remedy, **facts)


def _age(one: Transaction) -> str:
    minutes = (one.age_sec or 0) / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"  # noqa: PLR2004 - of minutes


def judge_queue(told: Mapping[str, Any]) -> Iterator[Finding]:
    found = [*_without_workers(told), *_running(told), *_keys(told), *_names(told), *_telling(told)]
    yield from found
    if not found:
        yield ok(
            "queue",
            f"{counted(told['live'], 'live worker process', 'live worker processes')}, and nothing waits in vain",
            live=told["live"],
        )


def _without_workers(told: Mapping[str, Any]) -> Iterator[Finding]:
    if queues := told["queues_without_worker"]:
        yield error(
            "queues_without_worker",
            f"jobs wait in {_named(queues)}, where no live worker works",
            " ".join(["dataloader worker", *(f"--queue {shlex.quote(f'{name}:1')}" for name in queues)])
            + "; if the trigger misspelt a name: dataloader bulk cancel --queue NAME",
            queues=queues,
        )
    if tasks := told["tasks_without_worker"]:
        yield error(
            "tasks_without_worker",
            f"no live worker knows {_named(tasks)}, which jobs wait for",
            "name the package that has it in DL_PIPELINES of a worker, and start that again; `dataloader tasks` lists "
            "what is found; if the trigger misspelt a task: dataloader bulk cancel --task NAME",
            tasks=tasks,
        )


def _running(told: Mapping[str, Any]) -> Iterator[Finding]:
    if expired := told["expired"]:
        job, worker, seconds = expired[0]
        yield error(
            "expired_leases",
            f"{counted(len(expired), 'run')} lost the lease and no reaper takes it back, such as job {job} of "
            f"{worker}, {seconds:.0f} s ago",
            "dataloader worker; the reaper of any worker process takes them back",
            runs=expired,
        )
    if odd := told["odd_leases"]:
        job, worker, until, heartbeat = odd[0]
        yield warning(
            "odd_leases",
            f"{len(odd)} running jobs have a lease or a heartbeat in a future that no worker writes, such as job {job} "
            f"of {worker or 'no worker'}: lease until {until}, heartbeat {heartbeat or 'never'}",
            "another service has written it, or the server's clock was set back; the job is taken from its worker "
            "lease_ttl_sec after its last heartbeat; claims and heartbeats write lease_expires_at, nothing else should",
            runs=odd,
        )
    if unstopped := told["unstopped"]:
        job, worker, why = unstopped[0]
        yield warning(
            "stuck_jobs",
            f"asked to stop and still running: {counted(len(unstopped), 'run')}, such as job {job} of {worker}: "
            f"{why or 'canceled'}",
            f"end the worker process {worker} with SIGTERM: after DL_SHUTDOWN_GRACE_SEC it leaves them; the pipeline "
            "needs safe points",
            runs=unstopped,
        )


def _keys(told: Mapping[str, Any]) -> Iterator[Finding]:
    if foreign := told["foreign_keys"]:
        key, pid, name = foreign[0]
        yield warning(
            "foreign_keys",
            f"held by sessions without such a job: {counted(len(foreign), 'key')} that jobs wait for, such as "
            f"{key!r} by {name or 'a session'} (pid {pid})",
            "; ".join(f"SELECT pg_terminate_backend({holder})" for holder in sorted({pid for _, pid, _ in foreign}))
            + "; an attempt that lost its lease, or another service with the same key",
            keys=foreign,
        )


def _names(facts: Mapping[str, Any]) -> Iterator[Finding]:
    for name, workers in facts["shared_names"]:
        yield error(
            "shared_worker_names",
            f"{len(workers)} live worker processes have DL_WORKER_NAME={name}: {_named(workers)}",
            "give each a name of its own, or none: they take no jobs from each other while both live, and a frozen one"
            " loses its jobs",
            name=name, workers=workers,
        )  # fmt: skip


def _telling(told: Mapping[str, Any]) -> Iterator[Finding]:
    if webhooks := told["webhooks_disabled"]:
        yield warning(
            "webhooks_disabled",
            f"switched off: {counted(len(webhooks), 'webhook')}",
            "; ".join(f"dataloader webhooks edit {webhook} --on" for webhook in webhooks),
        )
    if told["alerts_firing"]:
        yield warning(
            "alerts",
            f"firing: {counted(told['alerts_firing'], 'alert')}",
            "dataloader alerts list names each; it ends with its cause",
        )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
