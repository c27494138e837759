"""The context of a running pipeline, in a thread or in an isolated process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, Unpack
from uuid import UUID

from dataloader.app import log
from dataloader.app.acts.feature import Feature, load_task_call
from dataloader.app.errors import AttemptLost, SessionsRefused
from dataloader.app.features.registry import FEATURES
from dataloader.app.queue.attempt_sessions import ConnectionSettings, attempt_application_name
from dataloader.app.queue.job import ClaimedJob, Reports, Settlement, Status
from dataloader.app.queue.parameters import settle_parameters
from dataloader.pipelines.context import (
    FollowUp,
    Handle,
    Interval,
    OffloadOptions,
    ParentEnd,
    ParentsNeeded,
    Stop,
    StopReason,
    Upstream,
)
from dataloader.pipelines.effects import DrawnFence
from dataloader.pipelines.json_values import MAX_CHECKPOINT_BYTES
from dataloader.pipelines.reported_state import ReportedState
from dataloader.workers.connections.own_sessions import OwnSession, reset_owner, set_owner
from dataloader.workers.connections.task_connections import TaskConnections
from dataloader.workers.follow_ups import FollowUps
from dataloader.workers.reports.secrets import NO_REDACTION, Redactor
from dataloader.workers.stop_signal import StoppableContext, StopSignal

if TYPE_CHECKING:
    from dataloader.workers.offloads.calls import OffloadCalls
    from dataloader.workers.offloads.service import OffloadService

_JOB_LOG = log.get("pipeline")
_MAX_IDLE_SESSION_SEC = 2.0  # a longer wait in `acquire` keeps no session of the server


@dataclass(frozen=True, kw_only=True)
class ContextSettings:
    """What the contexts of a pool's attempts have in common."""

    connection_settings: ConnectionSettings | None = None
    max_result_bytes: int = 1_000_000
    follow_up_lease_sec: int = 60
    declared_job_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by task, for its follow-ups
    offloads: OffloadService | None = None  # None: one with the process engine alone
    features: Sequence[Feature] = FEATURES


