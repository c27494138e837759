"""For code that runs on another engine: which job it works for, its progress and result, its stop, and the fence.

Needs nothing of the service: the engine's machines install dataloader, or print the lines themselves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataloader.pipelines.offload import MAX_RESULT_BYTES, PROGRESS_PREFIX, RESULT_PREFIX, ResultTooLarge

_variables: ContextVar[Mapping[str, str] | None] = ContextVar("variables of the offload", default=None)
_stop_requested: ContextVar[Callable[[], bool] | None] = ContextVar("stop of the offload", default=None)


class RemoteStop(BaseException):
    """Raised by `check`: the job was canceled, or the work replaced. Not an Exception, as Stop."""


class FenceLost(Exception):
    """The work was stopped or replaced, or its job has ended: the transaction is rolled back."""

    permanent = True


@dataclass(frozen=True)
class RemoteJob:
    """Which job the code works for. `run_id` is the attempt that submitted it; another may wait for it now."""

    job_id: str
    run_id: str
    offload: str
    fence_token: str


def current() -> RemoteJob:
    """Raises LookupError outside an offload."""
    variables = _variables.get() or os.environ
    try:
        names = ("DL_JOB_ID", "DL_RUN_ID", "DL_OFFLOAD", "DL_FENCE_TOKEN")
        return RemoteJob(*(variables[name] for name in names))
    except KeyError as error:
        raise LookupError(f"this code is not run by ctx.offload: {error.args[0]} is not set") from None


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What a program gets: the environment of this process without the settings of dataloader and libpq, as a command
    does, and with these variables."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith(("DL_", "PG"))}, **variables}


@contextmanager
def running(variables: Mapping[str, str], is_stopped: Callable[[], bool] | None = None) -> Iterator[None]:
    """Run a function of an offload: `current` and `check` answer for it, in this thread."""
    tokens = _variables.set({**os.environ, **variables}), _stop_requested.set(is_stopped)
    try:
        yield
    finally:
        _variables.reset(tokens[0])
        _stop_requested.reset(tokens[1])


def check() -> None:
    """Raise RemoteStop if the work is to stop. Engines that can end it themselves do so without this."""
    is_stopped = _stop_requested.get()
    if is_stopped is not None and is_stopped():
        raise RemoteStop("the work was stopped")


def progress(done: int, total: int | None = None) -> None:
    """Report how far the work is, as a line that the job's worker reads."""
    _write(f"{PROGRESS_PREFIX}done={done}" + ("" if total is None else f" total={total}"))


def result(value: Any) -> None:
    """Return a program's result: JSON of at most 1 MB. The last one counts."""
    text = json.dumps(value)
    if len(text) > MAX_RESULT_BYTES:
        raise ResultTooLarge(f"the result has {len(text):,} bytes, and {MAX_RESULT_BYTES:,} are allowed")
    _write(RESULT_PREFIX + text)


def _write(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # whole, among the lines of other threads


@contextmanager
def fence(dsn: str, *, schema: str = "public") -> Iterator[Any]:
    """A psycopg2 connection to the queue's database for one transaction, which commits only while the job wants this
    work. Raises FenceLost."""
    import psycopg2  # noqa: PLC0415 - only code that writes there needs it

    job = current()
    name = '"' + schema.replace('"', '""') + '"'
    statement = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").format(schema=name)
    connection = psycopg2.connect(dsn, application_name=f"dataloader-offload:{job.offload[:40]}")
    try:
        # With an older snapshot the fence would fail whenever a heartbeat has renewed the job's lease meanwhile.
        connection.set_session(isolation_level="READ COMMITTED")
        with connection, connection.cursor() as cursor:
            yield connection
            cursor.execute(statement, {"offload": job.offload, "fence_token": job.fence_token})
            if cursor.fetchone() is None:
                raise FenceLost(f"the offload {job.offload} was stopped or replaced, is late, or its job has ended")
    finally:
        connection.close()
