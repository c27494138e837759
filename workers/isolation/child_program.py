"""The process of an isolated attempt, seen from within: runs one task and reports to its worker. Portable.

`child_main.py` is the program for this interpreter, `standalone_main.py` that for any other one.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from dataloader.pipelines.context import Stop, StopReason, Wait
from dataloader.pipelines.failures import caused_by_stop, describe_error, format_traceback, usage_hint
from dataloader.pipelines.json_values import MAX_CHECKPOINT_BYTES, sanitize_json, sanitize_text
from dataloader.pipelines.portable import clock
from dataloader.pipelines.reported_state import ReportedState
from dataloader.pipelines.retry import Fixed, Rules, decide
from dataloader.pipelines.target_transactions import TargetTransactions
from dataloader.workers.fingerprint import fingerprint
from dataloader.workers.logs.records import level_of, record_fields, record_texts
from dataloader.workers.moments import LateLooks, ThreadMoments, read_cpu_of_process, read_memory_mb
from dataloader.workers.stacks import read_threads
from dataloader.workers.stop_signal import StopSignal

EXIT_ORPHANED = 71  # the parent process is gone
_REPORT_INTERVAL_SEC = 0.1
_PR_SET_PDEATHSIG = 1
_NO_ADDED_PAUSE = Fixed(0.0)  # the parent knows the job's policy
MAX_LINE_LENGTH = 16_384
_MAX_ERROR_LENGTH, _MAX_TRACEBACK_LENGTH = 8_000, 64_000
_MAX_PROGRESS_BYTES = 64_000
_CPU_LIMIT_MARGIN_SEC = 5


class ParentChannel:
    """Sends and receives messages. `send` may be called by any thread, and by a signal handler or finalizer that
    interrupts another `send`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.RLock()
        self._queued: list[bytes] | None = None  # not None while a message is being sent; under the lock
        self._received = channel.makefile("rb")
        self.replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def send(self, message: Mapping[str, Any], max_bytes: float = float("inf")) -> None:
        """Raises ValueError for a message that is too long."""
        line = json.dumps(message).encode() + b"\n"
        if len(line) > max_bytes:
            raise ValueError(f"a request to the worker has at most {max_bytes} bytes of JSON")
        with self._lock, suppress(OSError):
            if self._queued is not None:
                self._queued.append(line)
                return
            self._queued = [line]
            try:
                while self._queued:
                    self._channel.sendall(self._queued[0])
                    del self._queued[0]
            finally:
                self._queued = None

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or None if the worker is gone."""
        line = self._received.readline()
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message


class ParentLogHandler(logging.Handler):
    """Sends the process's log records to the job's log. The worker adds the fields, without secrets."""

    def __init__(self, parent: ParentChannel) -> None:
        super().__init__()
        self._parent, self._pid = parent, os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a log line must not end a job
            message, *texts = record_texts(record)
            self._send(record, message, _plain_fields(record_fields(record)))
            for text in texts:
                self._send(record, text, {})

    def _send(self, record: logging.LogRecord, text: str, fields: dict[str, Any]) -> None:
        if os.getpid() != self._pid:  # a fork made by the pipeline must not use the socket or its lock
            sys.stderr.write(text[:MAX_LINE_LENGTH] + "\n")
            return
        *lines, last = text.splitlines() or [""]
        for line in lines:
            self._parent.send({"log": [level_of(record), "log", line[:MAX_LINE_LENGTH]]})
        self._parent.send({"log": [level_of(record), "log", last[:MAX_LINE_LENGTH], fields]})


def _plain_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    try:
        encoded = json.dumps(fields, default=str)
    except (TypeError, ValueError, RecursionError):  # a key or a cycle that JSON lacks
        encoded = json.dumps({str(name): str(value) for name, value in fields.items()})
    plain: dict[str, Any] = json.loads(encoded) if len(encoded) <= MAX_LINE_LENGTH else {"fields": encoded}
    return plain


class ChildContext(Protocol):
    """What the program needs of its task's context."""

    task: str
    attempt: int
    max_attempts: int
    reported: ReportedState
    stop_signal: StopSignal
    has_offloads: bool
    awaitable: Any

    @property
    def has_finished(self) -> bool:
        """Whether it has committed its final transaction in a target."""

    @property
    def targets(self) -> TargetTransactions: ...


class UnknownTask(Exception):
    """This process does not know the task."""


