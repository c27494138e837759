"""The context of a running pipeline, in a thread or in an isolated process."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack
from uuid import UUID

from dataloader.app import log
from dataloader.app.db.encoding import from_row
from dataloader.app.errors import AttemptLost, SessionsRefused
from dataloader.app.features.graphs.rows import ParentJob
from dataloader.app.features.limits.rows import seconds_to_wait
from dataloader.app.queue.attempt_sessions import ConnectionSettings, attempt_application_name
from dataloader.app.queue.job import ClaimedJob, Settlement, Status
from dataloader.app.queue.jobs import settle_parameters
from dataloader.pipelines.context import Interval, ParentEnd, ParentsNeeded, Upstream, check_fan_out
from dataloader.pipelines.contract import Fail, Stop, StopReason, Wait
from dataloader.pipelines.limits import check_calls
from dataloader.pipelines.offload import Handle, OffloadOptions
from dataloader.pipelines.reports import DatasetUse, Severity, parse_check, parse_dataset, parse_link
from dataloader.pipelines.runner import LeveledLog
from dataloader.workers.connections.own_sessions import OwnSession, owned_by
from dataloader.workers.connections.task_connections import MAX_CHECKPOINT_BYTES, TaskConnections
from dataloader.workers.follow_ups import FollowUps
from dataloader.workers.outcome import caused_by_stop
from dataloader.workers.reported_state import ReportedState, copy_as_json
from dataloader.workers.secrets import NO_REDACTION, Redactor
from dataloader.workers.stop_signal import StopSignal
from dataloader.workers.threads import clock

if TYPE_CHECKING:
    from dataloader.workers.offloads.calls import OffloadCalls
    from dataloader.workers.offloads.service import OffloadService

_JOB_LOG = log.get("pipeline")
_MAX_IDLE_SESSION_SEC = 2.0  # a longer wait in `acquire` keeps no session of the server
_MAX_SCHEMA_BYTES = 64_000  # of a dataset
_MAX_ACQUIRE_WAIT_SEC = 30.0  # then it asks again: the rate may have been raised


@dataclass(frozen=True, kw_only=True)
class ContextSettings:
    """What the contexts of a pool's attempts have in common."""

    connection_settings: ConnectionSettings | None = None
    max_result_bytes: int = 1_000_000
    follow_up_lease_sec: int = 60
    task_limits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of the tasks that declare some
    task_unique_by: Mapping[str, Sequence[str]] = field(default_factory=dict)  # likewise
    task_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of the args of these tasks
    offloads: OffloadService | None = None  # None: one with the process engine alone


