"""The engines of the job-level scenarios: how work is asked for, and what each of them cannot do."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.queue.job import Job, Status
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.executors import Engines
from dataloader.workers.pool import WorkerPool
from tests.support import offload_tasks
from tests.support.fake_engine import FakeExecutor, install_entry_points
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.held_executor import HeldExecutor
from tests.support.processes import ROOT, Process
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from tests.workers.offloads.offload_fixture import program, start_count
from tests.workers.offloads.real_engines import DASK, RAY, RAY_TOKEN

SECRET = "engine"
ENGINES: list[Any] = [
    "fake", "kubernetes", pytest.param("process", marks=pytest.mark.engines),
    pytest.param("ray", marks=RAY), pytest.param("dask", marks=DASK),
]  # fmt: skip
WITH_ITS_WORKER = "its work ends with the worker process"
MISSING: Mapping[tuple[str, str], str] = {
    ("process", "test_shutdown_detaches"): WITH_ITS_WORKER,
    ("process", "test_engine_that_was_killed_is_waited_for"): "it is the worker process itself",
    ("process", "test_cancel_of_a_waiting_job_stops_its_work"): f"{WITH_ITS_WORKER}: no job waits without a thread",
    ("dask", "test_log_of_the_work_has_the_cap_of_job_logs"): "it has no log of a task",
}
"""Scenarios that make no sense for an engine, and why."""

Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class JobEngine:
    """One engine, and the settings of its executor."""

    name: str
    settings: Mapping[str, Any]
    token: str = ""  # behind the reference in the settings
    python: str | None = sys.executable  # of its programs; None: it runs functions
    survives: bool = True  # its work survives the worker process
    keeps_names: bool = True  # when it is killed and back
    has_logs: bool = True
    down: Callable[[], None] = lambda: None
    up: Callable[[], object] = lambda: None

    def engines(self, *, held_in: Path | None = None) -> Engines:
        """With `held_in` its work is held at the moments of HeldExecutor."""
        made = Engines(
            {self.name: self.settings}, read_secret=lambda name: self.token,
            executors={"fake": FakeExecutor(self.settings)} if self.name == "fake" else None,
        )  # fmt: skip
        if held_in is None:
            return made
        held: Any = HeldExecutor({"folder": str(held_in)}, made.get(self.name))
        return Engines(executors={self.name: held})

    def held_settings(self, folder: Path) -> dict[str, Any]:
        """DL_EXECUTORS of a worker process."""
        return {self.name: {"kind": "held", "folder": str(folder), "of": {"kind": self.name, **self.settings}}}

    def work(self, mode: str, folder: Path) -> dict[str, Any]:
        """Args of the tasks."""
        if self.python is None:
            return {"engine": self.name, "function": mode, "folder": str(folder)}
        return {"engine": self.name, "entrypoint": program(mode, folder, self.python)}


@dataclass
class EngineJobs:
    """Jobs that give work to one engine, each with a folder of its own."""

    pools: WorkerPoolFixture
    engine: JobEngine
    folder: Path
    figures: dict[str, float]
    folders: dict[UUID, Path] = field(default_factory=dict)
    keys: dict[UUID, str] = field(default_factory=dict)

    def start(self, *, is_held: bool = False, **options: Any) -> WorkerPool:
        engines = self.engine.engines(held_in=self.folder if is_held else None)
        tasks = offload_tasks.register_all(Pipelines())
        return self.pools.pool({"q": 6}, pipelines=tasks, engines=engines, stop_step_sec=0.2, **options)

    def worker_process(self) -> Process:
        site = install_entry_points(self.folder, held="tests.support.held_executor:HeldExecutor")
        env = {
            "DL_DB_DSN": self.pools.dsn, "DL_PIPELINES": "tests.support.offload_tasks", "DL_MEMORY_HIGH": "0",
            "DL_HEARTBEAT_SEC": "0.5", "DL_SHUTDOWN_GRACE_SEC": "0", "DL_REAPER_PERIOD_SEC": "0.5",
            "WORKERS_JSON": '[{"queue":"q","concurrency":6}]', f"DL_SECRET_{SECRET.upper()}": self.engine.token,
            "DL_EXECUTORS": json.dumps(self.engine.held_settings(self.folder)),
            "PYTHONPATH": ":".join([str(site), str(ROOT), *sys.path]),
        }  # fmt: skip
        return Process.dataloader("worker", env=env, output=self.folder / "worker")

    def add(self, task: str, mode: str = "gate", *, key: str = "1", job: Any = None, **more: Any) -> UUID:
        folder = self.folder / f"job-{len(self.folders)}"
        folder.mkdir()
        options = {**more.pop("options", {}), **({"key": key} if key != "1" else {})}
        args = {**self.engine.work(mode, folder), "options": options, **more}
        job_id = self.pools.add_job(f"offload.{task}", args=args, **(job or {}))
        self.folders[job_id], self.keys[job_id] = folder, key
        return job_id

    def name(self, job_id: UUID) -> str:
        return f"dl-{job_id}-{self.keys[job_id]}"

    def starts(self, job_id: UUID) -> int:
        return start_count(self.folders[job_id])

    def beats(self, job_id: UUID) -> int:
        path = self.folders[job_id] / "beats"
        return path.stat().st_size if path.exists() else 0

    def wait_until_running(self, job_id: UUID, *, starts: int = 1) -> None:
        eventually(lambda: self.starts(job_id) >= starts and self.beats(job_id) > 0, message="it runs")

    def has_stopped(self, job_id: UUID) -> bool:
        """Whether nothing is written any more."""
        before = self.beats(job_id)
        time.sleep(0.2)
        return self.beats(job_id) == before

    def open_gate(self, *job_ids: UUID) -> None:
        for job_id in job_ids:
            (self.folders[job_id] / "gate").touch()

    def wait_until_held(self, moment: str, times: int = 1) -> None:
        path = self.folder / f"{moment}.held"
        eventually(lambda: path.exists() and path.stat().st_size >= times, message=f"the work is held {moment}")

    def release(self, moment: str) -> None:
        (self.folder / f"{moment}.go").touch()

    def succeeded(self, job_id: UUID) -> Job:
        return self.pools.wait_for_status(job_id, Status.SUCCEEDED)

    def failed(self, job_id: UUID) -> Job:
        return self.pools.wait_for_status(job_id, Status.FAILED)

    def cancel(self, job_id: UUID) -> None:
        self.pools.queue_fixture.queue.cancel(job_id)

    def canceled(self, job_id: UUID) -> Job:
        return self.pools.wait_for_status(job_id, Status.CANCELED)

    def rows(self, job_id: UUID) -> list[tuple[Any, ...]]:
        """Names and outcomes."""
        text = "SELECT name, outcome FROM dl_offloads WHERE job_id = %s ORDER BY created_at"
        return self.pools.queue_fixture.sql(text, str(job_id))

    def log(self, job_id: UUID) -> list[str]:
        text = "SELECT line FROM dl_job_logs WHERE job_id = %s AND stream = %s ORDER BY log_id"
        return [line for (line,) in self.pools.queue_fixture.sql(text, str(job_id), self.engine.name)]


def make_job_engine(name: str, request: pytest.FixtureRequest, folder: Path) -> Iterator[JobEngine]:
    if (reason := MISSING.get((name, request.node.originalname))) is not None:
        pytest.skip(f"{name}: {reason}")
    if name == "fake":
        fake = request.getfixturevalue("engine")
        yield JobEngine(name, {"address": fake.address}, down=fake.down, up=fake.up)
    elif name == "kubernetes":
        cluster = FakeKubernetes(folder).up()
        settings = {
            "address": cluster.address, "namespace": "loads", "image": "acme:1", "token": {"$secret": SECRET},
        }  # fmt: skip
        yield JobEngine(name, settings, cluster.token, down=cluster.down, up=cluster.up)
        cluster.close()
    elif name == "process":
        yield JobEngine("children", {"kind": "process"}, survives=False)
    elif name == "ray":
        head = request.getfixturevalue("ray")
        settings = {"address": head.address, "token": {"$secret": SECRET}}
        yield JobEngine(name, settings, RAY_TOKEN, "python3", keeps_names=False, down=head.down, up=head.up)
    else:
        dask = request.getfixturevalue("dask")
        yield JobEngine(
            name, {"address": dask.address}, python=None, keeps_names=False, has_logs=False, down=dask.down, up=dask.up
        )
