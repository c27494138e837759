"""One try at one job, from claimed to settled. In a thread of the worker it is the pipeline's own context."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

from app import log
from app.queue.attempt_sessions import QUEUE_DATABASE, Places, SessionsEnded
from app.queue.effects import Effects, broke_off
from app.queue.job import Claimed, Release, Settlement, Status
from pipelines.contract import Kind, Options, Stop, StopReason, Task
from pipelines.retry import DEFAULT, Policy
from workers.child_environment import ConnectionCheck
from workers.context import Facts, JobContext, note_unchecked_target
from workers.drive import drive
from workers.lease import Lease
from workers.outcome import (
    NOTHING,
    Abandoned,
    Ending,
    Finished,
    HandedBack,
    Left,
    came_from_stop,
    describe,
    failed,
    failure_of,
    refused,
    stopped,
    success,
)
from workers.process_lock import ProcessLock
from workers.secrets import NO_VAULT, WORD, NoSecret, Vault, scrubbed, uncover
from workers.threads import clock

if TYPE_CHECKING:
    from workers.roster import Hand

_log = log.get(__name__)


_PLAIN = Options()
_DROPPED = {"$dropped"}  # what stands in place of JSON that the database could not give us


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What every attempt of a pool is run with."""

    places: Places | None = None
    retry: Policy = DEFAULT
    stop_grace_sec: float = 5.0  # for each rung of the ladder
    packages: tuple[str, ...] = ()  # what a process of its own loads
    tasks: dict[str, Any] = field(default_factory=dict)
    endpoints: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, str] = field(default_factory=dict, repr=False)
    vault: Vault = NO_VAULT  # where secrets are that args refer to
    max_result_bytes: int = 1_000_000
    follow_up_lease_sec: int = 60
    isolates: bool = True  # False: what asks for a process of its own runs in the thread, too; a program never does
    process_lock: ProcessLock = field(default_factory=ProcessLock)  # inherited by each process of a job
    log: Callable[[UUID, int, str, str, str], None] = lambda job_id, attempt, level, stream, text: None

    @cached_property
    def connection_check(self) -> ConnectionCheck:
        """Of isolated processes and programs, whose code opens its own connections."""
        places = self.places
        own = {QUEUE_DATABASE: places.dsn} if places is not None and places.dsn else {}
        return ConnectionCheck(own if places is None else {**own, **places.targets})


_NO_TOOLS = Tools()


def may_have_child(task: Task) -> bool:
    """Whether the task's runs have a process of their own."""
    return task.kind is Kind.COMMAND or task.options.isolation != "thread"


class Interrupt(Stop):
    """Raised in a thread wherever it is, by the ladder."""

    def __init__(self) -> None:
        super().__init__(StopReason.CANCEL)