class JobContext(StoppableContext):
    """The context of a worker's thread, and of an isolated process. Used by the threads of the pipeline and by those
    for the heartbeat and stops."""

    redactor: Redactor = NO_REDACTION  # of the secrets in its args; set before the pipeline starts
    connections: TaskConnections | None = None  # made when the pipeline first needs one, under the lock
    refuses_sessions = False  # set once, under the lock
    has_offloads = False  # set once; read by the thread that ends the attempt
    _offload_calls: OffloadCalls | None = None  # under the lock
    owns_connections = True  # that its task opens by itself
    has_task_ended = False  # set once, by the thread that ran it; read by the threads that it has started

    def __init__(self, job: ClaimedJob, settings: ContextSettings) -> None:
        self.job, self.settings = job, settings
        self.task, self.attempt, self.max_attempts = job.task, job.attempt, job.max_attempts
        self.traceparent, self.logical_at, self.partition = job.traceparent, job.logical_at, job.partition_key or None
        self.interval = None if job.interval_end is None else Interval.between(job.interval_start, job.interval_end)
        self.reported, self.stop_signal = ReportedState(), StopSignal()
        self._lock = threading.Lock()
        self.parents: Mapping[str, Upstream] | None = None  # None: not read yet; the pipeline's thread alone

    @property
    def job_id(self) -> UUID:  # type: ignore[override]
        return self.job.id

    @property
    def run_id(self) -> UUID:  # type: ignore[override]
        return self.job.run_id

    @property
    def max_checkpoint_bytes(self) -> int:  # type: ignore[override]
        return min(MAX_CHECKPOINT_BYTES, self.settings.max_result_bytes)

    @cached_property
    def _follow_ups(self) -> FollowUps:
        """Used by the pipeline's thread alone."""
        return FollowUps(self)

    # ── the contract ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def upstream(self) -> Mapping[str, Upstream]:
        if self.parents is None:
            connections = self._require_connections()
            with self._owner_only():
                self.parents = self._call_of_feature("upstream")(connections.execute_owned, self.job_id)
        return self.parents

    def write_log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        getattr(_JOB_LOG, level)(message, **fields)

    def redact_text(self, text: str) -> str:
        """Without the attempt's secrets, and without passwords in addresses."""
        return self.redactor.redact_text(str(log.redact_text(text)))

    def redact_value(self, value: Any) -> Any:
        return self.redactor.redact_value(value)

    def check_history(self, name: str, count: int) -> Sequence[float]:
        connections = self._require_connections()
        if not connections.has_queue:
            return []
        with nullcontext() if connections.has_open_transaction else self._owner_only():
            read = self._call_of_feature("check_history")
            return connections.call_fenced(lambda executor: list(read(executor, self.job_id, self.task, name, count)))

    def raise_stop(self) -> None:
        if self.stop_reason is None and not self._is_lease_trusted():
            self.stop(StopReason.LEASE_LOST)
        super().raise_stop()

    def _is_lease_trusted(self) -> bool:
        return True

    def enqueue_job(self, job: FollowUp) -> UUID:
        new = self._follow_ups.make(job.task, job.args, **job.options)
        connections = self._require_connections()
        with nullcontext() if connections.has_open_transaction else self._owner_only():
            return connections.enqueue(new).job_id

    def enqueue_group(
        self, jobs: Sequence[FollowUp], then: FollowUp, *, on: ParentEnd, need: ParentsNeeded
    ) -> tuple[list[UUID], UUID]:
        connections = self._require_connections()
        with nullcontext() if connections.has_open_transaction else self._owner_only():
            children = [self._follow_ups.make(job.task, job.args, **job.options) for job in jobs]
            last = self._follow_ups.make(then.task, then.args, **then.options)
            enqueue = self._call_of_feature("enqueue_group")
            ids, last_id = connections.call_fenced(lambda executor: enqueue(executor, children, last, on=on, need=need))
            return ids, last_id

    def count_calls(self, limit: str, n: int) -> float:
        connections = self._require_connections()
        with self._owner_only():
            wait_sec = float(self._call_of_feature("count_calls")(connections.execute_owned, limit, n))
        if wait_sec > _MAX_IDLE_SESSION_SEC:
            connections.close_unused()
        return wait_sec

    def _call_of_feature(self, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = load_task_call(self.settings.features, name)
        return call

    def offload(
        self, engine: str, call: Callable[..., Any] | None = None, /, *args: Any, **options: Unpack[OffloadOptions]
    ) -> Handle:
        self.check()
        self._check_no_transaction()
        with self._lock:
            calls = self._offload_calls = self._offload_calls or self._call_of_feature("offload")(self)
            self.has_offloads = True
        return calls.start(engine, call, args, options)

    def execute_for_offload(self, name: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Execute a statement of offloads while the attempt owns its job; the connection is not kept meanwhile."""
        self._check_no_transaction()
        connections = self._require_connections()
        with connections.offload_lock, self._owner_only():
            rows = connections.execute_owned(name, parameters)
            connections.close_unused()
        return rows

    def _check_no_transaction(self) -> None:
        self.refuse_in_transaction("offload and the result of its handle may wait", "call them before")

    def write_lines(self, stream: str, lines: Sequence[str]) -> None:
        """Add lines of an engine to the job's log."""

    def write_log_position(self, name: str, position: str) -> None:
        """Keep how far the log of an offload has been read, once the lines before it are kept."""

    @contextmanager
    def open_transaction(self, *, target: str | None, final: bool, result: Any) -> Iterator[Any]:
        if target is not None and self.targets.claim(target) is not None:
            with self.targets.transaction(target, final=final, result=result) as connection:
                yield connection
            return
        connections = self._require_connections()
        with (
            self._owner_only(),
            self.reported.transaction(lambda: connections.commit_unknown),
            connections.transaction(
                checkpoint=self.reported.checkpoint_to_commit,
                final=(lambda: self._success_parameters(result)) if final else None,
            ) as connection,
        ):
            yield connection

    def connect_for_transactions(self, target: str) -> Any:
        return self._connect(lambda connections: connections.connect_for_transactions(target))

    def draw_fence(self, target: str, problem: str | None) -> DrawnFence:
        if self.fence_problem is not None:
            return DrawnFence(0)
        connections = self._require_connections()
        with self._owner_only():
            draw = self._call_of_feature("draw_fence")
            fence = DrawnFence(*draw(connections.execute_owned, self.job_id, self.run_id, target, problem))
        connections.close_unused()
        return fence

    def stop_for(self, reason: StopReason) -> NoReturn:
        self.stop(reason)
        raise Stop(reason)

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
        self.pass_safe_point()
        return self._connect(lambda connections: connections.connect(name))

    def _connect(self, connect: Callable[[TaskConnections], Any]) -> Any:
        if not self._is_lease_trusted():
            self.check()
        try:
            connection = connect(self._require_connections())
        except SessionsRefused as error:
            raise self._stop_or(error) from error
        if not self._is_lease_trusted():  # this process was frozen meanwhile, and another may have claimed the job
            if connection is not None:
                connection.close()
            self.check()
        return connection

    # ── of the connections that the task opens by itself ────────────────────────────────────────────────────────

    def run_owning_connections(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the function; the connections that it opens are the attempt's."""
        is_owner = self.owns_connections and self.settings.connection_settings is not None
        token = set_owner(self if is_owner else None)
        try:
            return function(*args)
        finally:
            reset_owner(token)
            self.has_task_ended = True

    @property
    def owner_id(self) -> str:
        return self.job.id_text

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
        settlement = Settlement(Status.SUCCEEDED, result=result, progress=self.reported.progress, reports=self.reports)
        values = [(job.id, job.run_id, job.key_hash, settlement)]
        return settle_parameters(values, max_result_bytes=self.settings.max_result_bytes)

    @property
    def reports(self) -> Reports | None:
        """The checks and datasets that were reported, if any."""
        checks, datasets = self.reported.checks, self.reported.datasets
        return Reports(checks, datasets) if checks or datasets else None


_logged_targets: set[str] = set()  # added to by any attempt's thread


def _log_unchecked_target(target: str, error: str) -> None:
    """Log once for each target that its server does not support the connection check."""
    if target not in _logged_targets:
        _logged_targets.add(target)
        _JOB_LOG.warning("connection_check.off", target=target, error=error)
