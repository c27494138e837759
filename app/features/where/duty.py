"""Ends the accounts of lost attempts, deletes those of jobs that do not exist any more, and old totals."""

from __future__ import annotations

import json
from dataclasses import fields
from uuid import UUID

from dataloader.app.features.where.accounts import Accounts, NewAccount, StoredAccount
from dataloader.app.features.where.sampler_options import Prices, WhereOptions
from dataloader.workers.duties import HOURLY_SEC, PRUNE_BATCH, Duty, DutyContext

_SLICE_INTERVAL_SEC = 0.05
_LOST_INTERVAL_SEC = 300.0
_MAX_LOST = 200  # at once
_WRITTEN = [field.name for field in fields(NewAccount) if field.name != "has_ended"]


def create_duties(context: DutyContext) -> list[Duty]:
    accounts, options = Accounts(context.executor), context.options.features.get("where") or WhereOptions()
    return [
        Duty("accounts-prune", HOURLY_SEC, AccountsDuty(accounts).run),
        Duty("accounts-of-lost", _LOST_INTERVAL_SEC, LostAccountsDuty(accounts, options.sampler.prices).run),
    ]


class LostAccountsDuty:
    """Ends the accounts of attempts whose worker processes have died, so that totals count them."""

    def __init__(self, accounts: Accounts, prices: Prices | None) -> None:
        self._accounts, self._prices = accounts, prices

    def run(self) -> float | None:
        lost = self._accounts.lost(limit=_MAX_LOST)
        if lost:
            self._accounts.write([self._end(account) for account in lost])
        return _SLICE_INTERVAL_SEC if len(lost) == _MAX_LOST else None

    def _end(self, account: StoredAccount) -> NewAccount:
        """CPU time, memory and rows are those of the last account that the process has written."""
        cost = account.cost
        if self._prices is not None:
            cpu_sec, memory_gb_sec = account.cpu_sec or 0.0, account.memory_gb_sec or 0.0
            cost = self._prices.cost(cpu_sec=cpu_sec, memory_gb_sec=memory_gb_sec, wall_sec=account.wall_sec)
        text = json.dumps(account.account, ensure_ascii=False)
        values = vars(account) | {"run_id": str(account.run_id), "job_id": str(account.job_id), "account": text}
        return NewAccount(**{name: values[name] for name in _WRITTEN} | {"cost": cost, "has_ended": True})


class AccountsDuty:
    """Scans all accounts in slices."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._after: UUID | None = None

    def run(self) -> float | None:
        """Do one slice; return the seconds until the next, or None at the end."""
        self._after = self._accounts.prune(self._after, limit=PRUNE_BATCH)
        if self._after is not None:
            return _SLICE_INTERVAL_SEC
        self._accounts.prune_days()
        return None
