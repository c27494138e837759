"""Interpreters of their own: whether one can be used, and what it is sent to run a task (`standalone_main.py`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dataloader.pipelines.contract import Task
from dataloader.workers.attempt import Attempt

STANDALONE_PROGRAM = str(Path(__file__).with_name("standalone_main.py"))
MIN_VERSION = (3, 8)
_PROBE = "import sys; print('%d %d' % sys.version_info[:2])"  # for any version
_PROBE_TIMEOUT_SEC = 20.0


def find_unusable(tasks: Iterable[Task]) -> list[str]:
    """Return the interpreters of tasks that cannot be used, and why. Starts each interpreter once."""
    named = {task.name: task.options.python for task in tasks if task.options.python is not None}
    problems = {python: _probe(python) for python in sorted({*named.values()})}
    return [
        f"{python!r} of task {task!r}, which {problems[python]}" for task, python in named.items() if problems[python]
    ]


def _probe(python: str) -> str | None:
    """Return what is wrong with an interpreter, or None."""
    argv = [python, "-I", "-S", "-c", _PROBE]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_SEC, check=False)
        major, minor = map(int, done.stdout.split())
    except OSError as error:
        return f"cannot be started: {error.strerror}"
    except (ValueError, subprocess.TimeoutExpired):
        return "does not run Python code"
    return None if (major, minor) >= MIN_VERSION else f"is Python {major}.{minor}"


def standalone_spec(attempt: Attempt, task: Task, args: dict[str, Any], argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the first message to the interpreter."""
    job, options = attempt.job, task.options
    times = {name: getattr(job, name) for name in ("logical_at", "interval_start", "interval_end")}
    return {
        "job": {
            "id": str(job.id),
            "run": job.run_text,
            "task": job.task,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "traceparent": job.traceparent,
            "partition": attempt.partition,
            **{name: None if time is None else time.isoformat() for name, time in times.items()},
        },
        "call": task.import_path,
        "path": [] if task.path is not None else import_folders(task.module),
        "args": args,
        "argv": None if argv is None else list(argv),
        "spread": task.shape.spread or None,
        "target": options.target,
        "fence_problem": attempt.fence_problem,
        "has_secrets": bool(attempt.redactor.secrets),
        "resume": attempt.resume,
        "progress": attempt.reported.progress,
        "rules": [[_name_of(matcher), rule] for matcher, rule in options.rules.entries],
        "memory_mb": options.memory_mb,
        "cpu_sec": options.cpu_sec,
        "max_result_bytes": attempt.settings.max_result_bytes,
        "max_checkpoint_bytes": attempt.max_checkpoint_bytes,
    }


def import_folders(module: str) -> list[str]:
    """Return the folder from which this interpreter has imported the module; none for an installed package."""
    top = sys.modules.get(module.partition(".")[0])
    paths = [*getattr(top, "__path__", ())] or [getattr(top, "__file__", None) or ""]
    folders = dict.fromkeys(str(Path(path).resolve().parent) for path in paths if path)
    return [folder for folder in folders if not {"site-packages", "dist-packages"} & {*Path(folder).parts}]


def _name_of(matcher: type[BaseException] | str) -> str:
    if isinstance(matcher, str):
        return matcher
    return matcher.__name__ if matcher.__module__ == "builtins" else f"{matcher.__module__}.{matcher.__qualname__}"
