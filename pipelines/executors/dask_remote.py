"""What runs on a Dask cluster. Sent there by value: the cluster needs no dataloader, and uses it if it is there."""

from __future__ import annotations

import pickle
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from typing import Any

_CHECK_INTERVAL_SEC = 1.0  # between two checks for a stop


def task_state(name: str, dask_scheduler: Any = None) -> tuple[bool, str | None]:
    """On the scheduler: whether the name is published, and the state of its task."""
    task = dask_scheduler.tasks.get(name)
    published = dask_scheduler.extensions["publish"].datasets
    return name in published, None if task is None else task.state


def allowed_failures(dask_scheduler: Any = None) -> int:
    return int(dask_scheduler.allowed_failures)


def worker_pythons(dask_scheduler: Any = None) -> list[str]:
    """On the scheduler: the versions of Python that its workers have sent it."""
    return [str(worker.versions["host"]["python"]) for worker in dask_scheduler.workers.values() if worker.versions]


def call(payload: bytes, variables: Mapping[str, str], name: str, max_bytes: int) -> dict[str, Any]:
    """On a worker: run a pickled function. What it raises is returned, so that a task that errs was lost by Dask."""
    try:
        function, args, kwargs = pickle.loads(payload)  # noqa: S301 - made by the job that asked for it
        with _running(variables, name):
            result = function(*args, **kwargs)
        try:
            content = pickle.dumps(result)
        except MemoryError:
            raise
        except Exception as error:
            return {"state": "unreadable", "detail": f"the result of the function cannot be pickled: {error}"}
    except BaseException as error:
        if type(error).__name__ == "RemoteStop":
            return {"state": "stopped"}
        raised = None
        with suppress(Exception):
            raised = pickle.dumps(error)
        kind = "oom" if isinstance(error, MemoryError) else "error"
        text = "".join(traceback.format_exception(error))
        return {"state": "failed", "kind": kind, "detail": text, "error": raised}
    if len(content) > max_bytes:
        return {"state": "too large", "detail": f"the result has {len(content):,} bytes, and {max_bytes:,} are allowed"}
    return {"state": "succeeded", "value": content}


def _running(variables: Mapping[str, str], name: str) -> Any:
    with suppress(ImportError):
        from dataloader.pipelines import remote  # noqa: PLC0415 - the cluster need not have it

        return remote.running(variables, _stop_check(name))
    return nullcontext()


def _stop_check(name: str) -> Callable[[], bool]:
    next_at = 0.0
    answer = False

    def is_stopped() -> bool:
        nonlocal next_at, answer
        from distributed import Variable, get_client  # noqa: PLC0415 - of the worker

        if not answer and time.monotonic() >= next_at:
            next_at = time.monotonic() + _CHECK_INTERVAL_SEC
            with suppress(TimeoutError):
                answer = bool(Variable(f"dl-stop-{name}", client=get_client()).get(timeout=0.2))
        return answer

    return is_stopped


def python_version() -> str:
    return ".".join(map(str, sys.version_info[:2]))
