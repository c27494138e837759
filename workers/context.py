"""What a pipeline holds in its hands while it runs, in a thread of the worker or in a process of its own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from app import log
from app.errors import RunLost, SessionsRefused
from app.queue.effects import LARGEST_CHECKPOINT, Effects
from app.queue.job import NewJob, Settlement, Status
from app.queue.jobqueue import settlement_values
from app.queue.values import Json, clean_json
from pipelines.contract import Checkpoint, Progress, Stop, StopReason
from pipelines.progress import check_progress
from workers.outcome import came_from_stop
from workers.secrets import NOTHING_HIDDEN, Veil

_log = log.get("pipeline")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run before it begins."""

    job_id: UUID
    run_id: UUID
    queue: str
    task: str
    lock_key: str
    key_hash: int
    attempt: int
    max_attempts: int
    priority: int
    producer: str | None
    max_result_bytes: int = 1_000_000
    follow_up_lease_sec: int = 60
    traceparent: str | None = None


class JobLog:
    """The job's own log: a line carries the job's id, and is kept with it. After the line each is a safe point."""

    def __init__(self, safe_point: Callable[[], None]) -> None:
        self._safe_point = safe_point

    def debug(self, message: str, /, **fields: Any) -> None:
        _log.debug(message, **fields)
        self._safe_point()

    def info(self, message: str, /, **fields: Any) -> None:
        _log.info(message, **fields)
        self._safe_point()

    def warning(self, message: str, /, **fields: Any) -> None:
        _log.warning(message, **fields)
        self._safe_point()

    def error(self, message: str, /, **fields: Any) -> None:
        _log.error(message, **fields)
        self._safe_point()


