"""Looks at the alert rules, whichever process has the turn; what it finds is told by the database itself."""

from __future__ import annotations

from collections.abc import Callable

from app import log
from app.queue.alerts import Alerts
from workers.threads import Loop, clock

_log = log.get(__name__)
_KEEP = 90 * 86_400.0  # seconds that alerts which are over are remembered
_PRUNE_EVERY = 3600.0


class Watch:
    def __init__(self, alerts: Alerts, *, every: float, died: Callable[[str], None]) -> None:
        self._alerts, self._every = alerts, every
        self._prune_at = clock() + _PRUNE_EVERY
        self.loop = Loop("watch", self.turn, died=died)

    def turn(self) -> float:
        found = self._alerts.look(every_sec=self._every)
        if found.begun or found.over:
            write = _log.warning if found.begun else _log.info
            write("alerts.changed", begun=found.begun, over=found.over)
        if clock() >= self._prune_at:
            self._alerts.prune(keep_sec=_KEEP)
            self._prune_at = clock() + _PRUNE_EVERY
        return self._every
