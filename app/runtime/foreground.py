"""Runs a task in the foreground: as a real job that only this process claims, or with a context in memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID, uuid4

from pydantic import ValidationError

from dataloader.app.config import Settings
from dataloader.app.db.connection import Session
from dataloader.app.db.encoding import validate_json
from dataloader.app.errors import DatabaseUnavailable, DataloaderError
from dataloader.app.log.setup import ConsoleHandler
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob, NewJob, Released, ReleaseReason, Settlement, Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.runtime.service import Service, set_up_logging
from dataloader.app.wording import format_count
from dataloader.pipelines import contract, targets
from dataloader.pipelines.context import Upstream
from dataloader.pipelines.contract import Fail, StopReason, Task
from dataloader.pipelines.portable import clock
from dataloader.pipelines.schedule_definition import JobTimes, slice_live_key, slice_of_args, times_by_hand
from dataloader.workers.attempt import Attempt, AttemptSettings
from dataloader.workers.connections.task_connections import TaskConnections
from dataloader.workers.isolation.run import run_isolated
from dataloader.workers.logs.capture import Capture, is_captured
from dataloader.workers.outcome import Outcome
from dataloader.workers.pool import WorkerPool
from dataloader.workers.reports.secrets import SecretStore

_POLL_INTERVAL_SEC = 0.25
_WAIT_NOTICE_SEC = 2.0  # a job that has not started by then gets a notice
_UNLIMITED_LEASE_SEC = 10**9
_PRODUCER = "dataloader run"


class Terminal(AbstractContextManager[Any], Protocol):
    """Where a task in the foreground is shown. Within its block it takes the signals that request a stop."""

    is_stop_requested: bool

    def wait_for_stop(self, seconds: float) -> bool: ...
    def write_log_line(self, job_id: UUID, attempt: int, level: str, stream: str, line: str) -> None: ...
    def show_progress(self, progress: Mapping[str, Any]) -> None: ...
    def print_notice(self, line: str) -> None: ...


def run_task(
    settings: Settings,
    task_name: str,
    given_args: dict[str, Any] | None,
    terminal: Terminal,
    *,
    lock_key: str | None,
    local: bool,
    upstream: Mapping[str, Any] | None = None,
    logical_at: datetime | None = None,
    part: str | None = None,
) -> Settlement:
    """Run a task to its end; return how it ended. `upstream` has the results of its
    parents by their keys, for a local run. `logical_at` or the slice `part` says what the job is for; its args are a
    template then.

    Raises DataloaderError if the task is unknown or its args are invalid, or an error of the database.
    """
    settings = settings.model_copy(update={"log_format": "text"})
    set_up_logging(settings)
    for handler in logging.getLogger().handlers:
        if isinstance(handler, ConsoleHandler):  # the job's own log is printed by `Terminal`
            handler.addFilter(lambda record: record.levelno >= logging.WARNING and not is_captured())
    service = Service(settings, workers=False)
    try:
        _ = service.pipeline_failures
        if local and settings.dsn is None:  # a target without a name must not start the embedded server
            targets.configure(*settings.pipeline_connections())
        task = _find_task(task_name)
        times: JobTimes | None
        if logical_at is not None or part is not None:
            try:
                times, args = times_by_hand(task, given_args, zone=settings.timezone, logical_at=logical_at, part=part)
            except ValueError as error:
                raise DataloaderError(_first_line(error)) from error
        else:
            args = given_args or {}
            times = slice_of_args(task, args, zone=settings.timezone)
        _check_args(task, args)
        with terminal:
            if local:
                return _run_locally(settings, task, args, upstream or {}, times, terminal)
            return _run_as_job(service, task, args, lock_key, times, terminal)
    finally:
        service.close()


def _find_task(name: str) -> Task:
    task = contract.registry.get(name)
    if task is None:
        known = ", ".join(contract.registry.names) or "none"
        raise DataloaderError(f"there is no task {name!r}; expected one of: {known}")
    return task


def _check_args(task: Task, args: dict[str, Any]) -> None:
    if errors := task.check_args(args):
        raise DataloaderError("invalid args: " + "; ".join(f"{path or 'args'}: {error}" for path, error in errors))


def _first_line(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error)


# ── as a real job ───────────────────────────────────────────────────────────────────────────────────────────────────


def _run_as_job(
    service: Service,
    task: Task,
    args: dict[str, Any],
    lock_key: str | None,
    times: JobTimes | None,
    terminal: Terminal,
) -> Settlement:
    try:
        made_key = task.name if task.options.lock_key is None else task.fill_lock_key(args)
        lock_key, limits = lock_key or made_key, task.fill_limits(args)
    except ValueError as error:
        raise DataloaderError(str(error)) from error
    service.database.prepare()
    own_queue = f"run.{uuid4()}"  # no other process claims from it
    options = replace(service.pool_options({own_queue: 1}), labels=None)  # it runs here, whatever the task requires
    session = Session(
        options.dsn, application_name="dataloader-run", schema=options.schema,
        connect_timeout_sec=options.connect_timeout_sec,
    )  # fmt: skip
    jobs = JobQueue(session)
    pool = WorkerPool(contract.registry, options, echo=terminal.write_log_line)
    try:
        new = NewJob(
            queue=own_queue, task=task.name, lock_key=lock_key, args=args, max_attempts=1, producer=_PRODUCER,
            lease_ttl_sec=service.settings.default_lease_ttl_sec, limits=limits, **_fields_of_times(task, times),
        )  # fmt: skip
        enqueued = jobs.enqueue(new)
        if not enqueued.created:
            raise DataloaderError(f"another job loads this slice: {enqueued.job_id}")
        job_id = enqueued.job_id
        terminal.print_notice(f"Job {job_id}")
        pool.start()
        return _wait_until_final(jobs, job_id, lock_key, terminal)
    finally:
        pool.stop(0.0)
        session.close()


def _fields_of_times(task: Task, times: JobTimes | None) -> dict[str, Any]:
    if times is None:
        return {}
    fields: dict[str, Any] = {"logical_at": times.logical_at}
    if times.interval is not None:
        fields |= {"interval_start": times.interval.start, "interval_end": times.interval.end}
    if times.partition is not None:
        fields |= {"partition_key": times.partition, "live_key": slice_live_key(task.name, times.partition)}
    return fields


def _wait_until_final(jobs: JobQueue, job_id: UUID, lock_key: str, terminal: Terminal) -> Settlement:
    started_at, notice = time.monotonic(), ""
    while True:
        cancel = terminal.wait_for_stop(_POLL_INTERVAL_SEC)
        try:
            job = jobs.cancel(job_id) if cancel else jobs.get(job_id)
        except DatabaseUnavailable as error:
            if str(error) != notice:
                terminal.print_notice(f"The database does not answer: {error}")
            notice = str(error)
            if cancel:
                terminal.is_stop_requested = False  # the cancel was lost: the next Ctrl-C sends it again
            continue
        if job is None:
            return Settlement(Status.LOST, error="its row was deleted")
        terminal.show_progress(job.progress)
        if job.status.final:
            return Settlement(job.status, result=job.result, error=job.error, traceback=job.traceback)
        if job.status is Status.QUEUED and not notice and time.monotonic() - started_at > _WAIT_NOTICE_SEC:
            blocked = f"another job with the lock key {lock_key!r} runs"
            if job.graph_id is not None:
                blocked = f"jobs that it waits for have not ended, or {blocked}"
            notice = job.error or (
                blocked if job.waits_on is None else f"the limit {job.waits_on!r} allows no start yet"
            )
            terminal.print_notice(f"Waiting: {notice}")


# ── in memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


class LocalTaskConnections(TaskConnections):
    """Connections of a run without a job: a transaction commits without a fence."""

    def __init__(self, settings: ConnectionSettings, job_id: UUID, run_id: UUID) -> None:
        super().__init__(settings, job_id, run_id)
        self._has_database = bool(settings.dsn)

    def _fence_before_commit(self, connection: Any, checkpoint: Any, final: Any) -> None:
        return None

    def _open_queue_connection(self) -> Any:
        if not self._has_database:
            raise Fail(
                "this is a local run without a database; name one with DL_DB_DSN for transaction(), enqueue() and "
                "acquire(), and with DL_TARGETS for connect()"
            )
        return super()._open_queue_connection()


def _run_locally(
    settings: Settings,
    task: Task,
    args: dict[str, Any],
    upstream: Mapping[str, Any],
    times: JobTimes | None,
    terminal: Terminal,
) -> Settlement:
    connection_settings = ConnectionSettings(
        dsn="" if settings.dsn is None else settings.dsn.get_secret_value(),
        schema=settings.schema,
        targets=settings.pipeline_connections()[1],
        connect_timeout_sec=settings.pg_connect_timeout,
        wrap_drivers=settings.wrap_drivers,
    )
    attempt_settings = AttemptSettings(
        connection_settings=connection_settings,
        declared_job_fields=contract.registry.declared_job_fields(),
        stop_step_sec=settings.stop_step_sec,
        secret_store=SecretStore(settings.named_secrets, settings.secrets_dir, settings.task_secrets),
        run_isolated=run_isolated,
        isolation_enabled=False,
        log=terminal.write_log_line,
    )
    job = ClaimedJob(
        id_text=str(uuid4()), run_text=str(uuid4()), queue="local", task=task.name,
        args_text=validate_json("args", args), lock_key=task.name, key_hash=0, priority=100, attempt=1, max_attempts=1,
        lease_ttl_sec=_UNLIMITED_LEASE_SEC, producer=_PRODUCER, progress_text="{}", checkpoint_text=None,
        time_limit_sec=None, retry_text=None, crashes=0,
    )  # fmt: skip
    job = job._replace(**{name: value for name, value in _fields_of_times(task, times).items() if name != "live_key"})
    attempt = Attempt(job, claimed_at=clock(), settings=attempt_settings)
    attempt.connections = LocalTaskConnections(connection_settings, job.id, job.run_id)
    attempt.fence_problem = "this is a local run, and no job of the queue, whose attempts have fences"
    attempt.parents = {key: Upstream(uuid4(), Status.SUCCEEDED, result) for key, result in upstream.items()}
    capture = Capture(terminal.write_log_line)
    outcomes: list[Outcome] = []

    def run_attempt() -> None:
        with capture.output_of(attempt):
            outcomes.append(attempt.run(task))

    capture.install()
    try:
        thread = threading.Thread(target=run_attempt, name="pipeline", daemon=True)
        thread.start()
        is_running = True
        while is_running:
            if terminal.wait_for_stop(_POLL_INTERVAL_SEC):
                attempt.stop(StopReason.CANCEL)
            limit = attempt.time_limit
            if limit is not None and attempt.started_at is not None and clock() - attempt.started_at > limit:
                attempt.stop(StopReason.TIME_LIMIT)
            is_running = thread.is_alive()  # asked first: what it reports last is shown too
            progress, _ = news = attempt.reported.unsaved()
            terminal.show_progress(progress or {})
            attempt.reported.mark_saved(news)
    finally:
        capture.remove()
    match outcomes[0]:  # nothing is retried, and a release is a cancellation
        case Settlement(Status.QUEUED) as outcome:
            error = f"{outcome.error} (a worker would retry in {outcome.retry_in_sec:g} s)"
            return Settlement(Status.FAILED, error=error, traceback=outcome.traceback)
        case Settlement() as outcome:
            return outcome
        case Released(ReleaseReason.WAITS, awaited=jobs):
            return Settlement(
                Status.FAILED, error=f"it waits for {format_count(len(jobs), 'job')}, which only a job in the queue can"
            )
        case Released():
            return Settlement(Status.CANCELED)
        case _:  # the pipeline settled the job in its own transaction
            return Settlement(Status.SUCCEEDED)
