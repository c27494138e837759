"""The main program of a task that has an interpreter of its own, of Python 3.8 or newer.

Run by its path, with the descriptor of a socket to the worker. It uses the standard library alone and nothing of ours:
the packages of that interpreter are the task's, and so are packages named `app`, `workers` or `pipelines`. The messages
are those of `child_main.py`. A module `dataloader` of its own has what a task imports.
"""

from __future__ import annotations

import atexit
import collections
import importlib
import importlib.util
import inspect
import json
import logging
import numbers
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
import types
import uuid
from contextlib import suppress
from datetime import datetime
from typing import Any

_REPORT_INTERVAL_SEC = 0.1
_EXIT_ORPHANED = 71  # the worker is gone
_PR_SET_PDEATHSIG = 1
_MAX_LINE_LENGTH, _MAX_ERROR_LENGTH, _MAX_TRACEBACK_LENGTH = 16_384, 8_000, 64_000
_MAX_ARRAY_SIZE, _MAX_REQUEST_BYTES = 500_000, 16_000_000  # of JSON; the worker cuts longer lines
_MAX_DELAY_SEC = 7 * 86_400.0
_MAX_IGNORED_STOPS = 100
_MAX_PROGRESS_NUMBERS = 8
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_CANCELLATION_SQLSTATES = ("57014", "57P01")  # a statement was canceled, a session terminated
_PROGRESS_KEYS = frozenset(
    "processed done total percent unit counts stage step steps page pages rows message".split()  # noqa: SIM905
)
_UNAVAILABLE = {
    "connect": "open a connection yourself: PGAPPNAME and PGOPTIONS end its session with the attempt",
    "transaction": "open a connection yourself, and write so that a second run changes nothing",
}
_MAX_ACQUIRE_WAIT_SEC = 5.0  # a rate may be changed meanwhile
Upstream = collections.namedtuple("Upstream", "job_id status result error")
Interval = collections.namedtuple("Interval", "start end")
Checkpoint = collections.namedtuple("Checkpoint", "cursor")
Progress = collections.namedtuple("Progress", "done total unit", defaults=(None, None, None))


class Stop(BaseException):
    """Raised inside the task, at a safe point, to end it early."""

    def __init__(self, reason: Any) -> None:
        super().__init__(reason)
        self.reason = reason


class Wait(BaseException):
    """Yielded or raised: continue in another attempt when these jobs have ended."""

    def __init__(self, jobs: Any, cursor: Any = None) -> None:
        self.jobs = [str(uuid.UUID(str(job))) for job in jobs]
        self.cursor = cursor
        super().__init__(f"waits for jobs: {len(self.jobs)}")


class Fail(Exception):
    """The job fails: another attempt would not help."""


class Snooze(Exception):
    """Another attempt after `seconds`, which costs none."""

    def __init__(self, seconds: Any, reason: Any = "") -> None:
        if not 0 <= seconds <= 366 * 86_400:
            raise ValueError(f"Snooze takes from 0 to {366 * 86_400} seconds, not {seconds:g}")
        super().__init__(reason or f"snoozed for {seconds:g} s")
        self.seconds = seconds


class NotAvailable(Fail):
    """Part of the context that needs the worker's interpreter."""


class NotProgress(TypeError):
    """A generator yielded data. Nothing stores it, so the job did not do its work."""

    permanent = True


class Channel:
    """The socket to the worker. Any thread may send; one receives."""

    def __init__(self, descriptor: Any) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._received = self._socket.makefile("rb")
        self._lock, self._call_lock = threading.RLock(), threading.Lock()
        self.replies: Any = queue.SimpleQueue()

    def send(self, message: Any, max_bytes: Any = float("inf")) -> Any:
        line = json.dumps(message, default=_encode_other).encode() + b"\n"
        if len(line) > max_bytes:
            raise ValueError(f"a request to the worker has at most {max_bytes} bytes of JSON")
        with self._lock, suppress(OSError):
            self._socket.sendall(line)

    def receive(self) -> Any:
        """Return the next message, or None if the worker is gone."""
        line = self._received.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def call(self, name: Any, arguments: Any) -> Any:
        """Have the worker do this; return its reply, or raise what it raised."""
        with self._call_lock:
            self.send({"call": [name, arguments]}, _MAX_REQUEST_BYTES)
            reply = self.replies.get()
        if "fail" in reply:
            raise Fail(reply["fail"])
        if "error" in reply:
            raise ValueError(reply["error"])
        if "stop" in reply:
            raise Stop(reply["stop"])
        if "unavailable" in reply:
            raise RuntimeError(reply["unavailable"])
        return reply


