"""The context and the program of a task with an interpreter of its own. Portable.

The worker does on request what needs its database (`database_calls.py`). A module `dataloader` has what a task imports.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

from dataloader.pipelines.commit_guard import CommitGuard
from dataloader.pipelines.context import (
    Args,
    Checkpoint,
    FollowUp,
    Handle,
    Interval,
    ParentEnd,
    ParentsNeeded,
    Progress,
    Stop,
    StopReason,
    Upstream,
    Wait,
)
from dataloader.pipelines.effects import DrawnFence
from dataloader.pipelines.json_values import sanitize_json
from dataloader.pipelines.reported_state import ReportedState
from dataloader.pipelines.retry import Exponential, Fail, Fixed, Linear, Rules, Snooze, Table
from dataloader.pipelines.runner import run_task
from dataloader.pipelines.signature import shape_of, start_call
from dataloader.pipelines.target_transactions import MAX_RESULT_BYTES
from dataloader.workers.isolation.child_program import ChildProgram, ParentChannel, run_program, set_limits
from dataloader.workers.stop_signal import StoppableContext, StopSignal

_MAX_REQUEST_BYTES = 16_000_000  # of JSON; the worker cuts longer lines
_OWN_CONNECTION = "open a connection yourself"


class NotAvailable(Fail):
    """Part of the context that needs the worker's interpreter."""


class StandaloneContext(StoppableContext):
    """The context of a task with an interpreter of its own."""

    has_offloads = False

    def __init__(self, spec: dict[str, Any], parent: ParentChannel) -> None:
        job = spec["job"]
        self.job_id, self.run_id, self.task = UUID(job["id"]), UUID(job["run"]), job["task"]
        self._has_secrets = spec["has_secrets"]
        self.task_target, self.fence_problem = spec["target"], spec["fence_problem"]
        self.attempt, self.max_attempts, self.traceparent = job["attempt"], job["max_attempts"], job["traceparent"]
        self.partition = job["partition"]
        self.logical_at, start, end = (
            None if job[name] is None else datetime.fromisoformat(job[name])
            for name in ("logical_at", "interval_start", "interval_end")
        )
        self.interval = Interval.between(start, end)
        self.max_checkpoint_bytes = spec["max_checkpoint_bytes"]
        self.reported, self.stop_signal = ReportedState(), StopSignal()
        self.reported.progress, self.reported.checkpoint = spec["progress"], spec["resume"]
        self._parent, self._call_lock = parent, threading.Lock()
        self._parents: Mapping[str, Upstream] | None = None  # None: not read yet

    def _call(self, call: str, /, **arguments: Any) -> Any:
        """Have the worker do this; return its reply, or raise what it raised."""
        with self._call_lock:
            self._parent.send({"call": [call, arguments]}, _MAX_REQUEST_BYTES)
            reply = self._parent.replies.get()
        if "fail" in reply:
            raise Fail(reply["fail"])
        if "type_error" in reply:
            raise TypeError(reply["type_error"])
        if "value_error" in reply:
            raise ValueError(reply["value_error"])
        if "stop" in reply:
            raise Stop(StopReason(reply["stop"]))
        if "unavailable" in reply:
            raise RuntimeError(reply["unavailable"])
        return reply["value"]

    @property
    def upstream(self) -> Mapping[str, Upstream]:
        if self._parents is None:
            parents = self._call("upstream")
            self._parents = {key: Upstream(UUID(job_id), *more) for key, (job_id, *more) in parents.items()}
        return self._parents

    def write_log(self, level: str, message: str, fields: Mapping[str, Any]) -> None:
        number = getattr(logging, level.upper())
        logging.getLogger("pipeline").log(number, "%s", message, extra={"fields": fields})

    def check_history(self, name: str, count: int) -> Sequence[float]:
        history: list[float] = self._call("check_history", name=name, count=count)
        return history

    def enqueue_job(self, job: FollowUp) -> UUID:
        return UUID(self._call("enqueue", **_encode(job)))

    def enqueue_group(
        self, jobs: Sequence[FollowUp], then: FollowUp, *, on: ParentEnd, need: ParentsNeeded
    ) -> tuple[list[UUID], UUID]:
        ids, last = self._call("fan_out", jobs=list(map(_encode, jobs)), then=_encode(then), on=on, need=need)
        return [UUID(job_id) for job_id in ids], UUID(last)

    def count_calls(self, limit: str, n: int) -> float:
        wait_sec: float = self._call("try_acquire", limit=limit, n=n)
        return wait_sec

    def connect(self, name: str) -> NoReturn:
        _refuse("connect", f"{_OWN_CONNECTION}: PGAPPNAME and PGOPTIONS end its session with the attempt")

    @contextmanager
    def open_transaction(self, *, target: str | None, final: bool, result: Any) -> Iterator[Any]:
        if target is None or self.targets.claim(target) is None:
            _refuse("transaction", "it is of the queue's database there: name a target of another database")
        with self.targets.transaction(target, final=final, result=result) as connection:
            yield connection

    def connect_for_transactions(self, target: str) -> Any:
        access = self._call("target_access", target=target)
        return None if access is None else _connect_guarded(**access)

    def draw_fence(self, target: str, problem: str | None) -> DrawnFence:
        return DrawnFence(*self._call("draw_fence", target=target, problem=problem))

    def redact_for_target(self, value: Any) -> Any:
        if not self._has_secrets:
            return value
        return self._call("redact", value=json.loads(sanitize_json(value, MAX_RESULT_BYTES)))

    def cancel_queries(self) -> None:
        """Cancel the statements in targets."""
        for connection in self.targets.connections:
            with suppress(Exception):
                connection.cancel()

    def offload(self, *_: Any, **__: Any) -> NoReturn:
        _refuse("offload", "give the work to an engine from a task of the worker's own interpreter")