class JobContext:
    """Implements `pipelines.contract.Context`. The pipeline's threads, the heartbeat and stopping threads use it."""

    redactor: Redactor = NO_REDACTION  # of the secrets in its args; set before the pipeline starts
    connections: TaskConnections | None = None  # made when the pipeline first needs one, under the lock
    refuses_sessions = False  # set once, under the lock
    has_offloads = False  # set once; read by the thread that ends the attempt
    _offload_calls: OffloadCalls | None = None  # under the lock
    owns_connections = True  # that its task opens by itself
    has_task_ended = False  # set once, by the thread that ran it; read by the threads that it has started

    def __init__(self, job: ClaimedJob, settings: ContextSettings) -> None:
        self.job, self.settings = job, settings
        self.job_id, self.task, self.attempt, self.max_attempts = job.id, job.task, job.attempt, job.max_attempts
        self.reported, self.stop_signal = ReportedState(), StopSignal()
        self._lock = threading.Lock()
        self._offload_lock = threading.Lock()  # held while one of the pipeline's threads uses the connection for them
        self._follow_ups = FollowUps(self)  # the pipeline's thread alone, as the next
        self.parents: Mapping[str, Upstream] | None = None  # None: not read yet

    # ── the contract ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def traceparent(self) -> str | None:
        return self.job.traceparent

    @property
    def stopping_in(self) -> float | None:
        if self.stop_reason is not None:
            return 0.0
        stops_at = self.stop_signal.stops_at
        return None if stops_at is None else max(0.0, stops_at - clock())

    @property
    def logical_at(self) -> datetime | None:
        return self.job.logical_at

    @property
    def interval(self) -> Interval | None:
        start, end = self.job.interval_start, self.job.interval_end
        return None if start is None or end is None else Interval(start, end)

    @property
    def partition(self) -> str | None:
        return self.job.partition_key or None

    @property
    def upstream(self) -> Mapping[str, Upstream]:
        if self.parents is None:
            connections = self._require_connections()
            with self._owner_only():
                rows = connections.execute_owned("job_parents", {"job_id": str(self.job_id)})
                deleted = connections.execute_owned("deleted_parents", {"job_id": str(self.job_id)})
            if deleted:
                raise Fail(f"it waited for job {deleted[0][0]}, which was deleted with its result")
            parents = [from_row(ParentJob, row) for row in rows]
            self.parents = {p.key: Upstream(p.job_id, p.status.value, p.result, p.error) for p in parents}
        return self.parents

    @property
    def log(self) -> LeveledLog:
        return LeveledLog(self._write_log)

    def _write_log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        getattr(_JOB_LOG, level)(message, **fields)
        self._safe_point()

    @property
    def resume(self) -> Any:
        return self.reported.checkpoint

    def check(
        self,
        name: str | None = None,
        value: float | None = None,
        *,
        min: float | None = None,
        max: float | None = None,
        vs: str | None = None,
        tolerance: float | None = None,
        severity: Severity = "fail",
    ) -> None:
        self._raise_stop()
        if name is None and value is None:
            return
        request = parse_check(name, value, low=min, high=max, vs=vs, tolerance=tolerance, severity=severity)
        request = replace(request, name=self._redact_text(request.name))
        history: Sequence[float] = ()
        if request.history_count:
            with nullcontext() if self.reported.in_transaction else self._owner_only():
                history = self._require_connections().check_history(self.task, request.name, request.history_count)
        result = request.evaluate(history)
        self.reported.add_check(result)
        if result.outcome == "passed":
            _JOB_LOG.info("check.passed", check=result.name, value=result.value, detail=result.detail)
        else:
            _JOB_LOG.warning("check.broken", check=result.name, outcome=result.outcome, detail=result.detail)
        if result.outcome == "failed":
            raise Fail(f"the check {result.name!r} failed: {result.detail}")

    def produced(
        self, dataset: str, *, rows: int | None = None, partition: str | None = None, schema: Any = None
    ) -> None:
        self._add_dataset(parse_dataset("produced", dataset, rows=rows, partition=partition, schema=schema))

    def consumed(self, dataset: str, *, partition: str | None = None) -> None:
        self._add_dataset(parse_dataset("consumed", dataset, partition=partition))

    def _add_dataset(self, use: DatasetUse) -> None:
        schema = copy_as_json(self.redactor.redact_value(use.schema), _MAX_SCHEMA_BYTES, "schema")
        partition = use.partition and self.redactor.redact_text(use.partition)
        self.reported.add_dataset(
            replace(use, dataset=self._redact_text(use.dataset), partition=partition, schema=schema)
        )
        self._safe_point()

    def link(self, name: str, url: str) -> None:
        name, url = parse_link(name, url)
        self.reported.add_link(self._redact_text(name), self._redact_text(url))
        self._safe_point()

    def _redact_text(self, text: str) -> str:
        """Without the attempt's secrets, and without passwords in addresses."""
        return self.redactor.redact_text(str(log.redact_text(text)))

    def _raise_stop(self) -> None:
        if self.stop_reason is None and not self._is_lease_trusted():
            self.stop(StopReason.LEASE_LOST)
        if self.stop_reason is not None:
            raise Stop(self.stop_reason)

    def _safe_point(self) -> None:
        """Raise Stop, but not in code that handles a stop: a second Stop would interrupt its clean-up."""
        handled = sys.exc_info()[1]
        if handled is None or not (
            isinstance(handled, asyncio.CancelledError | GeneratorExit) or caused_by_stop(handled)
        ):
            self._raise_stop()

    def _is_lease_trusted(self) -> bool:
        return True

    def sleep(self, seconds: float) -> None:
        self.check()
        self.stop_signal.wait(seconds)
        self.check()

    def progress(self, done: int | None = None, total: int | None = None, unit: str | None = None, **more: Any) -> None:
        self.record_progress({"processed": done, "total": total, "unit": unit} | more)
        self._safe_point()

    def record_progress(self, fields: Mapping[str, Any]) -> None:
        given = {str(key): value for key, value in fields.items() if value is not None}
        self.reported.merge_progress(self.redactor.redact_value(given))

    def count(self, **numbers: int | float) -> None:
        self.reported.add_counts(numbers)
        self._safe_point()

    def checkpoint(self, cursor: Any) -> None:
        self.record_checkpoint(cursor)
        self._safe_point()

    def record_checkpoint(self, cursor: Any) -> None:
        max_bytes = min(MAX_CHECKPOINT_BYTES, self.settings.max_result_bytes)
        self.reported.record_checkpoint(copy_as_json(self.redactor.redact_value(cursor), max_bytes))

    def enqueue(self, task: str, args: dict[str, Any] | None = None, **options: Any) -> UUID:
        self._safe_point()
        new = self._follow_ups.make(task, args, **options)
        connections = self._require_connections()
        with nullcontext() if self.reported.in_transaction else self._owner_only():
            return connections.enqueue(new).job_id

    def fan_out(
        self,
        jobs: Iterable[Mapping[str, Any]],
        *,
        then: Mapping[str, Any],
        on: ParentEnd = "succeeded",
        need: ParentsNeeded = "all",
    ) -> tuple[list[UUID], UUID]:
        self._safe_point()
        requests = check_fan_out(jobs, on, need)
        connections = self._require_connections()
        with nullcontext() if self.reported.in_transaction else self._owner_only():
            follow_ups = [self._follow_ups.make(**request) for request in requests]
            last = self._follow_ups.make(**then)
            return connections.fan_out(follow_ups, last, on=on, need=need)

    def acquire(self, limit: str, n: int = 1) -> None:
        if self.reported.in_transaction:
            raise RuntimeError(
                "acquire may wait, and an open transaction would hold its locks meanwhile; call it before"
            )
        while (wait_sec := self.try_acquire(limit, n)) > 0:
            self.sleep(min(wait_sec, _MAX_ACQUIRE_WAIT_SEC))

    def try_acquire(self, limit: str, n: int = 1) -> float:
        """Count calls in a rate if they may be made now; return 0.0 then, else the seconds to wait."""
        check_calls(limit, n)
        self.check()
        connections = self._require_connections()
        with self._owner_only():
            wait_sec = seconds_to_wait(connections.execute_owned("acquire_limit", {"name": limit, "weight": n}), n)
        if wait_sec > _MAX_IDLE_SESSION_SEC:
            connections.close_unused()
        return wait_sec

    def offload(
        self, engine: str, call: Callable[..., Any] | None = None, /, *args: Any, **options: Unpack[OffloadOptions]
    ) -> Handle:
        self.check()
        self._check_no_transaction()
        with self._lock:
            self.has_offloads = True
            if self._offload_calls is None:
                self._offload_calls = self._make_offload_calls()
            calls = self._offload_calls
        return calls.start(engine, call, args, options)

    def _make_offload_calls(self) -> OffloadCalls:
        # Not at the top: few isolated processes need it.
        from dataloader.workers.offloads.calls import OffloadCalls  # noqa: PLC0415
        from dataloader.workers.offloads.service import local_service  # noqa: PLC0415

        return OffloadCalls(self, self.settings.offloads or local_service())

    def execute_for_offload(self, name: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Execute a statement of offloads while the attempt owns its job; the connection is not kept meanwhile."""
        self._check_no_transaction()
        connections = self._require_connections()
        with self._offload_lock, self._owner_only():
            rows = connections.execute_owned(name, parameters)
            connections.close_unused()
        return rows

    def _check_no_transaction(self) -> None:
        if self.reported.in_transaction:
            raise RuntimeError(
                "offload and the result of its handle may wait, and an open transaction would hold its "
                "locks meanwhile; call them before"
            )

    def write_lines(self, stream: str, lines: Sequence[str]) -> None:
        """Add lines of an engine to the job's log."""

    def write_log_position(self, name: str, position: str) -> None:
        """Keep how far the log of an offload has been read, once the lines before it are kept."""

    @contextmanager
    def transaction(self, *, final: bool = False, result: Any = None) -> Iterator[Any]:
        self.check()
        connections = self._require_connections()
        if self.reported.in_transaction:
            raise RuntimeError("a transaction is open already; they do not nest")
        with (
            self._owner_only(),
            self.reported.transaction(lambda: connections.commit_unknown),
            connections.transaction(
                checkpoint=self.reported.checkpoint_to_commit,
                final=(lambda: self._success_parameters(result)) if final else None,
            ) as connection,
        ):
            try:
                yield connection
            except Wait as wait:
                raise Fail(
                    "Wait within ctx.transaction(): it would roll back the jobs to wait for; wait after it"
                ) from wait

    @contextmanager
    def _owner_only(self) -> Iterator[None]:
        """Stop an attempt that is not the owner of its job any more. Follow-ups that are not committed do not count."""
        counts = self._follow_ups.counts.copy()
        try:
            yield
        except AttemptLost as error:
            self.stop(StopReason.LEASE_LOST)
            raise Stop(StopReason.LEASE_LOST) from error
        except SessionsRefused as error:
            raise self._stop_or(error) from error
        except BaseException:
            self._follow_ups.counts = counts
            raise

    def connect(self, name: str) -> Any:
        self._safe_point()
        if not self._is_lease_trusted():
            self.check()
        try:
            connection = self._require_connections().connect(name)
        except SessionsRefused as error:
            raise self._stop_or(error) from error
        if not self._is_lease_trusted():  # this process was frozen meanwhile, and another may have claimed the job
            connection.close()
            self.check()
        return connection

    # ── of the connections that the task opens by itself ────────────────────────────────────────────────────────

    @contextmanager
    def owning_connections(self) -> Iterator[None]:
        is_owner = self.owns_connections and self.settings.connection_settings is not None
        try:
            with owned_by(self if is_owner else None):
                yield
        finally:
            self.has_task_ended = True

    def own_application_name(self) -> str:
        if self.has_task_ended or self.refuses_sessions or not self._is_lease_trusted():
            raise self._stop_or(SessionsRefused(self.job_id))
        return attempt_application_name(self.job_id, self.job.run_id)

    def adopt(self, session: OwnSession) -> None:
        try:
            self._require_connections().adopt(session)
        except SessionsRefused as error:
            raise self._stop_or(error) from error

    def drop(self, session: OwnSession) -> None:
        if self.connections is not None:
            self.connections.drop(session)

    def report_unchecked(self, target: str, error: str) -> None:
        _log_unchecked_target(target, error)

    def _stop_or(self, error: SessionsRefused) -> BaseException:
        return error if self.stop_reason is None else Stop(self.stop_reason)

    def refuse_sessions(self) -> None:
        """Refuse new connections: the lease is not trusted, or the last stop step was taken."""
        with self._lock:
            self.refuses_sessions = True
            connections = self.connections
        if connections is not None:
            connections.refuse_connections()

    def _require_connections(self) -> TaskConnections:
        with self._lock:
            settings = self.settings.connection_settings
            if self.connections is None and settings is not None:
                self.connections = TaskConnections(
                    settings, self.job.id, self.job.run_id, on_check_refused=_log_unchecked_target
                )
                if self.refuses_sessions:
                    self.connections.refuse_connections()
        if self.connections is None:
            raise RuntimeError("this context has no database")
        return self.connections

    def _success_parameters(self, result: Any) -> dict[str, Any]:
        job, result = self.job, self.redactor.redact_value(result)
        settlement = Settlement(
            Status.SUCCEEDED, result=result, progress=self.reported.progress, reports=self.reported.reports or None
        )
        values = [(job.id, job.run_id, job.key_hash, settlement)]
        return settle_parameters(values, max_result_bytes=self.settings.max_result_bytes)

    # ── for the runner, the heartbeat and stopping threads ──────────────────────────────────────────────────────

    @property
    def stop_reason(self) -> StopReason | None:
        return self.stop_signal.reason

    def stop(self, reason: StopReason) -> None:
        """End the attempt at its next safe point."""
        self.stop_signal.request(reason)

    def on_stop(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        return self.stop_signal.on_request(callback)


_logged_targets: set[str] = set()  # added to by any attempt's thread


def _log_unchecked_target(target: str, error: str) -> None:
    """Log once for each target that its server does not support the connection check."""
    if target not in _logged_targets:
        _logged_targets.add(target)
        _JOB_LOG.warning("connection_check.off", target=target, error=error)
