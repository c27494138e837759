"""A pipeline in the foreground: as a real job that only this process runs, or with a context in memory."""

from __future__ import annotations

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any
from uuid import UUID, uuid4

from app.cli import text
from app.config import Settings
from app.errors import DatabaseUnavailable, DataloaderError
from app.host.service import Service, set_up_logging
from app.log.setup import Console
from app.queue.attempt_sessions import Places
from app.queue.effects import Effects
from app.queue.job import Claimed, NewJob, Settlement, Status
from app.queue.jobqueue import JobQueue
from app.queue.session import Session
from app.queue.values import checked_json
from pipelines import contract, targets
from pipelines.contract import StopReason, Task
from workers.attempt import Attempt, Tools
from workers.capture import Capture, speaking
from workers.joblog import clean
from workers.outcome import Ending, HandedBack
from workers.pool import WorkerPool
from workers.secrets import Vault
from workers.threads import clock

_LOOK = 0.25  # seconds between two looks at how it does
_LATE = 2.0  # seconds after which a job that has not begun is asked why
_FOR_EVER = 10**9
_GONE = 130


class NoDatabase(DataloaderError):
    """A local run has no queue behind it."""

    permanent = True

    def __init__(self) -> None:
        super().__init__(
            "this is a local run without a database; name one with DL_DB_DSN for transaction() and enqueue(), "
            "and with DL_TARGETS for connect()"
        )


class Unrunnable(DataloaderError):
    """Nothing was begun: no such task, or args that it cannot take."""


@dataclass(frozen=True)
class Outcome:
    status: Status
    result: Any = None
    error: str | None = None
    traceback: str | None = None
    by_hand: bool = False  # somebody pressed Ctrl-C


