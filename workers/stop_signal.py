"""Whether an attempt is to stop, why, and how far its stop has gone. Portable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from dataloader.pipelines.base_context import BaseContext
from dataloader.pipelines.context import StopReason
from dataloader.pipelines.portable import TextEnum, clock


class StopStep(TextEnum):
    """The steps of a stop. Each is taken when the one before has not ended the attempt in time."""

    REQUEST = "request"  # safe points raise Stop
    CANCEL_QUERY = "cancel_query"
    INTERRUPT = "interrupt"  # of a thread, as the next two
    TERMINATE_SESSION = "terminate_session"
    PENDING = "pending"  # only the end of the worker process ends this thread
    SIGTERM = "sigterm"  # of a process, as the next one
    SIGKILL = "sigkill"


class StopSignal:
    """Whether an attempt is to stop, why, and how far its stop has gone.

    The first reason counts; only a lost lease replaces it. Written under the lock, read by any thread.
    """

    reason: StopReason | None = None
    requested_at: float | None = None
    step: StopStep | None = None  # the last one taken; written by the thread that takes it
    stops_at: float | None = None  # of the clock: when a process that shuts down will request it; set by its stopper
    must_kill = False  # its process is killed without further steps
    _all_reasons: frozenset[StopReason] = frozenset()
    _callbacks: tuple[Callable[[], object], ...] = ()

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @property
    def all_reasons(self) -> frozenset[StopReason]:
        return self._all_reasons

    def request(self, reason: StopReason) -> None:
        with self._lock:
            self.step = self.step or StopStep.REQUEST
            if self.reason is None or reason is StopReason.LEASE_LOST:
                self.reason = reason
            if self.requested_at is None:
                self.requested_at = clock()
            # A repeated reason, or one callback twice, would cancel a coroutine in its clean-up.
            callbacks = () if reason in self._all_reasons else self._callbacks
            self._all_reasons |= {reason}
        self._call(callbacks)

    def kill(self) -> None:
        """Have the thread that watches the attempt's process kill it."""
        self.must_kill = True
        self._call(self._callbacks)

    @staticmethod
    def _call(callbacks: tuple[Callable[[], object], ...]) -> None:
        for callback in callbacks:
            with suppress(RuntimeError):  # its event loop has just ended
                callback()

    def wait(self, seconds: float) -> None:
        requested = threading.Event()
        with self.on_request(requested.set):
            requested.wait(seconds)

    @contextmanager
    def on_request(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call this when a stop is requested, or at once if it has been."""
        with self._lock:
            self._callbacks += (callback,)
            is_requested = self.reason is not None
        try:
            if is_requested:
                callback()
            yield
        finally:
            with self._lock:
                self._callbacks = tuple(other for other in self._callbacks if other is not callback)


class StoppableContext(BaseContext):
    """A context whose stop any thread may request."""

    stop_signal: StopSignal

    @property
    def stop_reason(self) -> StopReason | None:
        return self.stop_signal.reason

    @property
    def stopping_in(self) -> float | None:
        if self.stop_reason is not None:
            return 0.0
        stops_at = self.stop_signal.stops_at
        return None if stops_at is None else max(0.0, stops_at - clock())

    def stop(self, reason: StopReason) -> None:
        """End the attempt at its next safe point."""
        self.stop_signal.request(reason)

    def on_stop(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        return self.stop_signal.on_request(callback)

    def wait(self, seconds: float) -> None:
        self.stop_signal.wait(seconds)
