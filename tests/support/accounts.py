"""Accounts of attempts, as the sampler writes them."""

from __future__ import annotations

from dataloader.app.features.where.account import Account, Cause
from dataloader.app.features.where.accounts import NewAccount
from dataloader.app.queue.job import ClaimedJob

LOAD = Cause("python", "load in sales/load.py:88")
LOCKED = Cause("sql_lock", "load in sales/load.py:90", "sales", "UPDATE sales SET amount = …", "psql (user ann)")


def make_account(
    run: ClaimedJob, wall_sec: float, causes: dict[Cause, float] | None = None, *, has_ended: bool = True
) -> NewAccount:
    account = Account()
    for cause, sec in (causes or {LOAD: wall_sec}).items():
        account.add(cause, sec)
    return NewAccount(
        run_id=run.run_text,
        job_id=run.id_text,
        task=run.task,
        attempt=run.attempt,
        has_ended=has_ended,
        wall_sec=wall_sec,
        cpu_sec=wall_sec / 2,
        peak_memory_mb=100.0,
        memory_gb_sec=wall_sec / 10,
        rows=1000,
        bytes=20_000,
        cost=0.5,
        account=account.encode(str),
    )
