"""What runs in a process of its own: one task, with the same context, that speaks to its parent over a socket."""

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
from contextlib import suppress
from typing import Any
from uuid import UUID

from app.queue.attempt_sessions import Places
from app.queue.effects import LARGEST_CHECKPOINT, Effects
from app.queue.values import clean_json, clean_text
from pipelines import contract, targets
from pipelines.contract import Stop, StopReason, registry
from pipelines.references import put_in
from pipelines.retry import Fixed, decide
from workers.capture import LEVELS, told
from workers.context import Facts, JobContext, note_unchecked_target
from workers.drive import drive
from workers.outcome import came_from_stop, describe, hint_of
from workers.secrets import Veil

_NEWS_EVERY = 0.1
_ORPHANED = 71  # exit code: the parent is gone
_PR_SET_PDEATHSIG = 1
_ASKED_FOR = Fixed(0.0)  # how long to wait beyond what the error itself asks for is the parent's to say
_LONGEST_LINE = 16_384  # characters of what is logged
_LONGEST_ERROR, _LONGEST_TRACEBACK = 8_000, 64_000
_LARGEST_PROGRESS = 64_000


class Parent:
    """The other end of the socket. `tell` may be called by any thread, and by a signal handler or a finalizer in the
    midst of another `tell`."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.RLock()
        self._later: list[bytes] | None = (
            None  # what is to be said after the message that is being sent; under the lock
        )
        self._heard = bytearray()

    def tell(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock, suppress(OSError):
            if self._later is not None:
                self._later.append(line)
                return
            self._later = [line]
            try:
                while self._later:
                    self._channel.sendall(self._later[0])
                    del self._later[0]
            finally:
                self._later = None

    def hear(self) -> dict[str, Any] | None:
        while b"\n" not in self._heard:
            chunk = self._channel.recv(65_536)
            if not chunk:
                return None
            self._heard += chunk
        line, _, rest = self._heard.partition(b"\n")
        self._heard = rest
        word: dict[str, Any] = json.loads(line)
        return word


class ToParent(logging.Handler):
    """What the pipeline logs is the job's log."""

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._parent, self._process = parent, os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a log line must not end a job
            level = LEVELS[min(max(record.levelno // 10 - 1, 0), len(LEVELS) - 1)]
            for text in told(record):
                for line in text.splitlines() or [""]:
                    self._say(level, line[:_LONGEST_LINE])

    def _say(self, level: str, line: str) -> None:
        if os.getpid() == self._process:
            self._parent.tell({"log": [level, "log", line]})
        else:  # a fork of the pipeline's: the socket, and its lock, are not for two
            sys.stderr.write(line + "\n")


def main(number: int) -> None:
    os.set_inheritable(number, False)
    parent = Parent(socket.socket(fileno=number))
    recipe = parent.hear()
    if recipe is None:
        os._exit(_ORPHANED)
    _die_with(recipe["parent"])
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # code that holds the interpreter would never hear a handler in Python
    _set_up_speaking(parent)
    context = _context(recipe)
    threading.Thread(target=_obey, args=(parent, context), daemon=True).start()
    done = threading.Event()
    talker = threading.Thread(target=_talk, args=(parent, context, done), daemon=True)
    talker.start()
    end = _run(recipe, context)
    if context.effects is not None:
        context.effects.close()
    done.set()
    talker.join()
    parent.tell({"end": end})
    _leave()


def _leave() -> None:
    """As an interpreter does that ends, but without waiting for threads that the pipeline has left behind."""
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(0)


def _set_up_speaking(parent: Parent) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]  # as started
    root = logging.getLogger()
    root.addHandler(ToParent(parent))
    root.setLevel(logging.INFO)


def _die_with(parent: int) -> None:
    """A job must not go on when nobody renews its lease any more."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(_ORPHANED)


def _context(recipe: dict[str, Any]) -> JobContext:
    facts = dict(recipe["facts"])
    facts["job_id"], facts["run_id"] = UUID(facts["job_id"]), UUID(facts["run_id"])
    known = Facts(**facts)
    places = recipe["places"]
    context = JobContext(known, None if places is None else _effects(Places(**places), known))
    if recipe["secrets"]:
        context.veil = Veil(recipe["secrets"])
    return context


def _effects(places: Places, facts: Facts) -> Effects:
    return Effects(places, facts.job_id, facts.run_id, unchecked=note_unchecked_target)


def _obey(parent: Parent, context: JobContext) -> None:
    while (word := parent.hear()) is not None:
        if "stop" in word:
            context.stop(StopReason(word["stop"]))
        elif (
            context.effects is not None
        ):  # aside, for a server that is away must not keep the next word from being heard
            threading.Thread(target=context.effects.cancel, daemon=True).start()
    os._exit(_ORPHANED)


def _talk(parent: Parent, context: JobContext, done: threading.Event) -> None:
    last = False
    while not last:
        last = done.wait(_NEWS_EVERY)
        with suppress(MemoryError):  # the pipeline's, which may yet recover
            progress, cursor = news = context.news()
            if progress is not None:
                parent.tell({"progress": json.loads(clean_json(progress, _LARGEST_PROGRESS))})
            if cursor is not None:
                parent.tell({"checkpoint": json.loads(clean_json(cursor, LARGEST_CHECKPOINT))})
            context.written(news)


def _run(recipe: dict[str, Any], context: JobContext) -> dict[str, Any]:
    options = contract.Options()
    try:
        task = _task(recipe, context)
        if isinstance(task, str):
            return {"how": "unknown", "told": task}
        options = task.options
        args = json.loads(recipe["args"])
        if recipe["secrets"]:
            args = put_in(args, recipe["secrets"].__getitem__)
        cursor = None if recipe["checkpoint"] is None else json.loads(recipe["checkpoint"])
        context.begin_with(recipe["progress"], cursor)
        context.check()
        sys.argv = [context.task, *task.command_line(args)]  # ours is of no use to it
        _limit(recipe)
        result = drive(task, args, context)
        return _finished(context) or _value(result, context.facts.max_result_bytes)
    except Stop as stop:
        return _finished(context) or {"how": "stop", "reason": stop.reason.value}
    except BaseException as error:
        return _finished(context) or _failure(context, options, error)


def _task(recipe: dict[str, Any], context: JobContext) -> contract.Task | str:
    """The task, or why there is none."""
    places = recipe["places"]
    if places is not None:
        targets.configure(recipe["endpoints"], places["targets"], recipe["tokens"], otherwise=lambda: places["dsn"])
    own = recipe["tasks"].get(context.task)  # a task of the settings needs no module but its own
    loading = (
        contract.load(recipe["packages"], recipe["tasks"]) if own is None else contract.load((), {context.task: own})
    )
    task = registry.get(context.task)
    if task is not None:
        return task
    broken = "; ".join(f"{name}: {why.strip().splitlines()[-1]}" for name, why in loading.failures.items())
    return f"the process does not know the task {context.task!r} (broken modules: {broken or 'none'})"


def _value(result: Any, most: int) -> dict[str, Any]:
    return {"how": "value", "result": None if result is None else json.loads(clean_json(result, most))}


def _finished(context: JobContext) -> dict[str, Any] | None:
    return {"how": "finished"} if context.effects is not None and context.effects.finished else None


def _failure(context: JobContext, options: contract.Options, error: BaseException) -> dict[str, Any]:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return _value(None, 0)
    facts = context.facts
    verdict = decide(
        error, attempt=facts.attempt, max_attempts=facts.max_attempts, policy=_ASKED_FOR, rules=options.rules
    )
    return {
        "how": "error",
        "told": clean_text(describe(error) + hint_of(error, options), _LONGEST_ERROR),
        "traceback": clean_text("".join(traceback.format_exception(error)), _LONGEST_TRACEBACK),
        "answer": verdict.answer.value,
        "pause": verdict.pause,
        "stopped": came_from_stop(error),
    }


def _limit(recipe: dict[str, Any]) -> None:
    if recipe["memory_mb"] is not None:
        # Of what it may write to, not of its address space: threads and allocators reserve far more than they use.
        kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
        _lower(kind, recipe["memory_mb"] * 1024 * 1024, 0)
    if recipe["cpu_sec"] is not None:
        _lower(resource.RLIMIT_CPU, recipe["cpu_sec"], 5)


def _lower(kind: int, most: int, patience: int) -> None:
    _, highest = resource.getrlimit(kind)
    hard = most + patience if highest == resource.RLIM_INFINITY else min(most + patience, highest)
    resource.setrlimit(kind, (min(most, hard), hard))