class ChannelLogHandler(logging.Handler):
    """Sends the log records of this process to the job's log."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        self._channel, self._pid = channel, os.getpid()

    def emit(self, record: Any) -> Any:
        with suppress(Exception):  # a log line must not end a job
            level = _LEVELS[min(max(record.levelno // 10 - 1, 0), len(_LEVELS) - 1)]
            for line in self.format(record).splitlines() or [""]:
                if os.getpid() == self._pid:
                    self._channel.send({"log": [level, "log", line[:_MAX_LINE_LENGTH]]})
                else:  # a fork made by the task must not use the socket
                    sys.stderr.write(line[:_MAX_LINE_LENGTH] + "\n")


class ContextLog:
    """The job's log. Fields follow the message."""

    def __init__(self, after: Any) -> None:
        self._after = after

    def _write(self, level: Any, message: Any, fields: Any) -> Any:
        for name, value in fields.items():
            is_plain = isinstance(value, str) and " " not in value
            message += f" {name}={value if is_plain else json.dumps(value, ensure_ascii=False, default=_encode_other)}"
        logging.getLogger("pipeline").log(level, "%s", message)
        self._after()

    def debug(self, message: Any, **fields: Any) -> Any:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: Any, **fields: Any) -> Any:
        self._write(logging.INFO, message, fields)

    def warning(self, message: Any, **fields: Any) -> Any:
        self._write(logging.WARNING, message, fields)

    def error(self, message: Any, **fields: Any) -> Any:
        self._write(logging.ERROR, message, fields)


