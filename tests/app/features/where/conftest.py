"""Jobs that run in a pool of this process, and an app that is asked where they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from flask.testing import FlaskClient

from dataloader.app.db.pool import Pool
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.features.where.sampler_options import WhereOptions
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.job import Status
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines, registry
from tests.support import Databases, where_tasks
from tests.support.databases import execute_sql
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from tests.workers.conftest import shared_fork_server, start_method

__all__ = ["shared_fork_server", "start_method"]


def isolated(*names: str) -> Pipelines:
    tasks = Pipelines()
    for name in names:
        task = registry.get(name)
        assert task is not None
        tasks.add(task)
    return tasks


@dataclass
class WhereFixture:
    """Runs jobs, and asks the app where they are."""

    pools: WorkerPoolFixture
    app_pool: Pool
    release_file: Path
    targets: dict[str, str] = field(default_factory=dict)
    _client: FlaskClient | None = None

    @property
    def client(self) -> FlaskClient:
        if self._client is None:
            servers = TargetServers(self.targets, queue_dsn=self.pools.dsn)
            options = WebOptions(version="1", features={"where": WhereOptions(servers)})
            self._client = create_app(
                JobQueue(self.app_pool), self.pools.pipelines, options, pool=self.app_pool
            ).test_client()
        return self._client

    def forget_client(self) -> None:
        """Make an app of the present settings for the next request."""
        self._client = None

    def start(self, task: str, pipelines: Pipelines | None = None, **args: Any) -> UUID:
        """Run a job in a pool; return when it runs."""
        if not self.pools.pools:
            tasks, packages = pipelines or where_tasks.in_threads(), (where_tasks.__name__,)
            self.pools.listening_pool(pipelines=tasks, packages=packages, targets=self.targets)
        job_id = self.pools.add_job(task, args={"file": str(self.release_file), **args}, max_attempts=1)
        self.pools.wait_for_status(job_id, Status.RUNNING)
        return job_id

    def start_to_end(self) -> UUID:
        """Run a job that ends at once."""
        self.release()
        self.pools.listening_pool(pipelines=where_tasks.in_threads())
        job_id = self.pools.add_job("stay", args={"file": str(self.release_file)})
        self.pools.wait_for_status(job_id, Status.SUCCEEDED)
        return job_id

    def locate(self, job_id: UUID) -> dict[str, Any]:
        response = self.client.get(f"/api/v1/jobs/{job_id}/where")
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.get_json()
        assert answer["status"] != "failed", self.pools.queue_fixture.job(job_id).error
        return answer

    def locate_at(self, job_id: UUID, function: str) -> dict[str, Any]:
        """Ask until the task's thread is in this function."""

        def located() -> dict[str, Any] | None:
            answer = self.locate(job_id)
            frames = [frame for thread in answer["threads"] for frame in thread["frames"]]
            return answer if any(function in frame["function"] for frame in frames) else None

        answer = eventually(located, 60, message=f"the job is in {function}")
        assert answer is not None
        return answer

    def locate_until(self, job_id: UUID, is_found: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        def located() -> dict[str, Any] | None:
            answer = self.locate(job_id)
            return answer if is_found(answer) else None

        answer = eventually(located, 60, message="the answer has it")
        assert answer is not None
        return answer

    def release(self) -> None:
        self.release_file.touch()


@pytest.fixture
def dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh() as fresh:
        yield fresh


@pytest.fixture
def target_dsn(databases: Databases) -> Iterator[str]:
    with databases.fresh(schema=False) as fresh:
        execute_sql(fresh, "CREATE TABLE sales (id int PRIMARY KEY, amount int)", "INSERT INTO sales VALUES (1, 1)")
        yield fresh


@pytest.fixture
def where(dsn: str, tmp_path: Path) -> Iterator[WhereFixture]:
    pools, app_pool = WorkerPoolFixture(dsn), Pool(dsn, size=2, overflow=2)
    made = WhereFixture(pools, app_pool, tmp_path / "release")
    try:
        yield made
        if not os.path.exists(made.release_file):
            made.release()
        for pool in pools.pools:
            pool.stop(grace=10)
        assert pools.crashes == []
    finally:
        pools.close()
        app_pool.close()