class ChildProgram:
    """Runs the task of this process."""

    own_threads: tuple[int, ...] = ()  # idents of those that are not the task's
    rules = Rules()  # of the task, set when it is loaded, as the next two
    has_command_line = False
    task_module = ""
    moments_interval_sec: float | None = None  # set when the worker asks for them

    def __init__(self, parent: ParentChannel, spec: dict[str, Any], context: ChildContext) -> None:
        self.parent, self.spec, self.context = parent, spec, context

    def execute(self) -> Any:
        """Load and run the task; return its result. Raises UnknownTask, and what the task raises."""
        raise NotImplementedError

    def cancel_query(self) -> None:
        """End the statement that the task waits for."""

    def close(self) -> None:
        """Close what the task has left open."""

    def run(self) -> dict[str, Any]:
        """Run the task; return the message that says how it ended. What is final in a target counts however it did."""
        message = self._run()
        if self.context.has_finished:
            return success_message(self.context.targets.result, self.spec["max_result_bytes"])
        return message

    def _run(self) -> dict[str, Any]:
        try:
            return success_message(self.execute(), self.spec["max_result_bytes"])
        except Stop as stop:
            return {"kind": "stopped", "reason": str(stop.reason)}
        except Wait as wait:
            return {"kind": "waits", "jobs": [str(job_id) for job_id in wait.jobs], "offloads": list(wait.offloads)}
        except UnknownTask as unknown:
            return {"kind": "unknown_task", "message": str(unknown)}
        except BaseException as error:
            if isinstance(error, SystemExit) and error.code in (None, 0):
                return success_message(None, 0)
            return self.error_message(error)

    def error_message(self, error: BaseException) -> dict[str, Any]:
        decision = decide(
            error,
            attempt=self.context.attempt,
            max_attempts=self.context.max_attempts,
            policy=_NO_ADDED_PAUSE,
            rules=self.rules,
        )
        text = describe_error(error) + usage_hint(error, has_command_line=self.has_command_line)
        return {
            "kind": "error",
            "message": sanitize_text(text, _MAX_ERROR_LENGTH),
            "traceback": sanitize_text(format_traceback(error), _MAX_TRACEBACK_LENGTH),
            "fingerprint": fingerprint(error, self.task_module),
            "decision": decision.action.value,
            "pause": decision.delay_sec,
            "stopped": caused_by_stop(error),
        }

    def handle_commands(self) -> None:
        while True:
            message = self.parent.receive()
            if message is None:
                os._exit(EXIT_ORPHANED)
            if "stop" in message:
                self.context.stop_signal.request(StopReason(message["stop"]))
            elif "stops_in" in message:
                self.context.stop_signal.stops_at = clock() + message["stops_in"]
            elif "reply" in message:
                self.parent.replies.put(message["reply"])
            elif "stacks" in message:
                self.send_stacks(message["stacks"])
            elif "moments" in message:
                self.moments_interval_sec = message["moments"]
            else:
                self.cancel_query()

    def send_stacks(self, request: int) -> None:
        """Send where the task's threads are. A failure must not end the thread that receives a stop."""
        threads: list[dict[str, Any]] = []
        with suppress(Exception):
            threads = read_threads(
                int(threading.main_thread().ident or 0), self.own_threads, awaitable=self.context.awaitable
            )
        self.parent.send({"stacks": request, "threads": threads})

    def report(self, done: threading.Event) -> None:
        """Send what the task reports, until it is done."""
        is_last, sent_reports, sent_offloads, began_at = False, self._reports(), False, clock()
        moments: TaskMoments | None = None
        pause_sec = _REPORT_INTERVAL_SEC
        while not is_last:
            is_last, pause_sec = done.wait(pause_sec), _REPORT_INTERVAL_SEC
            if moments is None and self.moments_interval_sec is not None and not is_last:
                moments = TaskMoments(self.context, self.moments_interval_sec, began_at)
            if moments is not None and (is_last or clock() >= moments.wakes_at):
                with suppress(Exception):  # it must not end what reports
                    pause_sec = self._describe(moments, is_last)
            with suppress(MemoryError):  # the task's, which may recover
                if self.context.has_offloads and not sent_offloads:
                    self.parent.send({"offloads": True})
                    sent_offloads = True
                reports = self._reports()
                if any(new is not sent for new, sent in zip(reports, sent_reports)):
                    self.parent.send({"reports": {"checks": reports[0], "datasets": reports[1]}})
                    sent_reports = reports
                progress, checkpoint = unsaved = self.context.reported.unsaved()
                if progress is not None:
                    self.parent.send({"progress": json.loads(sanitize_json(progress, _MAX_PROGRESS_BYTES))})
                if checkpoint is not None:
                    self.parent.send({"checkpoint": json.loads(sanitize_json(checkpoint, MAX_CHECKPOINT_BYTES))})
                self.context.reported.mark_saved(unsaved)

    def _describe(self, moments: TaskMoments, is_last: bool) -> float:
        """Look at the task if it is time to; return the seconds until the next report or look."""
        moment = moments.last() if is_last else moments.look()
        if moment is not None:
            self.parent.send({"moment": moment})
        return moments.pause_sec(_REPORT_INTERVAL_SEC)

    def _reports(self) -> tuple[Any, Any]:
        return self.context.reported.checks, self.context.reported.datasets


