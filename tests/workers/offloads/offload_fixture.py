"""Pools whose jobs give programs to a fake engine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from dataloader.app.queue.job import Job, Status
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.executors import Engines
from dataloader.workers.pool import WorkerPool
from tests.support import offload_tasks
from tests.support.fake_engine import FakeEngine, FakeExecutor
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture

PROGRAM = Path(__file__).parents[2] / "support" / "offload_program.py"


def program(mode: str, folder: Path, python: str = sys.executable) -> str:
    """The command line of a test's program."""
    return f"{python} {PROGRAM} {mode} {folder}"


def start_count(folder: Path) -> int:
    starts = folder / "starts"
    return len(starts.read_text().splitlines()) if starts.exists() else 0


@dataclass
class OffloadFixture:
    """Pools whose jobs use a fake engine."""

    pools: WorkerPoolFixture
    engine: FakeEngine
    folder: Path

    def start(self, *, isolation: Any = "thread", **options: Any) -> WorkerPool:
        options.setdefault("engines", Engines(executors={"fake": FakeExecutor({"address": self.engine.address})}))
        tasks = offload_tasks.register_all(Pipelines(), isolation=isolation)
        packages = ("tests.support.offload_tasks",)
        return self.pools.pool(pipelines=tasks, stop_step_sec=0.2, packages=packages, **options)

    def add(self, task: str, mode: str = "gate", *, options: Any = None, job: Any = None, **more: Any) -> UUID:
        args = {"entrypoint": program(mode, self.folder), "options": options or {}, **more}
        return self.pools.add_job(f"offload.{task}", args=args, **(job or {}))

    def name(self, job_id: UUID, call: str = "1") -> str:
        return f"dl-{job_id}-{call}"

    def wait_until_running(self, name: str) -> None:
        eventually(lambda: name in self.engine.programs and start_count(self.folder) > 0, message="it runs")

    def open_gate(self) -> None:
        (self.folder / "gate").touch()

    def succeeded(self, job_id: UUID) -> Job:
        return self.pools.wait_for_status(job_id, Status.SUCCEEDED)

    def failed(self, job_id: UUID) -> Job:
        return self.pools.wait_for_status(job_id, Status.FAILED)

    def rows(self, job_id: UUID) -> list[tuple[Any, ...]]:
        """Names and outcomes."""
        text = "SELECT name, outcome FROM dl_offloads WHERE job_id = %s ORDER BY created_at"
        return self.pools.queue_fixture.sql(text, str(job_id))

    def log(self, job_id: UUID, stream: str) -> list[str]:
        text = "SELECT line FROM dl_job_logs WHERE job_id = %s AND stream = %s ORDER BY log_id"
        return [line for (line,) in self.pools.queue_fixture.sql(text, str(job_id), stream)]

    def is_alive(self, name: str) -> bool:
        return self.engine.programs[name].process.poll() is None
