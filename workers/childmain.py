"""What runs in a process of its own: one task, with the same context, that speaks to its parent over a socket."""

from __future__ import annotations

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

from app.queue.effects import Effects, Places
from app.queue.values import clean_json
from pipelines import contract, targets
from pipelines.contract import Stop, StopReason, registry
from pipelines.retry import Fixed, decide
from workers.context import Facts, JobContext
from workers.drive import drive
from workers.outcome import came_from_stop, describe

_NEWS_EVERY = 0.5
_ORPHANED = 71  # exit code: the parent is gone
_PR_SET_PDEATHSIG = 1
_ASKED_FOR = Fixed(0.0)  # how long to wait beyond what the error itself asks for is the parent's to say


class Parent:
    """The other end of the socket. `tell` may be called by any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._lines = channel.makefile("rb")

    def tell(self, message: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, Any] | None:
        line = self._lines.readline()
        return json.loads(line) if line else None


class ToParent(logging.Handler):
    """What the pipeline logs is the job's log."""

    def __init__(self, parent: Parent) -> None:
        super().__init__()
        self._parent = parent

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a log line must not end a job
            fields = getattr(record, "fields", None)
            text = record.getMessage() + (f" {fields}" if fields else "")
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            for line in text.splitlines() or [""]:
                self._parent.tell({"log": [record.levelname, "log", line]})


def main(number: int) -> None:
    parent = Parent(socket.socket(fileno=number))
    recipe = parent.hear()
    if recipe is None:
        os._exit(_ORPHANED)
    _die_with(recipe["parent"])
    root = logging.getLogger()
    root.addHandler(ToParent(parent))
    root.setLevel(logging.INFO)
    context = _context(recipe)
    threading.Thread(target=_obey, args=(parent, context), daemon=True).start()
    done = threading.Event()
    talker = threading.Thread(target=_talk, args=(parent, context, done), daemon=True)
    talker.start()
    end = _run(recipe, context)
    done.set()
    talker.join()
    parent.tell({"end": end})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads that the pipeline has left behind


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
    return JobContext(known, None if places is None else Effects(Places(**places), known.job_id, known.run_id))


def _obey(parent: Parent, context: JobContext) -> None:
    while (word := parent.hear()) is not None:
        if "stop" in word:
            context.stop(StopReason(word["stop"]))
        elif "cancel" in word and context.effects is not None:
            context.effects.cancel()
    os._exit(_ORPHANED)


def _talk(parent: Parent, context: JobContext, done: threading.Event) -> None:
    last = False
    while not last:
        last = done.wait(_NEWS_EVERY)
        progress, cursor = news = context.news()
        if progress is not None:
            parent.tell({"progress": json.loads(clean_json(progress, 64_000))})
        if cursor is not None:
            parent.tell({"checkpoint": json.loads(clean_json(cursor, 1_000_000))})
        context.written(news)


def _run(recipe: dict[str, Any], context: JobContext) -> dict[str, Any]:
    if recipe["places"] is not None:
        places = recipe["places"]
        targets.configure(recipe["endpoints"], places["targets"], recipe["tokens"], otherwise=lambda: places["dsn"])
    loading = contract.load(recipe["packages"], recipe["tasks"])
    task = registry.get(context.task)
    if task is None:
        broken = "; ".join(loading.failures) or "none is broken"
        return {"how": "refused", "told": f"the process does not know the task {context.task!r} (modules: {broken})"}
    try:
        args = json.loads(recipe["args"])
        cursor = None if recipe["checkpoint"] is None else json.loads(recipe["checkpoint"])
        context.begin_with(recipe["progress"], cursor)
        _limit(recipe)
        result = drive(task, args, context)
    except Stop as stop:
        return _finished(context) or {"how": "stop", "reason": stop.reason.value}
    except BaseException as error:
        return _finished(context) or _failure(context, task.options, error)
    return _finished(context) or {
        "how": "value",
        "result": json.loads(clean_json(result, context.facts.max_result_bytes)) if result is not None else None,
    }


def _finished(context: JobContext) -> dict[str, Any] | None:
    return {"how": "finished"} if context.effects is not None and context.effects.finished else None


def _failure(context: JobContext, options: contract.Options, error: BaseException) -> dict[str, Any]:
    if isinstance(error, SystemExit) and error.code in (None, 0):
        return {"how": "value", "result": None}
    facts = context.facts
    verdict = decide(
        error, attempt=facts.attempt, max_attempts=facts.max_attempts, policy=_ASKED_FOR, rules=options.rules
    )
    return {
        "how": "error",
        "told": describe(error),
        "traceback": "".join(traceback.format_exception(error)),
        "answer": verdict.answer.value,
        "pause": verdict.pause,
        "stopped": came_from_stop(error),
    }


def _limit(recipe: dict[str, Any]) -> None:
    if recipe["memory_mb"] is not None:
        most = recipe["memory_mb"] * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if recipe["cpu_sec"] is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (recipe["cpu_sec"], recipe["cpu_sec"] + 5))


if __name__ == "__main__":
    main(int(sys.argv[1]))
