"""The main program of an isolated process: runs one task and reports to its worker over a socket."""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dataloader.app.db.encoding import sanitize_json, sanitize_text
from dataloader.app.queue.attempt_sessions import ConnectionSettings
from dataloader.app.queue.job import ClaimedJob
from dataloader.pipelines import contract, targets
from dataloader.pipelines.contract import Stop, StopReason, Wait, registry
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.job_args import RESULT_KEY, SECRET_KEY, substitute
from dataloader.pipelines.offload import RemoteWorkerLost
from dataloader.pipelines.retry import Fixed, RetryAction, decide
from dataloader.pipelines.runner import run_task
from dataloader.workers.connections.own_connections import wrap_drivers
from dataloader.workers.connections.task_connections import MAX_CHECKPOINT_BYTES
from dataloader.workers.context import ContextSettings, JobContext
from dataloader.workers.fingerprint import fingerprint
from dataloader.workers.logs.capture import level_of, record_lines
from dataloader.workers.logs.writer import POSITION_STREAM
from dataloader.workers.offloads.remote_log import position_line
from dataloader.workers.offloads.service import OffloadService
from dataloader.workers.outcome import caused_by_stop, describe_error, usage_hint
from dataloader.workers.secrets import Redactor
from dataloader.workers.sentry import report_error
from dataloader.workers.threads import clock

_PROGRESS_INTERVAL_SEC = 0.1
EXIT_ORPHANED = 71  # the parent process is gone
_PR_SET_PDEATHSIG = 1
_NO_ADDED_PAUSE = Fixed(0.0)  # the parent knows the job's policy
_MAX_LINE_LENGTH = 16_384
_MAX_ERROR_LENGTH, _MAX_TRACEBACK_LENGTH = 8_000, 64_000
_MAX_PROGRESS_BYTES = 64_000