class Attempt(JobContext):
    """Beside a context's fields: the lease, renewed by the heartbeat, and how far the ladder has gone. Again, a field
    that nobody has set is its class's."""

    options: Options = _PLAIN  # of the task; set by the worker before it begins
    in_thread = True  # likewise; False: the worker's thread watches over a process, and is its ladder
    began: float | None = None  # set by the worker when the pipeline starts
    ended: float | None = None  # and when it has ended
    stop_asked_at: float | None = None  # set once, by whoever stops it
    rung: str | None = None  # the last one that was climbed
    sessions_left: Sequence[str] = ()  # the servers on which a statement of its process may still run
    must_end_now = False  # its process is killed without further stop steps; set once, by the pool that stops
    hand: Hand | None = None  # who claimed it, holds its key and writes down its end
    traced_as: str | None = None  # the trace context of this very try, if one is drawn; set before it begins
    effects: Effects | None = None  # made when the pipeline asks for the first one
    _facts: Facts | None = None  # likewise
    _thread: int | None = None  # whose exceptions may be raised from outside; under the lock
    _interrupted = False  # likewise: there is one interrupt at most

    def __init__(self, job: Claimed, *, claimed_at: float, tools: Tools | None = None) -> None:  # not the base's: its
        # facts and effects are made when they are asked for
        self.job, self.tools = job, tools or _NO_TOOLS
        self.lease = Lease(job.lease_ttl_sec, claimed_at)
        self._lock = threading.Lock()
        self._noting = threading.Lock()

    @property
    def facts(self) -> Facts:  # type: ignore[override]  # read-only here
        if self._facts is None:
            job = self.job
            self._facts = Facts(
                job_id=job.id,
                run_id=job.run_id,
                queue=job.queue,
                task=job.task,
                lock_key=job.lock_key,
                key_hash=job.key_hash,
                attempt=job.attempt,
                max_attempts=job.max_attempts,
                priority=job.priority,
                producer=job.producer,
                max_result_bytes=self.tools.max_result_bytes,
                follow_up_lease_sec=self.tools.follow_up_lease_sec,
                traceparent=self.traced_as or job.traceparent,
            )
        return self._facts

    def _with_effects(self) -> Effects:
        with self._lock:
            if self.effects is None and self.tools.places is not None:
                self.effects = Effects(self.tools.places, self.job.id, self.job.run_id, unchecked=note_unchecked_target)
                if self.refuses_sessions:
                    self.effects.refuse()
        return super()._with_effects()

    @property
    def job_id(self) -> UUID:
        return self.job.id

    @property
    def attempt(self) -> int:
        return self.job.attempt

    def _trusted(self) -> bool:
        return self.lease.trusted(clock())

    @property
    def finished(self) -> bool:
        """Its pipeline's own last transaction has settled the job: there is no lease any more, and none is missed."""
        return self.effects is not None and self.effects.finished

    @property
    def started(self) -> bool:
        return self.began is not None

    @property
    def time_limit(self) -> float | None:
        return self.job.time_limit_sec or self.options.time_limit

    def stop(self, reason: StopReason) -> None:
        if self.stop_asked_at is None:
            self.stop_asked_at, self.rung = clock(), "flag"
        super().stop(reason)

    def kill_process(self) -> None:
        """End its process at once: the worker is about to leave, and nothing of the attempt may outlive it."""
        self.must_end_now = True
        with self._lock:
            wake = self._on_stop
        if wake is not None:
            wake()

    def left(self) -> Left:
        progress, cursor = self.news()
        if progress is None and cursor is None and self.stop_asked_at is None and not self.sessions_left:
            return NOTHING
        notes = self._how_it_was_stopped()
        if self.sessions_left:
            notes = {**(notes or {}), "sessions_left": list(self.sessions_left)}
        return Left(progress, cursor, notes)

    def _how_it_was_stopped(self) -> dict[str, Any] | None:
        if self.stop_asked_at is None or self._reason is None:
            return None
        after = round(clock() - self.stop_asked_at, 2)
        return {"stop_reason": self._reason.value, "stopped_by": self.rung, "stopped_after_sec": after}

    # ── for the worker ──────────────────────────────────────────────────────────────────────────────────────────

    def run(self, task: Task | None) -> Ending:
        """Run the pipeline to its end, whatever that is."""
        now = clock()
        early = self._ends_before_it_begins(task, now)
        if early is not None or task is None:
            return early or HandedBack(Release.NOT_STARTED)
        self.options = task.options
        self.in_thread = not may_have_child(task) or (task.kind is not Kind.COMMAND and not self.tools.isolates)
        job = self.job
        args: dict[str, Any] | str = {} if job.args_text == "{}" else self._args()
        if isinstance(args, str):
            return self.refuse(args)
        if job.checkpoint_text is not None:
            try:
                checkpoint = json.loads(job.checkpoint_text)
            except (ValueError, RecursionError) as error:
                return self.refuse(f"the checkpoint cannot be decoded: {error}")
            if isinstance(checkpoint, dict) and checkpoint.keys() == _DROPPED:
                return self.refuse(f"the checkpoint cannot be read: {checkpoint['$dropped']}")
            self.begin_with(job.progress_text, checkpoint)
        self.began = now
        try:
            return self.veil.ending(scrubbed(self._end(task, args)))
        except Exception as error:  # a fault of ours, or of an error's own methods: it must not end the other jobs too
            _log.exception("attempt.broke")
            return self._settled() or self.veil.ending(scrubbed(_told_plainly(error)))
        finally:
            self.ended = clock()
            if self.effects is not None:
                self.report_sessions(self.effects.close())  # before its end is written, and its key given on

    def _args(self) -> dict[str, Any] | str:
        """With their secrets in them; or why there are none."""
        text = self.job.args_text
        try:
            args: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"args cannot be decoded: {error}"
        if not isinstance(args, dict):
            return f"args must be an object, not {type(args).__name__}"
        if args.keys() == _DROPPED:
            return f"args cannot be read: {args['$dropped']}"
        if WORD in text:
            try:
                args, self.veil = uncover(args, self.tools.vault, self.job.task)
            except NoSecret as error:
                return str(error)
        given: dict[str, Any] = args
        return given

    def _end(self, task: Task, args: dict[str, Any]) -> Ending:
        return self._in_thread(task, args) if self.in_thread else self._in_process(task, args)

    def _ends_before_it_begins(self, task: Task | None, now: float) -> Ending | None:
        if self._reason is StopReason.LEASE_LOST or not self.lease.trusted(now):
            return Abandoned()  # frozen between the claim and now: somebody else may have the job already
        if self._reason is not None:
            return self.end_of_stop()
        return HandedBack(Release.NOT_STARTED) if task is None else None

    def refuse(self, why: str) -> Ending:
        """End the attempt before its task begins, with the reason in the job's own log too."""
        self.tools.log(self.job.id, self.job.attempt, "ERROR", "note", why)
        return refused(why)

    def end_of_stop(self) -> Ending:
        reason = self._reason or StopReason.CANCEL
        return stopped(reason, self.job, self.options, self.tools.retry, self.left())

    def _in_process(self, task: Task, args: dict[str, Any]) -> Ending:
        from workers.process import run_apart  # noqa: PLC0415 - it builds on this module

        return run_apart(self, task, args)

    def _in_thread(self, task: Task, args: dict[str, Any]) -> Ending:
        end: Ending | None = None
        try:
            try:
                with self._lock:
                    self._thread = threading.get_ident()
                end = self._ending(task, args)
            finally:
                self._no_more_interrupts()
        except Interrupt:  # it came a moment after the pipeline had ended by itself; there is no second one
            self._no_more_interrupts()
        return end or self._settled() or self.end_of_stop()

    def _ending(self, task: Task, args: dict[str, Any]) -> Ending:
        try:
            with _command_line(task, args):
                result = drive(task, args, self)
        except Stop:
            return self._settled() or self.end_of_stop()
        except SystemExit as exit_:
            return self._settled() or self._after_exit(exit_)
        except BaseException as error:
            return self._settled() or self._after_error(error)
        return self._settled() or success(result, self.left())

    def _settled(self) -> Ending | None:
        """What the pipeline did before counts more than how it left."""
        if self.finished:
            return Finished()
        return Abandoned() if self._reason is StopReason.LEASE_LOST else None

    def _after_exit(self, exit_: SystemExit) -> Ending:
        if exit_.code in (None, 0):
            return success(None, self.left())
        return self._after_error(exit_)

    def _after_error(self, error: BaseException) -> Ending:
        if self._reason is not None and (came_from_stop(error) or (self.rung == "terminate" and broke_off(error))):
            return self.end_of_stop()
        return failed(failure_of(self.job, error, self.options, self.tools.retry), self.left())

    # ── for the ladder ──────────────────────────────────────────────────────────────────────────────────────────

    def interrupt(self) -> bool:
        """Raise in the pipeline's thread at its next bytecode, once; False: it has ended."""
        with self._lock:
            if self._thread is None or self._interrupted:
                return False
            self._interrupted = True
            given = ctypes.py_object(Interrupt)
            return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), given))

    def end_sessions(self) -> None:
        """End its sessions, and open no more. May take seconds where a server does not answer."""
        self.refuse_sessions()
        if self.effects is not None:
            self.report_sessions(self.effects.terminate())

    def report_sessions(self, sessions: SessionsEnded) -> None:
        if not sessions.is_done:
            _log.warning("sessions.left", job=str(self.job_id), task=self.job.task, sessions_left=sessions.left_on)
        elif sessions.ended:
            _log.info("sessions.ended", job=str(self.job_id), task=self.job.task, ended=sessions.ended)

    def _no_more_interrupts(self) -> None:
        """From here on the thread is the worker's own again; an interrupt on its way arrives here at the latest.

        It is let arrive rather than taken back: to take back one that has arrived already leaves CPython 3.11 with a
        flag that nothing clears, and a traced thread (a debugger, coverage) hangs on it for ever.
        """
        with self._lock:
            self._thread = None
        for _ in range(2):  # the interpreter looks for it where a loop turns back
            pass


@contextmanager
def _command_line(task: Task, args: dict[str, Any]) -> Iterator[None]:
    """What a `main()` finds as its command line where it has no process of its own: on a terminal, or in a test."""
    if task.options.argv is None:
        yield
        return
    before = sys.argv
    sys.argv = [task.name, *task.command_line(args)]
    try:
        yield
    finally:
        sys.argv = before


def _told_plainly(error: BaseException) -> Settlement:
    return Settlement(Status.QUEUED, error=describe(error), retry_in=DEFAULT.pause(1))