class Show:
    """What is said, on the terminal: what is printed where it was printed to, all else on standard error."""

    def __init__(self) -> None:
        self._out, self._err = sys.stdout, sys.stderr  # as they are before a capture stands over them
        self._progress: Mapping[str, Any] = {}

    def line(self, job_id: UUID, attempt: int, level: str, stream: str, line: str) -> None:
        with suppress(OSError, ValueError):  # a terminal that was closed
            if stream == "stdout":
                self._write(self._out, clean(line))
            else:
                self._write(self._err, clean(line) if stream == "stderr" else f"{level:<8} {clean(line)}")

    def progress(self, progress: Mapping[str, Any]) -> None:
        if progress and progress != self._progress:
            self._progress = dict(progress)
            self.say(f"         {text.progress_text(progress)}")

    def say(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self._write(self._err, line)

    @staticmethod
    def _write(stream: Any, line: str) -> None:
        stream.write(f"{line}\n")
        stream.flush()


def run(
    settings: Settings, name: str, args: dict[str, Any], *, lock_key: str | None, local: bool, show: Show
) -> Outcome:
    """Run a task until it has ended, one way or the other. Raises Unrunnable, or what keeps it from the database."""
    settings = settings.model_copy(update={"log_format": "text"})
    set_up_logging(settings)
    _quiet_console()
    service = Service(settings, workers=False)
    try:
        if local and settings.dsn is None:
            _without_server(service)
        _ = service.loading
        task = _task(name, args)
        with _interrupts() as notes:
            if local:
                return _locally(service, task, args, show, notes)
            return _as_a_job(service, task, args, lock_key or _lock_key(task, args), show, notes)
    finally:
        service.close()


def _quiet_console() -> None:
    """The job's own words are shown as they are; of all others only those that tell of trouble."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, Console):
            handler.addFilter(lambda record: record.levelno >= logging.WARNING and not speaking())


def _without_server(service: Service) -> None:
    """Load, and let nobody start the embedded server for want of a target's name."""
    _ = service.loading
    targets.configure(*service.settings.places())


def _task(name: str, args: dict[str, Any]) -> Task:
    task = contract.registry.get(name)
    if task is None:
        known = ", ".join(contract.registry.names) or "none"
        raise Unrunnable(f"there is no task {name!r}; known are {known}")
    faults = task.check_args(args)
    if faults:
        raise Unrunnable("the args do not fit: " + "; ".join(f"{path or 'args'}: {told}" for path, told in faults))
    return task


def _lock_key(task: Task, args: dict[str, Any]) -> str:
    try:
        return task.name if task.options.lock_key is None else task.fill_lock_key(args)
    except ValueError as error:
        raise Unrunnable(str(error)) from error


@contextmanager
def _interrupts() -> Iterator[queue.SimpleQueue[int]]:
    """A note for every Ctrl-C and SIGTERM, instead of an exception wherever the main thread happens to be."""
    notes: queue.SimpleQueue[int] = queue.SimpleQueue()

    def note(number: int, _frame: FrameType | None) -> None:
        notes.put(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield notes
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Patience:
    """How often somebody has asked for the end: the first time it is asked for, the second time it is done."""

    def __init__(self, notes: queue.SimpleQueue[int], show: Show) -> None:
        self._notes, self._show = notes, show
        self.asked = False

    def wait(self, seconds: float) -> bool:
        """True: it was asked for now, for the first time."""
        try:
            self._notes.get(timeout=seconds)
        except queue.Empty:
            return False
        if self.asked:
            os._exit(_GONE)  # whatever it holds: its job is found by others when the lease has run out
        self.asked = True
        self._show.say("Stopping at the next safe point; Ctrl-C again leaves at once.")
        return True


# ── as a real job ───────────────────────────────────────────────────────────────────────────────────────────────────


def _as_a_job(
    service: Service, task: Task, args: dict[str, Any], lock_key: str, show: Show, notes: queue.SimpleQueue[int]
) -> Outcome:
    service.database.prepare()
    own = f"run.{uuid4()}"  # a queue that nobody else works on
    options = service.pool_options({own: 1})
    session = Session(
        options.dsn, name="dataloader-run", schema=options.schema, connect_timeout=options.connect_timeout_sec
    )
    jobs = JobQueue(session)
    pool = WorkerPool(contract.registry, options, echo=show.line)
    try:
        new = NewJob(
            queue=own,
            task=task.name,
            lock_key=lock_key,
            args=args,
            max_attempts=1,
            lease_ttl_sec=service.settings.default_lease_ttl_sec,
            producer="dataloader run",
        )
        job_id = jobs.enqueue(new).job_id
        show.say(f"Job {job_id}")
        pool.start()
        return _until_final(jobs, job_id, lock_key, show, Patience(notes, show))
    finally:
        pool.stop(0.0)
        session.close()


def _until_final(jobs: JobQueue, job_id: UUID, lock_key: str, show: Show, ending: Patience) -> Outcome:
    began, told = time.monotonic(), ""
    while True:
        cancel = ending.wait(_LOOK)
        try:
            job = jobs.cancel(job_id) if cancel else jobs.get(job_id)
        except DatabaseUnavailable as error:
            if str(error) != told:
                show.say(f"The database is away: {error}")
            told = str(error)
            ending.asked = ending.asked and not cancel  # it was not heard: the next one asks again
            continue
        if job is None:
            return Outcome(Status.LOST, error="its row was deleted", by_hand=ending.asked)
        show.progress(job.progress)
        if job.status.final:
            return Outcome(job.status, job.result, job.error, job.traceback, ending.asked)
        if job.status is Status.QUEUED and not told and time.monotonic() - began > _LATE:
            told = job.error or f"another job with the lock key {lock_key!r} runs"
            show.say(f"Waiting: {told}")


# ── in memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


class LocalEffects(Effects):
    """Connections without a job behind them: a transaction commits without a fence."""

    def __init__(self, places: Places, job_id: UUID, run_id: UUID) -> None:
        super().__init__(places, job_id, run_id)
        self._anywhere = bool(places.dsn)

    def _seal(self, connection: Any, checkpoint: Any, final: Any) -> None:
        return None

    def _home(self) -> Any:
        if not self._anywhere:
            raise NoDatabase
        return super()._home()


def _locally(service: Service, task: Task, args: dict[str, Any], show: Show, notes: queue.SimpleQueue[int]) -> Outcome:
    settings = service.settings
    places = Places(
        dsn="" if settings.dsn is None else settings.dsn.get_secret_value(),
        schema=settings.schema,
        targets=settings.places()[1],
        connect_timeout_sec=settings.pg_connect_timeout,
    )
    vault = Vault(settings.named_secrets, settings.secrets_dir, settings.secrets_allow)
    tools = Tools(places=places, stop_grace_sec=settings.stop_grace_sec, vault=vault, isolates=False, log=show.line)
    attempt = _attempt(task, args, tools)
    attempt.effects = LocalEffects(places, attempt.facts.job_id, attempt.facts.run_id)
    capture = Capture(show.line)
    ends: list[Ending] = []

    def work() -> None:
        with capture.of(attempt):
            ends.append(attempt.run(task))

    capture.install()
    try:
        thread = threading.Thread(target=work, name="pipeline", daemon=True)
        thread.start()
        ending = Patience(notes, show)
        while thread.is_alive():
            if ending.wait(_LOOK):
                attempt.stop(StopReason.CANCEL)
            limit = attempt.time_limit
            if limit is not None and attempt.began is not None and clock() - attempt.began > limit:
                attempt.stop(StopReason.TIME_LIMIT)
            _tell(attempt, show)
        _tell(attempt, show)
    finally:
        capture.remove()
    return _outcome(ends[0], ending.asked)


def _tell(attempt: Attempt, show: Show) -> None:
    progress, _ = news = attempt.news()
    show.progress(progress or {})
    attempt.written(news)


def _attempt(task: Task, args: dict[str, Any], tools: Tools) -> Attempt:
    job = Claimed(
        id_text=str(uuid4()), run_text=str(uuid4()), queue="local", task=task.name,
        args_text=checked_json("args", args), lock_key=task.name, key_hash=0, priority=100, attempt=1, max_attempts=1,
        lease_ttl_sec=_FOR_EVER, producer="dataloader run", progress_text="{}", checkpoint_text=None,
        time_limit_sec=None, retry_text=None, crashes=0,
    )  # fmt: skip
    return Attempt(job, claimed_at=clock(), tools=tools)


def _outcome(end: Ending, by_hand: bool) -> Outcome:
    match end:
        case Settlement(Status.QUEUED):
            told = f"{end.error} (a worker would try again in {end.retry_in:g} s)"
            return Outcome(Status.FAILED, error=told, traceback=end.traceback, by_hand=by_hand)
        case Settlement():
            return Outcome(end.status, end.result, end.error, end.traceback, by_hand)
        case HandedBack():
            return Outcome(Status.CANCELED, by_hand=by_hand)
        case _:
            return Outcome(Status.SUCCEEDED, by_hand=by_hand)
