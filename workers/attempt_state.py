"""The mutable state of an attempt: what its pipeline reported, and whether it is to stop."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

from app.db.encoding import JsonNull
from pipelines.contract import StopReason
from workers.threads import clock


class StopStep(StrEnum):
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
    must_kill = False  # its process is killed without further steps
    _all_reasons: frozenset[StopReason] = frozenset()
    _callbacks: tuple[Callable[[], object], ...] = ()

    def __init__(self) -> None:
        self._lock = threading.Lock()

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
        _call(callbacks)

    def kill(self) -> None:
        """Have the thread that watches the attempt's process kill it."""
        self.must_kill = True
        _call(self._callbacks)

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


def _call(callbacks: tuple[Callable[[], object], ...]) -> None:
    for callback in callbacks:
        with suppress(RuntimeError):  # its event loop has just ended
            callback()


class ReportedState:
    """Progress and checkpoint as the pipeline reported them, and which of them are saved.

    Both are replaced whole and never changed in place: a value that is not the saved object has to be saved.
    """

    progress: dict[str, Any] | None = None  # written under the lock, read by the heartbeat
    checkpoint: Any = None  # where the next attempt resumes; the pipeline's thread alone, as the next two
    in_transaction = False
    _transaction_checkpoint: Any = None  # reported in the open transaction, and saved by its commit
    _has_plain_checkpoint = False  # one was reported outside a transaction
    _unsaved_checkpoint: Any = None  # read by the heartbeat
    _saved_progress: dict[str, Any] | None = None  # the heartbeat's
    _saved_checkpoint: Any = None

    def __init__(self) -> None:
        self._lock = threading.Lock()  # a pipeline may report from several threads

    def merge_progress(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            self.progress = {**(self.progress or {}), **fields}

    def add_counts(self, numbers: Mapping[str, int | float]) -> None:
        with self._lock:
            counts = dict((self.progress or {}).get("counts") or {})
            for name, number in numbers.items():
                counts[name] = counts.get(name, 0) + number
            self.progress = {**(self.progress or {}), "counts": counts}

    def record_checkpoint(self, checkpoint: Any) -> None:
        self.checkpoint = checkpoint
        value = JsonNull.NULL if checkpoint is None else checkpoint
        if self.in_transaction:
            self._transaction_checkpoint = value
        else:
            self._has_plain_checkpoint = True
            self._unsaved_checkpoint = value

    def restore(self, progress_text: str, checkpoint: Any) -> None:
        """Continue from an earlier attempt. Its progress is kept only with a checkpoint: an attempt that starts over
        would count the same rows twice. Progress that cannot be read does not end the job."""
        progress = None
        if checkpoint is not None:
            with suppress(ValueError, RecursionError):
                progress = json.loads(progress_text)
        self.progress = self._saved_progress = progress if isinstance(progress, dict) and progress else None
        self.checkpoint = checkpoint

    @contextmanager
    def transaction(self, is_commit_unknown: Callable[[], bool]) -> Iterator[None]:
        """Checkpoints reported within are saved by the transaction's commit and forgotten by its rollback."""
        before = self.checkpoint
        self.in_transaction = True
        try:
            yield
        except BaseException:
            if self._transaction_checkpoint is not None and is_commit_unknown():
                self._saved_checkpoint = self._unsaved_checkpoint  # an older one must not replace what may be committed
            self.checkpoint, self._transaction_checkpoint = before, None
            raise
        finally:
            self.in_transaction = False
        if self._transaction_checkpoint is not None:
            self._unsaved_checkpoint = self._transaction_checkpoint
            if not self._has_plain_checkpoint:  # else an older one may be on its way to the row: save this once more
                self._saved_checkpoint = self._transaction_checkpoint
            self._transaction_checkpoint = None

    def checkpoint_to_commit(self) -> Any:
        return self._new_checkpoint() if self._transaction_checkpoint is None else self._transaction_checkpoint

    def _new_checkpoint(self) -> Any:
        return self._unsaved_checkpoint if self._unsaved_checkpoint is not self._saved_checkpoint else None

    def unsaved(self) -> tuple[dict[str, Any] | None, Any]:
        """Progress and checkpoint, each None if it is saved."""
        return (self.progress if self.progress is not self._saved_progress else None), self._new_checkpoint()

    def mark_saved(self, saved: tuple[Mapping[str, Any] | None, Any]) -> None:
        """Record that these objects, which `unsaved` returned, were written."""
        progress, checkpoint = saved
        if progress is not None:
            self._saved_progress = progress  # type: ignore[assignment]  # the very dict
        if checkpoint is not None:
            self._saved_checkpoint = checkpoint
