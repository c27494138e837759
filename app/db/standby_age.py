"""How old the data of a standby is, measured against its primary."""

from __future__ import annotations

import math
import time

from dataloader.app.db.pool import Pool
from dataloader.app.errors import DatabaseUnavailable


class StandbyAge:
    """Compares the positions of both servers in the log: the standby's clock and its silence show nothing.

    What the standby has is *as of* a moment: every transaction that was acknowledged before it is there.
    """

    def __init__(self, primary: Pool, standby: Pool) -> None:
        self._primary, self._standby = primary, standby
        self._as_of = -math.inf  # on this process's clock; written by one check at a time

    def check(self) -> float:
        """Return the moment, on this process's monotonic clock, as of which the standby has everything.

        While the primary does not answer, that is the last moment that is known. Raises DatabaseUnavailable if the
        standby does not answer.
        """
        asked_at = time.monotonic()
        try:
            ((written, _, primary_now),) = self._primary.execute("replication_position")
        except DatabaseUnavailable:
            self._standby.execute("replication_position")
            return self._as_of
        ((replayed, last_commit, _),) = self._standby.execute("replication_position")
        if replayed is not None and replayed >= written:
            self._as_of = asked_at
        elif last_commit is not None:
            self._as_of = max(self._as_of, asked_at - max(0.0, primary_now - last_commit))
        return self._as_of
