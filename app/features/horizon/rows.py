"""The oldest holders of the horizon, as far as the role may see them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dataloader.app.db.encoding import from_row
from dataloader.app.db.statements import Executor
from dataloader.app.errors import RightsMissing

LONG_AGE_SEC = 600.0
LONG_AGE_TRANSACTIONS = 10_000  # of a holder whose start is not known


class HolderKind(StrEnum):
    TRANSACTION = "transaction"
    PREPARED = "prepared"
    SLOT = "slot"
    STANDBY = "standby"  # a query there, by hot_standby_feedback without a slot


@dataclass(frozen=True)
class Holder:
    """What keeps vacuum from removing what was deleted later."""

    kind: HolderKind
    name: str  # of the session, the prepared transaction or the slot
    owner: str  # the role
    state: str
    pid: int | None
    database: str | None  # where it is another one of the server
    age_sec: float | None  # None: a slot or standby has no start, and a role may not see each session's
    transactions: int  # ids that were assigned since
    job_id: str | None = None  # of the attempt whose session it is
    task: str | None = None
    attempt: int | None = None  # None: the attempt does not run any more
    worker: str | None = None  # the worker process whose session it is

    @property
    def is_long(self) -> bool:
        """Whether people are to know of it."""
        if self.age_sec is None:
            return self.transactions >= LONG_AGE_TRANSACTIONS
        return self.age_sec >= LONG_AGE_SEC


class Horizon:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def holders(self) -> list[Holder]:
        """Return the oldest holder of each kind, the oldest first: it holds the horizon, and the next one after it.

        Nothing where the role may not read the server's views of sessions.
        """
        try:
            rows = self._executor.execute("horizon_holders")
        except RightsMissing:
            return []
        return [from_row(Holder, row) for row in rows]
