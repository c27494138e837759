"""The part of doctor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dataloader.app.acts.findings import Finding, info, ok
from dataloader.app.db.statements import Executor
from dataloader.app.features.horizon.rows import LONG_AGE_SEC, Holder, HolderKind, Horizon
from dataloader.app.features.horizon.sentences import describe_holder

_ADVICE = "only if the queue gets slower: else wait for its end"


def check_horizon(executor: Executor, _options: Any = None) -> Iterator[Finding]:
    long_holders = [holder for holder in Horizon(executor).holders() if holder.is_long]
    for holder in long_holders:
        yield info("horizon", describe_holder(holder).text, f"{_remedy(holder)}; {_ADVICE}", **vars(holder))
    if not long_holders:
        yield ok("horizon", f"nothing visible has delayed vacuum for {LONG_AGE_SEC / 60:.0f} minutes")


def _remedy(holder: Holder) -> str:
    if holder.job_id is not None and holder.attempt is not None:
        return f"dataloader cancel {holder.job_id}"
    if holder.kind is HolderKind.PREPARED:
        return f"ROLLBACK PREPARED {_literal(holder.name)}"
    if holder.kind is HolderKind.SLOT:
        return f"SELECT pg_drop_replication_slot({_literal(holder.name)})"
    if holder.kind is HolderKind.STANDBY:
        return "end the query on the standby, or set hot_standby_feedback = off there"
    return f"SELECT pg_terminate_backend({holder.pid})"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
