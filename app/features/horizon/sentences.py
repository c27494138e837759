"""Describes a holder of the horizon in a sentence."""

from __future__ import annotations

from dataloader.app.acts.notes import Note
from dataloader.app.features.horizon.rows import Holder, HolderKind
from dataloader.app.wording import format_count, format_duration

_MINUTE_SEC = 60


def describe_holder(holder: Holder) -> Note:
    """Such as `the transaction of job … (load.orders, attempt 1) has been open for 2 h 10 min`."""
    if holder.job_id is not None:
        attempt = "an attempt that has ended" if holder.attempt is None else f"attempt {holder.attempt}"
        details = _details(holder.task or "", attempt, _database(holder))
        return Note("the transaction of job ", holder.job_id, f"{details}{_duration(holder)}{_consequence(holder)}")
    subject = _SUBJECTS[holder.kind](holder)
    return Note(f"{subject}{_duration(holder)}{_consequence(holder)}")


def _session(holder: Holder) -> str:
    if holder.worker is not None:
        role = holder.name.partition(":")[0]
        return f"a transaction of the worker process {holder.worker}" + _details(role, _pid(holder), holder.state)
    name = holder.name or ("a session without a name" if holder.owner else "a process of the server")
    return f"a transaction of {name}" + _details(_role(holder), _pid(holder), holder.state, _database(holder))


def _prepared(holder: Holder) -> str:
    return f"the prepared transaction {holder.name!r}" + _details(_role(holder), _database(holder))


def _slot(holder: Holder) -> str:
    return f"the replication slot {holder.name}" + _details(holder.state)


def _standby(holder: Holder) -> str:
    return f"a query on the standby {holder.name or 'without a name'}" + _details(_role(holder), _pid(holder))


_SUBJECTS = {
    HolderKind.TRANSACTION: _session,
    HolderKind.PREPARED: _prepared,
    HolderKind.SLOT: _slot,
    HolderKind.STANDBY: _standby,
}


def _details(*parts: str) -> str:
    shown = ", ".join(part for part in parts if part)
    return f" ({shown})" if shown else ""


def _role(holder: Holder) -> str:
    return f"user {holder.owner}" if holder.owner else ""


def _pid(holder: Holder) -> str:
    return f"pid {holder.pid}" if holder.pid is not None else ""


def _database(holder: Holder) -> str:
    return f"database {holder.database}" if holder.database else ""


def _duration(holder: Holder) -> str:
    count = format_count(holder.transactions, "transaction")
    if holder.kind in (HolderKind.SLOT, HolderKind.STANDBY):
        return f" needs the rows of {count} ago"
    if holder.age_sec is None:
        return f" has been open for {count} (this role may not see since when)"
    whole_sec = holder.age_sec - holder.age_sec % _MINUTE_SEC if holder.age_sec >= _MINUTE_SEC else holder.age_sec
    return f" has been open for {format_duration(whole_sec)}"


def _consequence(holder: Holder) -> str:
    end = "advances or is dropped" if holder.kind is HolderKind.SLOT else "ends"
    return f"; until it {end}, vacuum removes no row that was deleted later"