def _connect_guarded(dsn: str, **options: Any) -> Any:
    """Connect with the driver that this interpreter has."""
    with suppress(ImportError):
        psycopg2 = importlib.import_module("psycopg2")
        factory: Any = type("FencedConnection", (CommitGuard, psycopg2.extensions.connection), {})
        return psycopg2.connect(dsn, connection_factory=factory, **options)
    try:
        psycopg = importlib.import_module("psycopg")
    except ImportError:
        raise Fail("ctx.transaction needs a driver in this interpreter: psycopg2, or psycopg 3") from None
    factory = type("FencedConnection", (CommitGuard, psycopg.Connection), {})
    return factory.connect(dsn, **options)


def _refuse(name: str, remedy: str) -> NoReturn:
    raise NotAvailable(f"ctx.{name} is not available in a task with an interpreter of its own; {remedy}")


def _encode(job: FollowUp) -> dict[str, Any]:
    options: dict[str, Any] = dict(job.options)
    at = options.get("available_at")
    if isinstance(at, datetime):
        options["available_at"] = at.isoformat()
    return {"task": job.task, "args": job.args, **options}


class StandaloneProgram(ChildProgram):
    """Runs a callable that this interpreter imports."""

    context: StandaloneContext

    def __init__(self, parent: ParentChannel, spec: dict[str, Any]) -> None:
        super().__init__(parent, spec, StandaloneContext(spec, parent))
        self.rules = Rules(tuple((matcher, rule) for matcher, rule in spec["rules"]))
        self.has_command_line = spec["argv"] is not None
        self.task_module = spec["call"].partition(":")[0]

    def execute(self) -> Any:
        self.context.check()
        if self.context.claim_task_target():
            return self.context.targets.result
        self.call = load_callable(self.spec["call"])
        sys.argv = [self.context.task, *(self.spec["argv"] or ())]
        set_limits(self.spec)
        return run_task(self, self.spec["args"], self.context)

    def cancel_query(self) -> None:
        threading.Thread(target=self.context.cancel_queries, daemon=True).start()  # a server may not answer

    def start(self, args: dict[str, Any], context: StandaloneContext) -> Any:
        return start_call(self.call, shape_of(self.call, self.spec["spread"]), args, context, self.spec["argv"])


def load_callable(path: str) -> Any:
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


class _Declaration:
    """Partitions, breakers and programs: declared for the worker's interpreter, of no effect here."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def install_contract(packages: Sequence[str]) -> None:
    """Provide the module `dataloader`. `Client` and `enqueue` are those of an installed dataloader, if there is one.

    `packages` are those from which the modules of ours were loaded: the task finds no others there.
    """
    del sys.modules["dataloader"]
    installed = None
    with suppress(ImportError, ValueError):
        installed = importlib.util.find_spec("dataloader")
    folders = list(installed.submodule_search_locations or ()) if installed else []
    module: Any = types.ModuleType("dataloader", install_contract.__doc__)
    sys.modules["dataloader"] = module
    for name in packages:
        package: Any = sys.modules[name]
        package.__path__ = [os.path.join(folder, *name.split(".")[1:]) for folder in folders]

    def keep(*_: Any, **__: Any) -> Any:
        return lambda call: call

    def load(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        source = {"Client": "client", "enqueue": "_enqueue"}.get(name, "errors")
        try:
            return getattr(importlib.import_module("dataloader." + source), name)
        except ModuleNotFoundError:
            raise AttributeError(f"{name!r} is not there in an interpreter of its own without dataloader") from None

    for kind in (
        *(Checkpoint, Fail, Handle, NotAvailable, Progress, Snooze, Stop, Wait),
        *(Exponential, Fixed, Linear, Table),
    ):
        setattr(module, kind.__name__, kind)
    module.Args = Args
    for name in ("Breaker", "Daily", "Hourly", "Listed", "Monthly", "Weekly"):
        setattr(module, name, _Declaration)
    module.Context = StandaloneContext
    module.register = module.schedule = keep
    module.registry = types.SimpleNamespace(register=keep, call=_Declaration, command=_Declaration)
    module.__getattr__ = load


def main(descriptor: int, packages: Sequence[str]) -> None:
    def load(parent: ParentChannel, spec: dict[str, Any]) -> ChildProgram:
        sys.path.insert(0, os.getcwd())
        sys.path += spec["path"]
        install_contract(packages)
        return StandaloneProgram(parent, spec)

    run_program(descriptor, load)
