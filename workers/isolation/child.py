"""The process of an isolated attempt, seen from its worker thread: its output, its messages, its stop.

The child sends JSON lines over a socket pair; what it prints is read line by line. A stop escalates from a message to
SIGKILL of the whole process group, so that it always ends. Between worker and child runs the watchdog (`watchdog.py`),
which kills the group if the worker process is gone or the lease has expired.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import NoneType
from typing import Any

from dataloader.app import log
from dataloader.app.queue.attempt_sessions import attempt_application_name, end_sessions, server_dsns
from dataloader.pipelines.context import StopReason
from dataloader.pipelines.portable import clock
from dataloader.pipelines.reports import Check, DatasetUse
from dataloader.workers.attempt import Attempt
from dataloader.workers.isolation.database_calls import DatabaseCalls
from dataloader.workers.isolation.processes import WatchedProcess, encode_deadline
from dataloader.workers.logs.records import add_fields
from dataloader.workers.outcome import Outcome, add_event_fields
from dataloader.workers.running_child import RunningChild
from dataloader.workers.stop_signal import StopStep
from dataloader.workers.threads import WakeupPipe

_log = log.get(__name__)
_READ_BYTES = 65_536
_MAX_LINE_LENGTH = 8_192  # of output
_MAX_MESSAGE_BYTES = 16_000_000  # in addition to the result
_MAX_UNREAD_BYTES = 1_000_000  # sent to a child that does not read; its own messages wait meanwhile
_STDERR_TAIL_LINES = 20  # kept for the error of a command
_LIVENESS_INTERVAL_SEC = 1.0  # between two checks that the child lives: others may hold all its descriptors open
_SEND_RETRY_SEC = 0.02  # while the child does not read
_DRAIN_SEC = 2.0  # for reading the output that is left: a process that escaped the group may go on writing
_EXIT_TIMEOUT_SEC = 5.0  # from the result message to the exit
_READ_SLICE_SEC = 0.005  # of reading at a time, after which a flood waits as long
_TEXT_TYPES, _OPTIONAL_TEXT_TYPES = (str,), (str, NoneType)
_MESSAGE_FIELDS: dict[str, dict[str, tuple[type, ...]]] = {  # kind → its fields and their types
    "success": {"result": (dict, list, str, int, float, NoneType)},
    "stopped": {"reason": _TEXT_TYPES},
    "waits": {"jobs": (list,)},
    "error": {
        "message": _TEXT_TYPES, "traceback": _OPTIONAL_TEXT_TYPES, "decision": _TEXT_TYPES, "pause": (int, float),
        "stopped": (bool,), "fingerprint": _TEXT_TYPES,
    },
    "unknown_task": {"message": _TEXT_TYPES},
    "settled": {},
}  # fmt: skip


class StartFailed(Exception):
    """The operating system could not start the process."""

    def __init__(self, error: OSError | ValueError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    code: int  # negative: killed by this signal
    peak_kb: int
    stopped_by_us: bool  # before it sent a result
    result_message: dict[str, Any] | None

    @property
    def error_fingerprint(self) -> str:
        """How it ended, for a group of failures."""
        return f"exit code {self.code}" if self.code >= 0 else f"killed by {self._signal_name}"

    @property
    def _signal_name(self) -> str:
        return signal.Signals(-self.code).name if -self.code in set(signal.Signals) else str(-self.code)

    def describe(self) -> str:
        peak = f", peak memory {self.peak_kb // 1024} MB"
        if self.code >= 0:
            return f"the process exited with code {self.code}{peak}"
        name = self._signal_name
        reason = {
            "SIGKILL": " (was the machine out of memory?)",
            "SIGSEGV": " (a fault in native code)",
            "SIGXCPU": " (its limit of processor time)",
        }.get(name, "")
        return f"the process was killed by {name}{reason}{peak}"

    def add_to(self, outcome: Outcome) -> Outcome:
        return add_event_fields(outcome, {"exit_code": self.code, "peak_kb": self.peak_kb})


class _LineReader:
    """Passes on the lines of a stream; a line that is too long is cut."""

    def __init__(self, handle: Callable[[bytes], None], max_length: int = _MAX_LINE_LENGTH) -> None:
        self._handle, self._max_length = handle, max_length
        self._partial = bytearray()

    def feed(self, chunk: bytes) -> None:
        self._partial += chunk
        if b"\n" not in chunk and len(self._partial) <= self._max_length:
            return
        *lines, rest = bytes(self._partial).split(b"\n")
        if len(rest) > self._max_length:
            lines, rest = [*lines, rest], b""
        self._partial = bytearray(rest)
        for line in lines:
            self._handle(line)

    def finish(self) -> None:
        if self._partial:
            self._handle(bytes(self._partial))


class ChildProcess:
    """Starts, reads and stops one process. Used by one thread."""

    def __init__(
        self, attempt: Attempt, start: Callable[[], WatchedProcess], *, channel: socket.socket | None = None
    ) -> None:
        """Raises StartFailed. `wait` closes the channel."""
        self._attempt, self._channel = attempt, channel
        with ExitStack() as undo:
            if channel is not None:
                undo.enter_context(channel)
            try:
                self._wakeup = WakeupPipe()
                undo.callback(self._wakeup.close)
                self._process = start()
            except (OSError, ValueError) as error:
                raise StartFailed(error) from error
            undo.callback(self._process.close)
            self._resources = undo.pop_all()
        self._watchdog = self._process.watchdog
        self._output = [_LineReader(partial(self._log_line, stream)) for stream in ("stdout", "stderr")]
        self._readers = {  # by descriptor; one that has ended is removed
            self._process.stdout: self._output[0],
            self._process.stderr: self._output[1],
            self._watchdog.fileno(): _LineReader(self._on_watchdog_message),
        }
        if channel is not None:
            max_message = _MAX_MESSAGE_BYTES + 6 * attempt.settings.max_result_bytes  # as JSON at its longest
            self._readers[channel.fileno()] = _LineReader(self._on_message, max_message)
        for descriptor in self._readers:
            os.set_blocking(descriptor, False)
        self._database_calls = DatabaseCalls(attempt, self._wakeup.set)
        self._running = RunningChild(self.pid, self._wakeup.set, has_channel=channel is not None)
        attempt.child = self._running
        self._outgoing = bytearray()  # messages that the child has not read yet
        self._stderr_lines: deque[str] = deque(maxlen=_STDERR_TAIL_LINES)
        self._result_message: dict[str, Any] | None = None
        self._result_at: float | None = None
        self._exit: tuple[int, int] | None = None  # exit code and peak memory, from the watchdog
        self._start_error: OSError | None = None  # from the watchdog: there is no such program
        self._last_step_at: float | None = None
        self._stopped_by_us = False
        self._announced_stop: float | None = None
        self._sent_deadline = 0.0  # the end of the lease, as the watchdog knows it
        # Renewals of a short lease must reach the watchdog in time.
        self._liveness_interval_sec = min(_LIVENESS_INTERVAL_SEC, attempt.lease.ttl_sec / 8)
        self._extend_watchdog()

    @property
    def pid(self) -> int:
        """Of the watchdog, and so of the process group."""
        return self._process.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message without waiting: a child that does not read must not delay its own stop."""
        self._outgoing += json.dumps(message).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        if self._channel is not None and self._outgoing:
            try:
                del self._outgoing[: self._channel.send(self._outgoing)]
            except BlockingIOError:
                return
            except OSError:  # the child has closed its end
                self._outgoing.clear()

    def wait(self) -> Exit:
        """Wait until the process, its group and its database sessions have ended. Raises StartFailed."""
        try:
            with self._attempt.on_stop(self._wakeup.set):
                while not self._process.has_exited():
                    self._extend_watchdog()
                    self._announce_stop()
                    for reply in self._database_calls.finished():
                        self.send({"reply": reply})
                    while self._channel is not None and (message := self._running.next_message()) is not None:
                        self.send(message)
                    self._flush()
                    self._read_output()
                    self._escalate()
        finally:
            is_past_lease = clock() >= self._sent_deadline
            code, peak_kb = self._process.collect()
            self._read_remaining_output()
            if is_past_lease and self._result_message is None:  # the watchdog has killed it
                self._stopped_by_us = True
                self._attempt.stop(StopReason.LEASE_LOST)
            self._resources.close()
            self._database_calls.end()
            self._end_sessions()
        if self._start_error is not None:
            raise StartFailed(self._start_error)
        code, peak_kb = self._exit or (code, peak_kb)
        return Exit(code, peak_kb, self._stopped_by_us and self._result_message is None, self._result_message)

    def _extend_watchdog(self) -> None:
        """Send the watchdog the end of the lease: until then no other worker starts the job."""
        deadline = self._attempt.lease.ends_at
        if deadline != self._sent_deadline:
            self._sent_deadline = deadline
            with suppress(OSError):
                self._watchdog.send(encode_deadline(deadline), socket.MSG_DONTWAIT)

    def _announce_stop(self) -> None:
        """Send the child when the process that shuts down will stop it."""
        stops_at = self._attempt.stop_signal.stops_at
        if stops_at is not None and stops_at != self._announced_stop and self._channel is not None:
            self._announced_stop = stops_at
            self.send({"stops_in": stops_at - clock()})

    def stderr_tail(self) -> str:
        return str(log.mask("".join(f"\n{line}" for line in self._stderr_lines)))

    # ── output and messages ─────────────────────────────────────────────────────────────────────────────────────

    def _read_output(self) -> None:
        timeout = _SEND_RETRY_SEC if self._outgoing else self._liveness_interval_sec
        if self._attempt.stop_reason is not None and self._last_step_at is not None:
            timeout = min(timeout, self._last_step_at + self._attempt.settings.stop_step_sec - clock())
        paused = None
        if self._channel is not None and len(self._outgoing) > _MAX_UNREAD_BYTES:
            paused = self._channel.fileno()
        readable = [descriptor for descriptor in self._readers if descriptor != paused]
        self._wakeup.wait(timeout, *readable)
        started_at = clock()
        for descriptor in readable:
            self._read_available(descriptor)
        spent = clock() - started_at
        if spent > _READ_SLICE_SEC:  # leave the interpreter to the other jobs of this process
            self._wakeup.wait(min(spent, self._liveness_interval_sec))

    def _read_remaining_output(self) -> None:
        deadline = clock() + _DRAIN_SEC
        for descriptor in list(self._readers):
            while self._read_available(descriptor) and clock() < deadline:
                pass
        for reader in self._output:
            reader.finish()

    def _read_available(self, descriptor: int) -> bool:
        """Read what is there without waiting; return False if there is nothing."""
        try:
            chunk = os.read(descriptor, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if chunk:
            self._readers[descriptor].feed(chunk)
            return True
        del self._readers[descriptor]
        if descriptor == self._watchdog.fileno():  # it is exiting
            self._process.wait_exited()
        return False

    def _log_line(self, stream: str, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        if stream == "stderr":
            self._stderr_lines.append(text[:_MAX_LINE_LENGTH])
        self._attempt.settings.log(self._attempt.job_id, self._attempt.attempt, "INFO", stream, text)

    def _on_watchdog_message(self, line: bytes) -> None:
        match line.split():
            case [b"exit", code, peak_kb, cpu_ms]:
                self._exit = int(code), int(peak_kb)
                self._running.usage = int(cpu_ms) / 1000, int(peak_kb)
            case [b"error", number]:
                self._start_error = OSError(int(number), os.strerror(int(number)), self._process.program)

    def _on_message(self, line: bytes) -> None:
        """Handle a message. It may be anything: native code may write to a descriptor that is not its own."""
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        attempt = self._attempt
        match message:
            case {"progress": dict(progress)}:
                attempt.reported.replace_progress(_redact_progress(attempt, progress))
            case {"checkpoint": cursor}:
                with suppress(ValueError):
                    attempt.record_checkpoint(cursor)
            case {"reports": {"checks": [*checks], "datasets": [*datasets]}}:
                with suppress(TypeError):  # of other fields
                    attempt.reported.checks = tuple(asdict(_redact_check(attempt, Check(**check))) for check in checks)
                    attempt.reported.datasets = tuple(
                        asdict(_redact_use(attempt, DatasetUse(**use))) for use in datasets
                    )
            case {"call": [str(name), dict(arguments)]}:
                self._database_calls.start(name, arguments)
            case {"stacks": int(number), "threads": [*threads]}:
                self._running.receive_stacks(number, threads)
            case {"moment": dict(moment)}:
                self._running.moments.append(moment)
            case {"offloads": True}:
                attempt.has_offloads = True
            case {"log": [str(level), str(stream), str(text)]}:
                attempt.settings.log(attempt.job_id, attempt.attempt, level, stream, text)
            case {"log": [str(level), str(stream), str(text), dict(log_fields)]}:
                text = add_fields(text, log.mask(log_fields))
                attempt.settings.log(attempt.job_id, attempt.attempt, level, stream, text)
            case {"result": {"kind": str(kind), **fields}} if _has_valid_fields(kind, fields):
                self._result_message, self._result_at = message["result"], clock()
            case _:
                _log.error("child.invalid_message", job=str(attempt.job_id))

    # ── the stop ────────────────────────────────────────────────────────────────────────────────────────────────

    def _escalate(self) -> None:
        """Stop message → cancel the query → SIGTERM → SIGKILL. A command gets no messages and begins with SIGTERM."""
        attempt, now = self._attempt, clock()
        if self._result_at is not None:
            if now - self._result_at > _EXIT_TIMEOUT_SEC:
                self._process.signal_group(signal.SIGKILL)
        elif attempt.stop_reason is None or self._process.has_exited():
            return
        elif attempt.stop_signal.must_kill:
            self._send_signal(StopStep.SIGKILL, signal.SIGKILL)
        elif self._last_step_at is None:
            self._last_step_at = now
            if self._channel is None:
                self._send_signal(StopStep.SIGTERM, signal.SIGTERM)
            else:
                self.send({"stop": str(attempt.stop_reason)})
        elif now - self._last_step_at >= attempt.settings.stop_step_sec:
            self._last_step_at = now
            match attempt.stop_signal.step:
                case StopStep.REQUEST:
                    attempt.stop_signal.step = StopStep.CANCEL_QUERY
                    self.send({"cancel": True})
                case StopStep.CANCEL_QUERY:
                    self._send_signal(StopStep.SIGTERM, signal.SIGTERM)
                case _:
                    self._send_signal(StopStep.SIGKILL, signal.SIGKILL)

    def _send_signal(self, step: StopStep, number: signal.Signals) -> None:
        attempt = self._attempt
        attempt.stop_signal.step = step
        self._stopped_by_us = True
        reason = str(attempt.stop_reason)
        _log.info("stop.escalated", stop_step=step, job=str(attempt.job.id), task=attempt.job.task, reason=reason)
        self._process.signal_group(number)

    def _end_sessions(self) -> None:
        attempt, settings = self._attempt, self._attempt.settings.connection_settings
        if settings is not None:  # its code may have opened connections of its own, which a statement keeps open
            report = end_sessions(server_dsns(settings), [attempt_application_name(attempt.job_id, attempt.job.run_id)])
            if not report.is_complete:
                attempt.record_ended_sessions(report)


def _redact_check(attempt: Attempt, check: Check) -> Check:
    """Another interpreter knows no secrets, and reports them as they are."""
    return replace(check, name=attempt.redact_text(check.name))


def _redact_use(attempt: Attempt, use: DatasetUse) -> DatasetUse:
    partition, schema = attempt.redact_value(use.partition), attempt.redact_value(use.schema)
    return replace(use, dataset=attempt.redact_text(use.dataset), partition=partition, schema=schema)


def _redact_progress(attempt: Attempt, progress: dict[str, Any]) -> dict[str, Any]:
    redacted: dict[str, Any] = attempt.redact_value(progress)
    links = redacted.get("links")
    if isinstance(links, dict):
        return {**redacted, "links": {attempt.redact_text(k): attempt.redact_text(str(v)) for k, v in links.items()}}
    return redacted


def _has_valid_fields(kind: str, fields: Mapping[Any, Any]) -> bool:
    types = _MESSAGE_FIELDS.get(kind)
    if types is None or not all(isinstance(fields.get(name, ...), allowed) for name, allowed in types.items()):
        return False
    return math.isfinite(fields.get("pause", 0.0))