class TaskMoments:
    """What the task's thread does, looked at again and again by the thread that reports."""

    def __init__(self, context: ChildContext, interval_sec: float, began_at: float) -> None:
        self._context, self._interval_sec, self._began_at = context, interval_sec, began_at
        main, now = threading.main_thread(), clock()
        self._moments = ThreadMoments(int(main.ident or 0), os.getpid(), now)  # its native id; a fork keeps the old one
        self._late = LateLooks()
        self._next_at = now + interval_sec
        self.wakes_at = now  # before then there is nothing to do

    def pause_sec(self, max_sec: float) -> float:
        """Until the next report, or look. A look that is near the time of a report needs no wake-up of its own."""
        now = clock()
        until_look = max(0.0, self._next_at - now)
        if until_look >= 1.5 * max_sec:
            self.wakes_at = self._next_at - 1.5 * max_sec
            return max_sec
        pause_sec = max_sec if until_look > max_sec / 2 else until_look
        self.wakes_at = self._next_at = now + pause_sec
        self._late.plan(self._next_at)
        return pause_sec

    def look(self) -> dict[str, Any] | None:
        """None: it is too early."""
        now = clock()
        if now < self._next_at:
            return None
        late_sec = self._late.late_sec(now)
        moment = self._moments.look(now, sys._current_frames(), late_sec=late_sec, awaitable=self._context.awaitable)
        self._next_at = now + self._interval_sec
        return None if moment is None else {**moment, **self._figures(), "up_sec": now - self._began_at}

    def last(self) -> dict[str, Any]:
        """The figures at the end of the task."""
        return {"sec": 0.0, "kind": None, **self._figures()}

    def _figures(self) -> dict[str, Any]:
        return {"memory_mb": read_memory_mb(), "cpu_sec": read_cpu_of_process(), "moved": self._context.reported.moved}


def success_message(result: Any, max_bytes: int) -> dict[str, Any]:
    return {"kind": "success", "result": None if result is None else json.loads(sanitize_json(result, max_bytes))}


def run_program(descriptor: int, load: Callable[[ParentChannel, dict[str, Any]], ChildProgram]) -> None:
    """Run the task that the worker names in its first message, then end the process."""
    os.set_inheritable(descriptor, False)
    parent = ParentChannel(socket.socket(fileno=descriptor))
    spec = parent.receive()
    if spec is None:
        os._exit(EXIT_ORPHANED)
    _exit_with_parent(spec["parent_pid"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler in Python never runs while code holds the interpreter
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # as started
    root = logging.getLogger()
    root.addHandler(ParentLogHandler(parent))
    root.setLevel(logging.INFO)
    program = load(parent, spec)
    threading.Thread(target=program.handle_commands, daemon=True).start()
    done = threading.Event()
    reporter = threading.Thread(target=program.report, args=(done,), daemon=True)
    reporter.start()
    program.own_threads = (int(reporter.ident or 0),)
    result = program.run()
    program.close()
    done.set()
    reporter.join()
    parent.send({"result": result})
    _exit()


def _exit() -> None:
    """Exit as an interpreter does, but without waiting for threads that the task left running."""
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def _exit_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies: then no process renews the lease."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - an interpreter may be built without it

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)


def set_limits(spec: Mapping[str, Any]) -> None:
    """Limit the memory and processor time of this process."""
    import resource  # noqa: PLC0415 - few tasks have limits

    if spec["memory_mb"] is not None:
        # Not of the address space: threads and allocators reserve far more than they use.
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        _lower_limit(kind, spec["memory_mb"] * 1024 * 1024, 0)
    if spec["cpu_sec"] is not None:
        _lower_limit(resource.RLIMIT_CPU, spec["cpu_sec"], _CPU_LIMIT_MARGIN_SEC)


def _lower_limit(resource_id: int, soft_limit: int, hard_margin: int) -> None:
    import resource  # noqa: PLC0415 - as above

    _, highest = resource.getrlimit(resource_id)
    hard = soft_limit + hard_margin if highest == resource.RLIM_INFINITY else min(soft_limit + hard_margin, highest)
    resource.setrlimit(resource_id, (min(soft_limit, hard), hard))
