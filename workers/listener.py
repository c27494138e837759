"""The process's one LISTEN connection: what it hears, and whether it can be believed to hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from app import log
from app.errors import DatabaseUnavailable
from app.queue.session import Session
from workers.threads import Bell, clock

_log = log.get(__name__)
_RETRY = 1.0


class Hearing(StrEnum):
    AWAY = "away"  # no connection: we poll
    DEAF = "deaf"  # connected, but its own echo did not come back: we poll
    LISTENING = "listening"


@dataclass(frozen=True)
class Heard:
    queues: frozenset[str] = frozenset()
    controls: tuple[str, ...] = ()
    fresh: bool = False  # a new connection: whatever was said meanwhile is lost, so look everywhere


class Listener:
    """Used by one thread at a time: whoever has the lead. Never raises for a database that is away."""

    def __init__(self, session: Session, *, echo_every: float, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when `hearing` has changed."""
        self.hearing = Hearing.AWAY  # read by anyone
        self.echoed_at: float | None = None  # when the echo was last heard; read by anyone
        self._session, self._echo_every, self._changed = session, echo_every, changed
        self._channel = ""
        self._generation = -1
        self._next_try = 0.0
        self._next_echo = 0.0

    def listen(self, timeout: float, bell: Bell) -> Heard:
        """Wait for a notification, the bell or the time-out."""
        fresh = self._ready()
        if fresh:
            return Heard(fresh=True)
        heard = self._heard()
        if heard.queues or heard.controls:
            return heard
        bell.wait(min(timeout, self._until_next_duty()), self._session.fileno())
        return self._heard()

    def _ready(self) -> bool:
        """Be connected and listening, if it can be had now; True when that is new."""
        now = clock()
        if self._session.connected and self._session.generation == self._generation:
            if now >= self._next_echo:
                self._prove()
            return False
        if now < self._next_try:
            return False
        self._next_try = now + _RETRY
        try:
            self._session.command("SELECT 1")
            self._channel = f"dl_echo_{id(self):x}_{self._session.generation}"
            self._session.command(f"LISTEN dl_jobs; LISTEN dl_control; LISTEN {self._channel}")
        except DatabaseUnavailable as error:
            self._lost(str(error))
            return False
        self._generation = self._session.generation
        self._prove()
        return self.hearing is Hearing.LISTENING

    def _prove(self) -> None:
        """Say something to ourselves: a connection that does not bring it back brings nothing else either."""
        self._next_echo = clock() + self._echo_every
        try:
            self._session.command(f"SELECT pg_notify('{self._channel}', '')")
            echoed = any(channel == self._channel for channel, _ in self._keep(self._session.notifications()))
        except DatabaseUnavailable as error:
            self._lost(str(error))
            return
        if echoed:
            before, self.hearing, self.echoed_at = self.hearing, Hearing.LISTENING, clock()
            if before is not Hearing.LISTENING:
                _log.info("listener.listening")
                self._changed()
        else:
            self._session.close()
            self._become(Hearing.DEAF, "its own echo did not come back")

    def _lost(self, why: str) -> None:
        self._session.close()
        self._become(Hearing.AWAY, why)

    def _become(self, hearing: Hearing, why: str) -> None:
        if self.hearing is not hearing:
            _log.warning("listener.lost", hearing=hearing.value, error=why)
            self.hearing = hearing
            self._changed()
        self._next_try = clock() + _RETRY

    def _until_next_duty(self) -> float:
        due = self._next_echo if self.hearing is Hearing.LISTENING else self._next_try
        return max(0.0, due - clock())

    _pending: tuple[tuple[str, str], ...] = ()  # heard together with an echo, not told yet

    def _keep(self, notifications: list[tuple[str, str]]) -> list[tuple[str, str]]:
        self._pending += tuple(notifications)
        return notifications

    def _heard(self) -> Heard:
        try:
            new = self._session.notifications() if self._session.connected else []
        except DatabaseUnavailable as error:
            self._lost(str(error))
            new = []
        told, self._pending = (*self._pending, *new), ()
        return Heard(
            frozenset(payload for channel, payload in told if channel == "dl_jobs"),
            tuple(payload for channel, payload in told if channel == "dl_control"),
        )

    def close(self) -> None:
        self._session.close()
        self.hearing = Hearing.AWAY
