"""Answers where the attempts of a worker process are, when a notification asks for one. Until then its thread waits.
The heartbeat starts the sampler."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from dataloader.app import log
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.where.accounts import Accounts
from dataloader.app.features.where.process_tree import (
    MAX_PROCESSES,
    ProcessStat,
    read_process,
    read_processes,
    read_thread,
    select_tree,
)
from dataloader.app.features.where.rows import MAX_ANSWER_BYTES, WhereRows
from dataloader.app.features.where.sampler import Sampler
from dataloader.app.features.where.sampler_options import WhereOptions
from dataloader.app.queue.workers import HeartbeatResult
from dataloader.pipelines.json_values import sanitize_json
from dataloader.pipelines.portable import clock
from dataloader.workers.attempt import Attempt
from dataloader.workers.duties import ThreadContext
from dataloader.workers.running_attempts import RunningAttempts
from dataloader.workers.running_child import RunningChild
from dataloader.workers.stacks import read_threads
from dataloader.workers.threads import BackgroundThread

_log = log.get(__name__)
_IDLE_SEC = 3600.0
_CPU_SPAN_SEC = 0.2  # in which the CPU time of an attempt is measured
_CHILD_TIMEOUT_SEC = 1.0
_MAX_PENDING_RUNS = 100
_MAX_TEXT_LENGTH = 200
_MAX_THREADS, _MAX_FRAMES = 20, 60  # of what a child sends
_NOT_STARTED = "the attempt waits for a thread of its worker process"
_HAS_ENDED = "its task has ended, and the outcome is being written"
_NO_ANSWER = (
    "its process did not answer within a second: native code holds the interpreter, or the process is stopped or "
    "swapped out"
)
_FRAME_FIELDS: Mapping[str, type] = {"file": str, "function": str, "kind": str, "repeated": int}


def create_where_thread(context: ThreadContext) -> WhereAnswerer:
    options: WhereOptions = context.options.get("where") or WhereOptions()
    sampler = Sampler(Accounts(context.executor), context.attempts, options.sampler)
    return WhereAnswerer(WhereRows(context.executor), context.attempts, sampler, on_crash=context.on_crash)


class WhereAnswerer:
    """One thread describes the attempts that are asked for, and writes the answers."""

    control = "where"

    def __init__(self, rows: WhereRows, attempts: RunningAttempts, sampler: Sampler, *, on_crash: Any) -> None:
        self._rows, self._attempts, self.sampler = rows, attempts, sampler
        self._lock = threading.Lock()
        self._pending: dict[str, Attempt] = {}  # by run; under the lock
        self._never = threading.Event()
        self.thread = BackgroundThread("where", self.run_once, on_crash=on_crash)

    def wake(self, argument: str = "") -> None:
        """Answer where this run is, if it is one of this process."""
        attempt = self._attempts.get(argument)
        if attempt is None:
            return
        with self._lock:
            if len(self._pending) < _MAX_PENDING_RUNS:
                self._pending[argument] = attempt
        self.thread.wake()

    def on_heartbeat(self, heartbeat: HeartbeatResult) -> None:
        """Start the sampler if an attempt has run for long. Questions come by notification alone."""
        self.sampler.start_if_needed()

    def drain(self, timeout_sec: float) -> None:
        """Write the accounts that are left."""
        self.sampler.close()

    def run_once(self) -> float:
        with self._lock:
            pending, self._pending = self._pending, {}
        if pending:
            try:
                self._rows.answer({run: self._encode(answer) for run, answer in self._describe(pending).items()})
            except DatabaseUnavailable as error:  # who asks waits no longer than some seconds
                _log.debug("where.not_answered", error=str(error))
            except Exception:  # a thread that crashes ends the process
                _log.exception("where.failed")
        return _IDLE_SEC

    def _describe(self, attempts: Mapping[str, Attempt]) -> dict[str, dict[str, Any]]:
        began_at = clock()
        requests = {run: child.request_stacks() for run, a in attempts.items() if (child := _channel_of(a)) is not None}
        has_children = any(attempt.child is not None for attempt in attempts.values())
        processes = read_processes() if has_children else {}  # of the whole host: once for all
        threads_before = {run: _thread_stat(attempt) for run, attempt in attempts.items()}
        self._never.wait(_CPU_SPAN_SEC)
        answers: dict[str, dict[str, Any]] = {}
        for run, attempt in attempts.items():
            answer = answers[run] = {"threads": [], "processes": [], "problem": None, "cpu_percent": None}
            answer["isolation"] = _isolation_of(attempt)
            if attempt.in_thread:
                _add_thread(answer, attempt, threads_before[run], clock() - began_at)
            elif attempt.child is None:
                answer["problem"] = _NOT_STARTED
            else:
                _add_processes(answer, select_tree(processes, attempt.child.pid), clock() - began_at)
                _add_child(answer, attempt.child, requests.get(run), began_at + _CHILD_TIMEOUT_SEC - clock())
            if attempt.ended_at is not None:
                answer["problem"] = _HAS_ENDED
            _redact(answer, attempt)
        return answers

    @staticmethod
    def _encode(answer: dict[str, Any]) -> str:
        """As JSON that is short enough: first without other threads than the task's, then with fewer frames."""
        while (text := sanitize_json(answer, MAX_ANSWER_BYTES)).startswith('{"$dropped"'):
            threads = answer["threads"]
            if len(threads) > 1:
                del threads[-1]
            elif threads and len(threads[0]["frames"]) > 1:
                frames = threads[0]["frames"]
                del frames[len(frames) // 2]
            else:
                return json.dumps({"problem": "the answer of its worker process is too large"})
        return text


def _isolation_of(attempt: Attempt) -> str | None:
    if attempt.in_thread:
        return "thread" if attempt.started_at is not None else None
    if attempt.child is None:
        return None
    if not attempt.child.has_channel:
        return "program"
    return "process" if attempt.options.python is None else "interpreter"


def _channel_of(attempt: Attempt) -> RunningChild | None:
    child = attempt.child
    return child if child is not None and child.has_channel else None


def _thread_stat(attempt: Attempt) -> ProcessStat | None:
    """The thread that runs the task in this process."""
    ident = attempt.thread_ident
    native_id = next((thread.native_id for thread in threading.enumerate() if thread.ident == ident), None)
    return None if ident is None or native_id is None else read_thread(native_id)


def _add_thread(answer: dict[str, Any], attempt: Attempt, before: ProcessStat | None, span_sec: float) -> None:
    ident, after = attempt.thread_ident, _thread_stat(attempt)
    if ident is None:
        answer["problem"] = _NOT_STARTED
        return
    answer["threads"] = read_threads(ident, others=False, awaitable=attempt.awaitable)
    if before is not None and after is not None:
        answer["cpu_percent"] = _percent(before, after, span_sec)


def _add_child(answer: dict[str, Any], child: RunningChild, request: int | None, timeout_sec: float) -> None:
    if request is None:
        return
    threads = child.await_stacks(request, max(0.0, timeout_sec))
    if threads is None:
        answer["problem"] = _NO_ANSWER
        return
    answer["threads"] = [thread for value in threads[:_MAX_THREADS] if (thread := _valid_thread(value)) is not None]
    if not answer["threads"]:
        answer["problem"] = "its process could not describe its threads"


def _add_processes(answer: dict[str, Any], tree: Sequence[tuple[ProcessStat, int]], span_sec: float) -> None:
    """`tree` is as it was so many seconds ago; those that have ended since are left out."""
    answer["process_count"], percents = len(tree), []
    for before, depth in tree[:MAX_PROCESSES]:
        after = read_process(before.pid)
        if after is None:
            continue
        values = asdict(after) | {"depth": depth, "cpu_percent": _percent(before, after, span_sec)}
        del values["group"], values["session"]
        percents.append(values["cpu_percent"])
        answer["processes"].append(values)
    answer["cpu_percent"] = round(sum(percents), 1) if percents else None


def _percent(before: ProcessStat, after: ProcessStat, span_sec: float) -> float:
    return round(100 * max(0.0, after.cpu_sec - before.cpu_sec) / span_sec, 1) if span_sec > 0 else 0.0


def _valid_thread(value: Any) -> dict[str, Any] | None:
    """A thread as a child describes it, which may be anything."""
    match value:
        case {"name": name, "is_task": bool(is_task), "frames": [*frames], "frame_count": int(count)}:
            found = [frame for entry in frames[:_MAX_FRAMES] if (frame := _valid_frame(entry)) is not None]
            shown_name = name[:_MAX_TEXT_LENGTH] if isinstance(name, str) else None
            return {"name": shown_name, "is_task": is_task, "frames": found, "frame_count": min(max(count, 0), 10**6)}
    return None


def _valid_frame(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict):
        return None
    if not all(isinstance(value.get(name), kind) for name, kind in _FRAME_FIELDS.items()):
        return None
    line = value.get("line")
    kind = value["kind"] if value["kind"] in ("task", "library", "standard", "dataloader") else "task"
    return {
        "file": value["file"][:_MAX_TEXT_LENGTH],
        "line": line if isinstance(line, int) and 0 <= line < 2**31 else None,
        "function": value["function"][:_MAX_TEXT_LENGTH],
        "kind": kind,
        "repeated": min(max(value["repeated"], 1), 10**6),
    }


def _redact(answer: dict[str, Any], attempt: Attempt) -> None:
    """Code that is compiled while it runs may have a secret in a name."""
    for thread in answer["threads"]:
        frames: Sequence[dict[str, Any]] = thread["frames"]
        if thread["name"] is not None:
            thread["name"] = attempt.redact_text(thread["name"])
        for frame in frames:
            frame["file"], frame["function"] = (
                attempt.redact_text(frame["file"]),
                attempt.redact_text(frame["function"]),
            )
