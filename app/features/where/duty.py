"""Deletes the accounts of jobs that do not exist any more, and old totals."""

from __future__ import annotations

from uuid import UUID

from dataloader.app.features.where.accounts import Accounts
from dataloader.workers.duties import HOURLY_SEC, PRUNE_BATCH, Duty, DutyContext

_SLICE_INTERVAL_SEC = 0.05


def create_duties(context: DutyContext) -> list[Duty]:
    return [Duty("accounts-prune", HOURLY_SEC, AccountsDuty(Accounts(context.executor)).run)]


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
