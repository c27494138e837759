"""The process's LISTEN connection, with self-tests that prove that notifications arrive; or none at all.

A new connection must receive a notification that it has sent to itself. Later tests only ask whether the session behind
it still listens: a notification would wake every listening process of the database, each time for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from dataloader.app import log
from dataloader.app.db.connection import Session
from dataloader.app.errors import DatabaseUnavailable
from dataloader.pipelines.portable import clock
from dataloader.workers.threads import WakeupPipe

_log = log.get(__name__)
_RECONNECT_INTERVAL_SEC = 1.0
_CHECK_HEARTBEATS = 3  # heartbeats between two self-tests
_CHANNELS = "SELECT pg_listening_channels()"


class ListenState(StrEnum):
    DISCONNECTED = "disconnected"  # no connection: the dispatcher polls
    UNRESPONSIVE = "unresponsive"  # connected, but the self-test failed: the dispatcher polls
    LISTENING = "listening"
    OFF = "off"  # by DL_LISTEN: the dispatcher polls at its usual interval

    @property
    def is_receiving(self) -> bool:
        """Whether notifications arrive."""
        return self is ListenState.LISTENING

    @property
    def is_fine(self) -> bool:
        """Whether they arrive, or are not wanted."""
        return self in (ListenState.LISTENING, ListenState.OFF)


class ListenMode(StrEnum):
    """Whether a worker process has a LISTEN connection."""

    PROCESS = "process"
    OFF = "off"  # jobs are found by polling


@dataclass(frozen=True)
class Notifications:
    queues: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()
    reconnected: bool = False  # notifications may have been lost: claim for all queues


class ListenerLike(Protocol):
    """What a dispatcher waits with."""

    @property
    def state(self) -> ListenState: ...

    @property
    def last_self_test_at(self) -> float | None: ...

    def listen(self, timeout: float, wakeup: WakeupPipe) -> Notifications: ...


class NoListener:
    """Waits for wake-ups of its own process alone."""

    state = ListenState.OFF
    last_self_test_at = None

    def listen(self, timeout: float, wakeup: WakeupPipe) -> Notifications:
        wakeup.wait(timeout)
        return Notifications()


class Listener:
    """Used by the listening thread alone. Never raises for a database that is unavailable."""

    def __init__(
        self, session: Session, *, heartbeat_sec: float, on_state_change: Callable[[], None] = lambda: None
    ) -> None:
        """`on_state_change` is called when `state` has changed."""
        self.state = ListenState.DISCONNECTED  # read by any thread
        self.last_self_test_at: float | None = None  # when it last succeeded; read by any thread
        self._session, self._heartbeat_sec = session, heartbeat_sec
        self._on_state_change = on_state_change
        self._unreturned: list[tuple[str, str]] = []  # read by a self-test, not yet returned
        self._channel, self._generation = "", -1
        self._next_connect_at = self._next_self_test_at = 0.0

    def listen(self, timeout: float, wakeup: WakeupPipe) -> Notifications:
        """Wait for a notification, the wake-up or the timeout."""
        if self._ensure_listening():
            return Notifications(reconnected=True)
        notifications = self._read_notifications()
        if notifications.queues or notifications.commands:
            return notifications
        next_check_at = self._next_self_test_at if self.state is ListenState.LISTENING else self._next_connect_at
        wakeup.wait(min(timeout, max(0.0, next_check_at - clock())), self._session.fileno())
        return self._read_notifications()

    def _ensure_listening(self) -> bool:
        """Connect and listen if possible; return whether the connection is new."""
        now = clock()
        if self._session.connected and self._session.generation == self._generation:
            if now >= self._next_self_test_at:
                self._check_session()
            return False
        if now < self._next_connect_at:
            return False
        self._next_connect_at = now + _RECONNECT_INTERVAL_SEC
        try:
            self._session.execute_raw("SELECT 1")
            self._channel = f"dl_echo_{id(self):x}_{self._session.generation}"
            self._session.execute_raw(f"LISTEN dl_jobs; LISTEN dl_control; LISTEN {self._channel}")
        except DatabaseUnavailable as error:
            self._disconnect(str(error))
            return False
        self._generation = self._session.generation
        self._test_connection()
        return self.state is ListenState.LISTENING

    def _test_connection(self) -> None:
        """Send a notification to this connection: if it does not arrive, no other would."""
        try:
            self._session.execute_raw(f"SELECT pg_notify('{self._channel}', '')")
            received = self._session.read_notifications()
        except DatabaseUnavailable as error:
            self._disconnect(str(error))
            return
        self._unreturned += received
        if any(channel == self._channel for channel, _ in received):
            self._record_success()
        else:
            self._disconnect("the self-test notification did not arrive", ListenState.UNRESPONSIVE)

    def _check_session(self) -> None:
        """Ask the session whether it listens: behind some poolers it is another one after a while."""
        try:
            channels = self._session.execute_raw(_CHANNELS)
        except DatabaseUnavailable as error:
            self._disconnect(str(error))
            return
        if (self._channel,) in channels:
            self._record_success()
        else:
            self._disconnect("the session does not listen any more", ListenState.UNRESPONSIVE)

    def _record_success(self) -> None:
        self.last_self_test_at = clock()
        self._next_self_test_at = self.last_self_test_at + _CHECK_HEARTBEATS * self._heartbeat_sec
        if self.state is not ListenState.LISTENING:
            self.state = ListenState.LISTENING
            _log.info("listener.connected")
            self._on_state_change()

    def _disconnect(self, reason: str, state: ListenState = ListenState.DISCONNECTED) -> None:
        self._session.close()
        if self.state is not state:
            _log.warning("listener.disconnected", state=state.value, error=reason)
            self.state = state
            self._on_state_change()
        self._next_connect_at = clock() + _RECONNECT_INTERVAL_SEC

    def _read_notifications(self) -> Notifications:
        try:
            new = self._session.read_notifications() if self._session.connected else []
        except DatabaseUnavailable as error:
            self._disconnect(str(error))
            new = []
        notifications, self._unreturned = [*self._unreturned, *new], []
        return Notifications(
            frozenset(payload for channel, payload in notifications if channel == "dl_jobs"),
            tuple(payload for channel, payload in notifications if channel == "dl_control"),
        )