class Context:
    """The context of a task, as `pipelines.context.Context` describes it; the worker does what needs its database."""

    def __init__(self, spec: Any, channel: Any) -> None:
        job = spec["job"]
        self.job_id, self.task = uuid.UUID(job["id"]), job["task"]
        self.attempt, self.max_attempts, self.traceparent = job["attempt"], job["max_attempts"], job["traceparent"]
        self.partition = job["partition"]
        self.logical_at, start, end = (
            None if job[name] is None else datetime.fromisoformat(job[name])
            for name in ("logical_at", "interval_start", "interval_end")
        )
        self.interval = None if start is None or end is None else Interval(start, end)
        self.resume, self.log = spec["resume"], ContextLog(self._safe_point)
        self.stop_reason: Any = None
        self.stops_at: Any = None  # of the monotonic clock
        self.on_stop: Any = lambda: None  # called by the thread that receives messages
        self._max_checkpoint_bytes, self._channel = spec["max_checkpoint_bytes"], channel
        self._stopped, self._lock = threading.Event(), threading.Lock()
        self._progress = dict(spec["progress"] or {})
        self._unsent: dict[str, Any] = {}  # under the lock
        self._upstream: Any = None

    def __getattr__(self, name: Any) -> Any:
        if name in _UNAVAILABLE:
            raise NotAvailable(
                f"ctx.{name} is not available in a task with an interpreter of its own; {_UNAVAILABLE[name]}"
            )
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def stopping_in(self) -> Any:
        if self.stop_reason is not None:
            return 0.0
        return None if self.stops_at is None else max(0.0, self.stops_at - time.monotonic())

    def check(self, name: Any = None, value: Any = None, **limits: Any) -> Any:
        if self.stop_reason is not None:
            raise Stop(self.stop_reason)
        if name is not None or value is not None:
            self._channel.call("check", {"name": name, "value": value, **limits})

    def produced(self, dataset: Any, **details: Any) -> Any:
        self._channel.call("produced", {"dataset": dataset, **details})
        self._safe_point()

    def consumed(self, dataset: Any, **details: Any) -> Any:
        self._channel.call("consumed", {"dataset": dataset, **details})
        self._safe_point()

    def link(self, name: Any, url: Any) -> Any:
        reply = self._channel.call("link", {"name": name, "url": url})
        if reply:
            self.record_progress({"links": reply["links"]})  # as the worker has made them: without secrets
        self._safe_point()

    @property
    def upstream(self) -> Any:
        """The results of parents by their keys; read once."""
        if self._upstream is None:
            found = self._channel.call("upstream", {})["value"]
            self._upstream = {key: Upstream(uuid.UUID(p[0]), *p[1:]) for key, p in found.items()}
        return self._upstream

    def enqueue(self, task: Any, args: Any = None, **options: Any) -> Any:
        self._safe_point()
        return uuid.UUID(self._channel.call("enqueue", _job_request({"task": task, "args": args, **options}))["value"])

    def fan_out(self, jobs: Any, *, then: Any, on: Any = "succeeded", need: Any = "all") -> Any:
        self._safe_point()
        request = {"jobs": [_job_request(job) for job in jobs], "then": _job_request(then), "on": on, "need": need}
        ids, last = self._channel.call("fan_out", request)["value"]
        return [uuid.UUID(job_id) for job_id in ids], uuid.UUID(last)

    def acquire(self, limit: Any, n: Any = 1) -> Any:
        while True:
            self.check()
            wait_sec = self._channel.call("try_acquire", {"limit": limit, "n": n})["value"]
            if wait_sec <= 0:
                return
            self.sleep(min(wait_sec, _MAX_ACQUIRE_WAIT_SEC))

    def sleep(self, seconds: Any) -> Any:
        self.check()
        self._stopped.wait(seconds)
        self.check()

    def progress(self, done: Any = None, total: Any = None, unit: Any = None, **more: Any) -> Any:
        self.record_progress({"processed": done, "total": total, "unit": unit, **more})
        self._safe_point()

    def count(self, **counts: Any) -> Any:
        with self._lock:
            before = dict(self._progress.get("counts") or {})
            for name, number in counts.items():
                before[name] = before.get(name, 0) + number
            self._progress = self._unsent["progress"] = {**self._progress, "counts": before}
        self._safe_point()

    def checkpoint(self, cursor: Any) -> Any:
        self.record_checkpoint(cursor)
        self._safe_point()

    def record_progress(self, fields: Any) -> Any:
        new = {str(key): value for key, value in fields.items() if value is not None}
        with self._lock:
            self._progress = self._unsent["progress"] = {**self._progress, **new}

    def record_checkpoint(self, cursor: Any) -> Any:
        text = json.dumps(cursor, default=_encode_other)
        if len(text) > self._max_checkpoint_bytes:
            raise ValueError(f"a checkpoint has at most {self._max_checkpoint_bytes} bytes of JSON")
        with self._lock:
            self.resume = self._unsent["checkpoint"] = json.loads(text)

    def send_reports(self) -> Any:
        with self._lock:
            unsent, self._unsent = self._unsent, {}
        for name, value in unsent.items():
            with suppress(TypeError, ValueError):  # a key or a cycle that JSON lacks
                self._channel.send({name: value})

    def stop(self, reason: Any) -> Any:
        if self.stop_reason is None or reason == "lease_lost":
            self.stop_reason = reason
            self._stopped.set()
            with suppress(RuntimeError):  # its event loop has just ended
                self.on_stop()

    def _safe_point(self) -> Any:
        """Raise Stop, but not in code that handles a stop."""
        handled = sys.exc_info()[1]
        if self.stop_reason is not None and not (
            isinstance(handled, GeneratorExit)
            or type(handled).__name__ == "CancelledError"
            or (handled is not None and _is_caused_by_stop(handled))
        ):
            raise Stop(self.stop_reason)


def _job_request(job: Any) -> Any:
    """A job to enqueue, with its time as text."""
    at = job.get("available_at")
    return {**job, "available_at": at.isoformat()} if isinstance(at, datetime) else dict(job)