class ParentChannel:
    """Sends and receives messages. `send` may be called by any thread, and by a signal handler or finalizer that
    interrupts another `send`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.RLock()
        self._queued: list[bytes] | None = None  # not None while a message is being sent; under the lock
        self._received = channel.makefile("rb")

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
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
    """Sends the process's log records to the job's log."""

    def __init__(self, parent: ParentChannel) -> None:
        super().__init__()
        self._parent, self._pid = parent, os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a log line must not end a job
            for line in record_lines(record):
                if os.getpid() == self._pid:
                    self._parent.send({"log": [level_of(record), "log", line[:_MAX_LINE_LENGTH]]})
                else:  # a fork made by the pipeline must not use the socket or its lock
                    sys.stderr.write(line[:_MAX_LINE_LENGTH] + "\n")


def main(descriptor: int) -> None:
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
    context = _build_context(parent, spec)
    threading.Thread(target=_handle_commands, args=(parent, context), daemon=True).start()
    done = threading.Event()
    reporter = threading.Thread(target=_report_progress, args=(parent, context, done), daemon=True)
    reporter.start()
    context.owns_connections = spec["connection_check"]
    if context.settings.connection_settings is None or context.settings.connection_settings.wrap_drivers:
        wrap_drivers()
    with context.owning_connections():
        result = _run_task(spec, context)
    if context.connections is not None:
        context.connections.close()
    done.set()
    reporter.join()
    parent.send({"result": result})
    _exit()


def _exit() -> None:
    """Exit as an interpreter does, but without waiting for threads that the pipeline left running."""
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def _exit_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies: then no process renews the lease."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(EXIT_ORPHANED)


class IsolatedContext(JobContext):
    """The context of the one job of this process."""

    def __init__(self, parent: ParentChannel, job: ClaimedJob, settings: ContextSettings) -> None:
        super().__init__(job, settings)
        self._parent = parent

    def write_lines(self, stream: str, lines: Sequence[str]) -> None:
        for line in lines:
            self._parent.send({"log": ["INFO", stream, self.redactor.redact_text(line)[:_MAX_LINE_LENGTH]]})

    def write_log_position(self, name: str, position: str) -> None:
        self._parent.send({"log": ["INFO", POSITION_STREAM, position_line(name, self.job.run_id, position)]})


def _build_context(parent: ParentChannel, spec: dict[str, Any]) -> JobContext:
    settings = ContextSettings(
        connection_settings=spec["connection_settings"] and ConnectionSettings(**spec["connection_settings"]),
        max_result_bytes=spec["max_result_bytes"],
        follow_up_lease_sec=spec["follow_up_lease_sec"],
        task_limits=spec["task_limits"],
        task_unique_by=spec["task_unique_by"],
        task_defaults=spec["task_defaults"],
        offloads=OffloadService(Engines(spec["executors"])) if spec["executors"] else None,
    )
    context = IsolatedContext(parent, ClaimedJob.from_json(spec["job"]), settings)
    context.redactor = Redactor(spec["secrets"])
    return context


def _handle_commands(parent: ParentChannel, context: JobContext) -> None:
    while (message := parent.receive()) is not None:
        if "stop" in message:
            context.stop(StopReason(message["stop"]))
        elif "stops_in" in message:
            context.stop_signal.stops_at = clock() + message["stops_in"]
        elif context.connections is not None:  # in a thread: a server that does not answer must not delay a stop
            threading.Thread(target=context.connections.cancel, daemon=True).start()
    os._exit(EXIT_ORPHANED)


def _report_progress(parent: ParentChannel, context: JobContext, done: threading.Event) -> None:
    is_last, sent_reports, sent_offloads = False, context.reported.reports, False
    while not is_last:
        is_last = done.wait(_PROGRESS_INTERVAL_SEC)
        with suppress(MemoryError):  # the pipeline's, which may recover
            if context.has_offloads and not sent_offloads:
                parent.send({"offloads": True})
                sent_offloads = True
            reports = context.reported.reports
            if reports is not sent_reports:
                parent.send({"reports": vars(reports)})
                sent_reports = reports
            progress, checkpoint = unsaved = context.reported.unsaved()
            if progress is not None:
                parent.send({"progress": json.loads(sanitize_json(progress, _MAX_PROGRESS_BYTES))})
            if checkpoint is not None:
                parent.send({"checkpoint": json.loads(sanitize_json(checkpoint, MAX_CHECKPOINT_BYTES))})
            context.reported.mark_saved(unsaved)


def _run_task(spec: dict[str, Any], context: JobContext) -> dict[str, Any]:
    """Run the task; return the message that says how it ended."""
    options, task_module = contract.TaskOptions(), ""
    try:
        task = _load_task(spec, context)
        if isinstance(task, str):
            return {"kind": "unknown_task", "message": task}
        options, task_module = task.options, task.module
        args = json.loads(context.job.args_text)
        if spec["secrets"] or spec["results"]:
            args = substitute(args, {SECRET_KEY: spec["secrets"], RESULT_KEY: spec["results"]})
        if context.job.checkpoint_text is not None:
            context.reported.restore(context.job.progress_text, json.loads(context.job.checkpoint_text))
        context.check()
        sys.argv = [context.task, *task.command_line(args)]
        _set_limits(spec)
        message = _success_message(run_task(task, args, context), spec["max_result_bytes"])
    except Stop as stop:
        message = {"kind": "stopped", "reason": stop.reason.value}
    except Wait as wait:
        message = {"kind": "waits", "jobs": [str(job_id) for job_id in wait.jobs], "offloads": list(wait.offloads)}
    except BaseException as error:
        message = _error_message(context, options, error, task_module)
    is_settled = context.connections is not None and context.connections.settled
    return {"kind": "settled"} if is_settled else message


def _load_task(spec: dict[str, Any], context: JobContext) -> contract.Task | str:
    """Return the task, or why there is none."""
    settings = spec["connection_settings"]
    if settings is not None:
        targets.configure(spec["endpoints"], settings["targets"], spec["tokens"], fallback_dsn=lambda: settings["dsn"])
    if context.task in spec["tasks"]:  # a task of the settings needs no module but its own
        failures = contract.load_tasks((), {context.task: spec["tasks"][context.task]})
    else:
        failures = contract.load_tasks(spec["packages"], spec["tasks"])
    task = registry.get(context.task)
    if task is not None:
        return task
    broken = "; ".join(f"{name}: {error.strip().splitlines()[-1]}" for name, error in failures.items())
    return f"the process does not know the task {context.task!r} (broken modules: {broken or 'none'})"


def _success_message(result: Any, max_bytes: int) -> dict[str, Any]:
    return {"kind": "success", "result": None if result is None else json.loads(sanitize_json(result, max_bytes))}


def _error_message(
    context: JobContext, options: contract.TaskOptions, error: BaseException, task_module: str
) -> dict[str, Any]:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return _success_message(None, 0)
    job = context.job
    decision = decide(
        error, attempt=job.attempt, max_attempts=job.max_attempts, policy=_NO_ADDED_PAUSE, rules=options.rules
    )
    is_stopped = caused_by_stop(error)
    is_final = decision.action is RetryAction.FAIL and not is_stopped and not isinstance(error, RemoteWorkerLost)
    return {
        "kind": "error",
        "message": sanitize_text(describe_error(error) + usage_hint(error, options), _MAX_ERROR_LENGTH),
        "traceback": sanitize_text("".join(traceback.format_exception(error)), _MAX_TRACEBACK_LENGTH),
        "fingerprint": fingerprint(error, task_module),
        "decision": decision.action.value,
        "pause": decision.delay_sec,
        "reported": is_final and report_error(error, job, before_exit=True),
        "stopped": is_stopped,
        "crashed": isinstance(error, RemoteWorkerLost),
    }


def _set_limits(spec: dict[str, Any]) -> None:
    if spec["memory_mb"] is not None:
        # Not of the address space: threads and allocators reserve far more than they use.
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        _lower_limit(kind, spec["memory_mb"] * 1024 * 1024, 0)
    if spec["cpu_sec"] is not None:
        _lower_limit(resource.RLIMIT_CPU, spec["cpu_sec"], 5)


def _lower_limit(resource_id: int, soft_limit: int, hard_margin: int) -> None:
    _, highest = resource.getrlimit(resource_id)
    hard = soft_limit + hard_margin if highest == resource.RLIM_INFINITY else min(soft_limit + hard_margin, highest)
    resource.setrlimit(resource_id, (min(soft_limit, hard), hard))