class JobContext:
    """Its fields are touched by the pipeline's thread, by the heartbeat and by whoever stops it; each says by whom.

    Most jobs are over before they have said anything or were told to stop: what only others need is made when it is
    asked for, and a field that nobody has set is its class's.
    """

    veil: Veil = NOTHING_HIDDEN  # over the secrets of its args; set before it begins
    _progress: dict[str, Any] | None = None  # replaced whole by the pipeline, read by the heartbeat
    _told: dict[str, Any] | None = None  # the one last written; by the heartbeat alone
    _cursor: Any = None  # where the next try goes on; the pipeline's thread alone, as the next three
    _staged: Any = None  # the checkpoint of the open transaction: nobody else may write it down
    _within = False  # a transaction is open
    _beside = False  # a checkpoint was told outside a transaction
    _news: Any = None  # the checkpoint to be written, read by the heartbeat
    _news_told: Any = None  # the one last written
    _asked: Counter[str] | None = None  # follow-ups, by what they are: the pipeline's thread alone
    _reason: StopReason | None = (
        None  # set once under the lock, and then it is to stop; only a lost lease may replace it
    )
    _alarm: threading.Event | None = None  # of a pipeline that sleeps; made under the lock
    _stop_reasons: frozenset[StopReason] = frozenset()  # all that were given; under the lock
    _on_stop: Callable[[], object] | None = None  # set and cleared by the pipeline's thread, under the lock
    _job_log: JobLog | None = None
    refuses_sessions = False  # set once, by the thread that stops it, under the lock

    def __init__(self, facts: Facts, effects: Effects | None) -> None:
        self.facts, self.effects = facts, effects
        self._lock = threading.Lock()
        self._noting = threading.Lock()  # the pipeline may have threads of its own

    # ── for the pipeline ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def job_id(self) -> UUID:
        return self.facts.job_id

    @property
    def task(self) -> str:
        return self.facts.task

    @property
    def attempt(self) -> int:
        return self.facts.attempt

    @property
    def max_attempts(self) -> int:
        return self.facts.max_attempts

    @property
    def traceparent(self) -> str | None:
        return self.facts.traceparent

    @property
    def resume(self) -> Any:
        return self._cursor

    @property
    def log(self) -> JobLog:
        if self._job_log is None:
            self._job_log = JobLog(self._safe_point)
        return self._job_log

    def check(self) -> None:
        if self._reason is None and not self._trusted():
            self.stop(StopReason.LEASE_LOST)
        if self._reason is not None:
            raise Stop(self._reason)

    def _safe_point(self) -> None:
        """As `check`, but for code that cleans up after the stop: there a second Stop would cut the clean-up short."""
        handled = sys.exc_info()[1]
        if handled is None or not _is_clean_up_after(handled):
            self.check()

    def _trusted(self) -> bool:
        return True

    def sleep(self, seconds: float) -> None:
        self.check()
        with self._lock:
            alarm = self._alarm = self._alarm or threading.Event()
            if self._reason is not None:
                alarm.set()
        alarm.wait(seconds)
        self.check()

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self._note({"processed": done, "total": total, "unit": unit} | more)
        self._safe_point()

    def count(self, **numbers: int | float) -> None:
        with self._noting:
            counts = dict((self._progress or {}).get("counts") or {})
            for name, more in numbers.items():
                counts[name] = counts.get(name, 0) + more
            self._progress = {**(self._progress or {}), "counts": counts}
        self._safe_point()

    def checkpoint(self, cursor: Any) -> None:
        self.keep_checkpoint(cursor)
        self._safe_point()

    def keep_checkpoint(self, cursor: Any) -> None:
        self._cursor = _snapshot(self.veil.value(cursor), min(LARGEST_CHECKPOINT, self.facts.max_result_bytes))
        news = Json.NULL if self._cursor is None else self._cursor
        if self._within:
            self._staged = news
        else:
            self._beside = True
            self._news = news

    def enqueue(
        self,
        task: str,
        args: dict[str, Any] | None = None,
        *,
        queue: str | None = None,
        lock_key: str | None = None,
        idempotency_key: str | None = None,
        priority: int | None = None,
        available_at: datetime | None = None,
        max_attempts: int | None = None,
    ) -> UUID:
        self._safe_point()
        given = self.veil.referring(args or {}) if self.veil else args or {}
        new = NewJob(
            queue=queue or self.facts.queue,
            task=task,
            lock_key=lock_key or task,
            args=given,
            idempotency_key=idempotency_key or self._follow_up_key(task, given, queue),
            priority=self.facts.priority if priority is None else priority,
            available_at=available_at,
            max_attempts=5 if max_attempts is None else max_attempts,
            lease_ttl_sec=self.facts.follow_up_lease_sec,
            producer=f"job:{self.facts.job_id}",
            parent_id=self.facts.job_id,
            traceparent=self.facts.traceparent,
        )
        effects = self._with_effects()
        if self._within:
            return effects.enqueue(new).job_id
        with self._fenced():
            return effects.enqueue(new).job_id

    def _follow_up_key(self, task: str, args: Mapping[str, Any], queue: str | None) -> str:
        """The same for the same question of another try: it then finds the job that is there."""
        what = json.dumps([task, args, queue], sort_keys=True, default=str)
        digest = hashlib.sha256(what.encode("utf-8", "replace")).hexdigest()[:24]
        self._asked = self._asked or Counter()
        self._asked[digest] += 1
        return f"{self.facts.job_id}:{digest}:{self._asked[digest]}"

    @contextmanager
    def transaction(self, *, final: bool = False, result: Any = None) -> Iterator[Any]:
        self.check()
        effects = self._with_effects()
        if self._within:
            raise RuntimeError("a transaction is open already; they do not nest")
        with self._fenced():
            before = self._cursor
            self._within = True
            try:
                with effects.transaction(
                    checkpoint=self._sealed_cursor, final=(lambda: self._success(result)) if final else None
                ) as connection:
                    yield connection
            except BaseException:
                if self._staged is not None and effects.doubtful:
                    # Whether it was committed is not known: one that was told before must not be written over it.
                    self._news_told = self._news
                self._cursor, self._staged = before, None
                raise
            finally:
                self._within = False
            self._committed()

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        """A run that lost its job ends here; follow-ups that were not committed were not asked for."""
        asked = None if self._asked is None else self._asked.copy()
        try:
            yield
        except RunLost as error:
            self.stop(StopReason.LEASE_LOST)
            raise Stop(StopReason.LEASE_LOST) from error
        except SessionsRefused as error:
            raise self._refusal(error) from error
        except BaseException:
            self._asked = asked
            raise

    def _sealed_cursor(self) -> Any:
        return self._fresh_cursor() if self._staged is None else self._staged

    def _committed(self) -> None:
        if self._staged is not None:
            self._news = self._staged
            if not self._beside:  # else an older one may be on its way to the row: then this one is written once more
                self._news_told = self._staged
            self._staged = None

    def connect(self, name: str) -> Any:
        self._safe_point()
        if not self._trusted():
            self.check()
        try:
            connection = self._with_effects().connect(name)
        except SessionsRefused as error:
            raise self._refusal(error) from error
        if not self._trusted():  # it may have been frozen meanwhile, and another worker may have the job
            connection.close()
            self.check()
        return connection

    def _refusal(self, error: SessionsRefused) -> BaseException:
        return error if self._reason is None else Stop(self._reason)

    def refuse_sessions(self) -> None:
        """From now on it opens no connection: its lease is not trusted, or the last step of a stop was taken."""
        with self._lock:
            self.refuses_sessions = True
            effects = self.effects
        if effects is not None:
            effects.refuse()

    def _with_effects(self) -> Effects:
        if self.effects is None:
            raise RuntimeError("this context has no database")
        return self.effects

    def _fresh_cursor(self) -> Any:
        return self._news if self._news is not self._news_told else None

    def _success(self, result: Any) -> dict[str, Any]:
        facts = self.facts
        end = Settlement(Status.SUCCEEDED, result=self.veil.value(result), progress=self._progress)
        return settlement_values(
            [(facts.job_id, facts.run_id, facts.key_hash, end)], largest=facts.max_result_bytes, guards=()
        )

    # ── for the drive ───────────────────────────────────────────────────────────────────────────────────────────

    def take(self, step: Any) -> Stop | None:
        """What a generator yields: progress, a checkpoint, or only the mark of a safe point."""
        match step:
            case Checkpoint(cursor):
                self.keep_checkpoint(cursor)
            case Progress(done, total, unit):
                self._note({"processed": done, "total": total, "unit": unit})
            case Mapping():
                check_progress(step)
                self._note(step)
            case _:
                check_progress(step)
        try:
            self.check()
        except Stop as stop:
            return stop
        return None

    def _note(self, given: Mapping[str, Any]) -> None:
        told = self.veil.value({str(key): value for key, value in given.items() if value is not None})
        with self._noting:
            self._progress = {**(self._progress or {}), **told}

    @contextmanager
    def woken_by_stop(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call this when a stop comes, or at once if it has come already."""
        with self._lock:
            self._on_stop = wake
        try:
            if self._reason is not None:
                wake()
            yield
        finally:
            with self._lock:
                self._on_stop = None

    def replace_progress(self, progress: dict[str, Any]) -> None:
        """As a process of its own reports it: whole."""
        self._progress = self.veil.value(progress)

    def begin_with(self, progress_text: str, cursor: Any) -> None:
        """What an earlier try has left. Its progress counts on if this one goes on where it was: begun anew, the same
        rows would be counted twice. Progress that cannot be read is no reason to refuse the job."""
        try:
            progress = json.loads(progress_text)
        except (ValueError, RecursionError):
            progress = None
        goes_on = cursor is not None and isinstance(progress, dict) and progress
        self._progress = self._told = progress if goes_on else None
        self._cursor = cursor

    # ── for the keepers ─────────────────────────────────────────────────────────────────────────────────────────

    def stop(self, reason: StopReason) -> None:
        """End the attempt at its next safe point: the only way to end one early."""
        with self._lock:
            if self._reason is None or reason is StopReason.LEASE_LOST:
                self._reason = reason
            if self._alarm is not None:
                self._alarm.set()
            # Asked again for the same reason, it may be cleaning up: a coroutine is not to be cancelled in that.
            wake = None if reason in self._stop_reasons else self._on_stop
            self._stop_reasons |= {reason}
        if wake is not None:
            with suppress(RuntimeError):  # its loop has just ended by itself
                wake()

    @property
    def stopping(self) -> StopReason | None:
        return self._reason

    def news(self) -> tuple[dict[str, Any] | None, Any]:
        """The progress and the checkpoint, each if it has changed since it was last written."""
        return (self._progress if self._progress is not self._told else None), self._fresh_cursor()

    def written(self, news: tuple[Mapping[str, Any] | None, Any]) -> None:
        """These very objects were written down."""
        progress, cursor = news
        if progress is not None:
            self._told = progress  # type: ignore[assignment]  # the dict that news() gave
        if cursor is not None:
            self._news_told = cursor


def _is_clean_up_after(handled: BaseException) -> bool:
    """Is this the exception that a stop raises, in whichever kind of pipeline? Its handlers clean up."""
    return isinstance(handled, asyncio.CancelledError | GeneratorExit) or came_from_stop(handled)


_unchecked_targets: set[str] = set()  # added to by any attempt's thread


def note_unchecked_target(target: str, error: str) -> None:
    """A server refuses to watch its clients: one line for each target."""
    if target not in _unchecked_targets:
        _unchecked_targets.add(target)
        _log.warning("connection_check.off", target=target, error=error)


def _snapshot(cursor: Any, most: int) -> Any:
    """As the next try will get it. The pipeline may go on changing its own; what was told must not change with it."""
    if cursor is None or isinstance(cursor, bool | int):
        return cursor
    kept = json.loads(clean_json(cursor, most))
    if isinstance(kept, dict) and kept.keys() == {"$dropped"} and not (type(cursor) is dict and kept == cursor):
        raise ValueError(f"this checkpoint cannot be kept: {kept['$dropped']}")
    return kept