def _encode_other(value: Any) -> Any:
    """Encode what JSON lacks: numbers and arrays of a library such as numpy as such, anything else as text."""
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind and value.ndim and value.size <= _MAX_ARRAY_SIZE:
        return list(value)
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return bool(value) if kind == "b" else str(value)


# ── what the task imports and how it is called ──────────────────────────────────────────────────────────────────


class _Declaration:
    """Partitions and breakers: declared for the worker's interpreter, of no effect here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def install_contract() -> Any:
    """Provide the module `dataloader`. `Client` and `enqueue` are those of an installed dataloader, if there is one."""
    installed = None
    with suppress(ImportError, ValueError):
        installed = importlib.util.find_spec("dataloader")
    module: Any = types.ModuleType("dataloader", install_contract.__doc__)
    module.__path__ = list(installed.submodule_search_locations or ()) if installed else []

    def keep(*_: Any, **__: Any) -> Any:
        return lambda call: call

    def load(name: Any) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        source = {"Client": "client", "enqueue": "_enqueue"}.get(name, "errors")
        return getattr(importlib.import_module("dataloader." + source), name)

    for kind in (Checkpoint, Context, Fail, NotAvailable, Progress, Snooze, Stop, Wait):
        setattr(module, kind.__name__, kind)
    for name in ("Breaker", "Daily", "Hourly", "Listed", "Monthly", "Weekly"):
        setattr(module, name, _Declaration)
    module.register = module.schedule = keep
    module.__getattr__ = load
    sys.modules["dataloader"] = module


def load_callable(path: Any) -> Any:
    module, _, names = path.partition(":")
    found = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def invoke(call: Any, spec: Any, context: Any) -> Any:
    """Call it as `dataloader.pipelines.task.Task` does."""
    parameters = list(_parameters(call))
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = [p for p in positional if p.default is p.empty]
    if spec["argv"] is not None:
        code = call(*([spec["argv"]] if needed else []))
        if type(code) is int:  # as in a console script
            raise SystemExit(code)
        return code
    args = spec["args"]
    takes_context = any(_is_context(p) for p in positional[1:2])
    if spec["spread"] or (len(needed) > 1 and not takes_context):
        contexts = {p.name: context for p in parameters if _is_context(p)}
        return call(**args, **contexts)
    if takes_context:
        return call(args, context)
    takes_args = bool(positional) or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    return call(args) if takes_args else call()


def _parameters(call: Any) -> Any:
    try:
        return inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # a built-in without a signature takes the args
        return [inspect.Parameter("args", inspect.Parameter.POSITIONAL_ONLY)]


def _is_context(parameter: Any) -> Any:
    annotation = parameter.annotation
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return parameter.name in ("ctx", "context") or name.strip("'\"").rsplit(".", 1)[-1] == "Context"


def run_to_end(result: Any, context: Any) -> Any:
    if inspect.isgenerator(result):
        return _run_generator(result, context)
    if inspect.isasyncgen(result):
        result = _run_async_generator(result, context)
    return _run_coroutine(result, context) if inspect.iscoroutine(result) else result


def _run_generator(generator: Any, context: Any) -> Any:
    try:
        value = next(generator)
        for _ in range(_MAX_IGNORED_STOPS):
            stop = None
            while stop is None:
                stop = record_yield(value, context)
                value = next(generator) if stop is None else generator.throw(stop)
        raise Stop(context.stop_reason or "cancel")
    except StopIteration as end:
        return end.value
    finally:
        generator.close()


async def _run_async_generator(generator: Any, context: Any) -> Any:
    try:
        value = await generator.__anext__()
        for _ in range(_MAX_IGNORED_STOPS):
            stop = None
            while stop is None:
                stop = record_yield(value, context)
                value = await (generator.__anext__() if stop is None else generator.athrow(stop))
        raise Stop(context.stop_reason or "cancel")
    except StopAsyncIteration:
        return
    finally:
        await generator.aclose()


def record_yield(value: Any, context: Any) -> Any:
    """Record what a generator yields; return what to raise in it."""
    if isinstance(value, Wait):
        return value
    if isinstance(value, Checkpoint):
        context.record_checkpoint(value.cursor)
    elif isinstance(value, Progress):
        context.record_progress({"processed": value.done, "total": value.total, "unit": value.unit})
    elif isinstance(value, dict) and _is_progress(value):
        context.record_progress(value)
    elif isinstance(value, (dict, list, tuple)):
        kind = type(value).__name__
        raise NotProgress(f"the task has yielded a {kind}, which is no progress; yield Progress(done, total)")
    return None if context.stop_reason is None else Stop(context.stop_reason)


def _is_progress(value: Any) -> Any:
    has_numbers = all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in value.values())
    is_counted = any(isinstance(value.get(name), numbers.Real) for name in ("processed", "percent"))
    return _PROGRESS_KEYS.issuperset(value) or is_counted or (has_numbers and len(value) <= _MAX_PROGRESS_NUMBERS)


def _run_coroutine(coroutine: Any, context: Any) -> Any:
    """Run a coroutine; a stop cancels it at its next `await`."""
    import asyncio  # noqa: PLC0415 - most tasks need none of it

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        running = loop.create_task(coroutine)
        context.on_stop = lambda: loop.call_soon_threadsafe(running.cancel)
        if context.stop_reason is not None:
            running.cancel()
        return loop.run_until_complete(running)
    except asyncio.CancelledError:
        if context.stop_reason is None:
            raise RuntimeError("the task cancelled its own coroutine") from None
        raise Stop(context.stop_reason) from None
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


# ── how it ended ────────────────────────────────────────────────────────────────────────────────────────────────


def run_task(spec: Any, context: Any) -> Any:
    """Run the task; return the message that says how it ended."""
    try:
        context.check()
        call = load_callable(spec["call"])
        sys.argv = [context.task, *(spec["argv"] or ())]
        _set_limits(spec)
        return _success(run_to_end(invoke(call, spec, context), context), spec["max_result_bytes"])
    except Stop as stop:
        return {"kind": "stopped", "reason": stop.reason}
    except Wait as wait:
        if wait.cursor is not None:
            context.record_checkpoint(wait.cursor)
        return {"kind": "waits", "jobs": wait.jobs}
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return _success(None, 0)
        return _failure(error, spec)


def _success(result: Any, max_bytes: Any) -> Any:
    try:
        size = len(json.dumps(result, default=_encode_other))
    except (TypeError, ValueError, RecursionError) as error:
        return {"kind": "success", "result": {"$dropped": f"not JSON: {type(error).__name__}"}}
    if result is not None and size > max_bytes:
        result = {"$dropped": f"{size} bytes of JSON; at most {max_bytes} are kept"}
    return {"kind": "success", "result": result}


def _failure(error: Any, spec: Any) -> Any:
    decision, pause = decide(error, spec)
    try:
        text = str(error)
    except Exception:  # its own __str__ may fail
        text = "(it could not be printed)"
    lines = traceback.format_exception(type(error), error, error.__traceback__)
    return {
        "kind": "error",
        "message": (type(error).__name__ + (": " + text if text else ""))[:_MAX_ERROR_LENGTH],
        "traceback": "".join(lines)[-_MAX_TRACEBACK_LENGTH:],
        "fingerprint": _fingerprint(error),
        "decision": decision,
        "pause": pause,
        "stopped": _is_caused_by_stop(error),
    }


def decide(error: Any, spec: Any) -> Any:
    """As `dataloader.pipelines.retry.decide`, with rules by name."""
    if isinstance(error, Fail):
        return "fail", 0.0
    if isinstance(error, Snooze):
        return "snooze", _bounded(error.seconds)
    asked = _bounded(next(filter(None, (getattr(error, n, None) for n in ("retry_after", "retry_after_sec"))), 0))
    rule = next((rule for matcher, rule in spec["rules"] if _matches(matcher, error)), None)
    if isinstance(rule, (int, float)):
        return "snooze", max(_bounded(rule), asked)
    is_permanent = rule == "fail" or (rule is None and getattr(error, "permanent", False) is True)
    is_last = spec["job"]["attempt"] >= spec["job"]["max_attempts"]
    return ("fail", 0.0) if is_permanent or is_last else ("retry", asked)


def _bounded(seconds: Any) -> Any:
    return min(max(0.0, seconds), _MAX_DELAY_SEC) if isinstance(seconds, (int, float)) else 0.0


def _matches(matcher: Any, error: Any) -> Any:
    if any(matcher in (kind.__name__, kind.__module__ + "." + kind.__qualname__) for kind in type(error).__mro__):
        return True
    sqlstate = getattr(error, "pgcode", None) or getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str) and len(matcher) > 1 and sqlstate.startswith(matcher):
        return True
    module, _, name = matcher.rpartition(".")
    exported = getattr(sys.modules.get(module), name, None)
    return isinstance(exported, type) and isinstance(error, exported)


def _is_caused_by_stop(error: Any) -> Any:
    seen, pending = set(), [error]
    while pending:
        cause = pending.pop()
        if isinstance(cause, Stop) or getattr(cause, "pgcode", None) in _CANCELLATION_SQLSTATES:
            return True
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            pending += [cause.__context__, cause.__cause__, *getattr(cause, "exceptions", ())]
    return False


def _fingerprint(error: Any) -> Any:
    """The class of the error and the innermost function of the task's own code."""
    libraries = (os.path.dirname(os.__file__) + os.sep, os.path.abspath(__file__))
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        path, name = os.path.abspath(frame.f_code.co_filename), frame.f_code.co_name
        if not path.startswith(libraries) and "<" not in frame.f_code.co_filename + name:
            return f"{type(error).__name__} {os.path.basename(path)}:{name}"
    return type(error).__name__


# ── the process ─────────────────────────────────────────────────────────────────────────────────────────────────


def main(descriptor: Any) -> Any:
    os.set_inheritable(descriptor, False)
    channel = Channel(descriptor)
    spec = channel.receive()
    if spec is None:
        os._exit(_EXIT_ORPHANED)
    _exit_with_parent(spec["parent_pid"])
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    stream: Any
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")
    sys.path[0] = os.getcwd()  # in place of the folder of this file
    sys.path += spec["path"]
    logging.getLogger().addHandler(ChannelLogHandler(channel))
    logging.getLogger().setLevel(logging.INFO)
    install_contract()
    context = Context(spec, channel)
    threading.Thread(target=_receive_commands, args=(channel, context), daemon=True).start()
    done = threading.Event()
    reporter = threading.Thread(target=_report, args=(context, done), daemon=True)
    reporter.start()
    result = run_task(spec, context)
    done.set()
    reporter.join()
    channel.send({"result": result})
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)  # without waiting for threads that the task left running


def _exit_with_parent(parent_pid: Any) -> Any:
    """Have the kernel kill this process when its parent dies."""
    with suppress(ImportError, OSError, AttributeError):
        import ctypes  # noqa: PLC0415 - an interpreter may be built without it

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(_EXIT_ORPHANED)


def _receive_commands(channel: Any, context: Any) -> Any:
    while True:
        message = channel.receive()
        if message is None:
            os._exit(_EXIT_ORPHANED)
        if "stop" in message:
            context.stop(message["stop"])
        elif "stops_in" in message:
            context.stops_at = time.monotonic() + message["stops_in"]
        elif "reply" in message:
            channel.replies.put(message["reply"])


def _report(context: Any, done: Any) -> Any:
    is_last = False
    while not is_last:
        is_last = done.wait(_REPORT_INTERVAL_SEC)
        context.send_reports()


def _set_limits(spec: Any) -> Any:
    import resource  # noqa: PLC0415 - not on every system

    for kind, limit, margin in (
        (resource.RLIMIT_DATA, spec["memory_mb"] and spec["memory_mb"] * 1024 * 1024, 0),
        (resource.RLIMIT_CPU, spec["cpu_sec"], 5),
    ):
        if limit:
            _, highest = resource.getrlimit(kind)
            hard = limit + margin if highest == resource.RLIM_INFINITY else min(limit + margin, highest)
            resource.setrlimit(kind, (min(limit, hard), hard))


if __name__ == "__main__":
    main(int(sys.argv[1]))
