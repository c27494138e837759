"""What only real engines show. Run by `make engines`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.queue.job import Status
from pipelines.contract import Pipelines
from pipelines.executors import Engines
from pipelines.offload import EngineRefused, EngineUnavailable, Executor, FailureKind, OffloadSpec, RemoteState
from tests.support import offload_tasks
from tests.support.waiting import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture
from tests.workers.offloads import functions
from tests.workers.offloads.conftest import program, start_count
from tests.workers.offloads.real_engines import DASK, RAY, dask_cluster


def marked(marks: list[pytest.MarkDecorator]):
    def mark(test):
        for one in marks:
            test = one(test)
        return test

    return mark


@marked(RAY)
def test_ray_job_outlives_the_worker_that_submitted_it(
    worker_pools: WorkerPoolFixture, ray_address: str, tmp_path: Path, record_property
):
    tasks = offload_tasks.register_all(Pipelines())
    first = worker_pools.pool(engines=Engines({"ray": {"address": ray_address}}), pipelines=tasks)
    args = {"engine": "ray", "entrypoint": program("gate", tmp_path, "python3")}
    job_id = worker_pools.add_job("offload.blocking", args=args)
    began = time.monotonic()
    eventually(lambda: start_count(tmp_path) == 1)
    record_property("start_sec", round(time.monotonic() - began, 2))
    first.stop(grace=0)

    began = time.monotonic()
    worker_pools.pool(engines=Engines({"ray": {"address": ray_address}}), pipelines=tasks)
    (tmp_path / "gate").touch()

    job = worker_pools.wait_for_status(job_id, Status.SUCCEEDED)
    record_property("reattach_and_result_sec", round(time.monotonic() - began, 2))
    assert (job.result, start_count(tmp_path)) == ({"rows": 3}, 1)


@marked(RAY)
def test_cancel_stops_a_ray_job(worker_pools: WorkerPoolFixture, ray_address: str, tmp_path: Path, record_property):
    tasks = offload_tasks.register_all(Pipelines())
    worker_pools.pool(engines=Engines({"ray": {"address": ray_address}}), pipelines=tasks)
    args = {"engine": "ray", "entrypoint": program("gate", tmp_path, "python3")}
    job_id = worker_pools.add_job("offload.blocking", args=args)
    beats = tmp_path / "beats"
    eventually(lambda: beats.exists() and beats.stat().st_size > 2)

    began = time.monotonic()
    worker_pools.queue_fixture.queue.cancel(job_id)

    worker_pools.wait_for_status(job_id, Status.CANCELED)
    record_property("stop_sec", round(time.monotonic() - began, 2))
    size = beats.stat().st_size
    time.sleep(0.3)
    assert beats.stat().st_size == size


def spec(mode: str, folder: Path) -> OffloadSpec:
    return OffloadSpec(call=getattr(functions, mode), args=(str(folder),))


def dask(address: str) -> Executor:
    return Engines({"dask": {"address": address}}).get("dask")


@marked(DASK)
def test_dask_does_not_run_the_task_of_a_lost_worker_again(tmp_path: Path):
    with dask_cluster() as address:
        engine = dask(address)
        engine.submit("dl-dies-1", spec("dies", tmp_path))

        eventually(lambda: engine.status("dl-dies-1").state is RemoteState.FAILED, interval_sec=0.1)

        assert engine.status("dl-dies-1").kind is FailureKind.WORKER_LOST
        assert start_count(tmp_path) == 1


@marked(DASK)
def test_dask_that_runs_tasks_again_is_refused(tmp_path: Path):
    with (
        dask_cluster(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="3") as address,
        pytest.raises(EngineRefused, match="up to 3 times"),
    ):
        dask(address).status("dl-x")


@marked(DASK)
def test_dask_task_is_found_by_another_client(dask_address: str, tmp_path: Path):
    name = f"dl-found-{time.time_ns()}"
    dask(dask_address).submit(name, spec("gate", tmp_path))
    eventually(lambda: start_count(tmp_path) == 1)

    other = dask(dask_address)
    assert other.status(name).state is RemoteState.RUNNING
    (tmp_path / "gate").touch()

    eventually(lambda: other.status(name).state is RemoteState.SUCCEEDED, interval_sec=0.05)
    assert other.result(name) == {"rows": 3}


@marked(DASK)
def test_restarted_dask_has_forgotten_its_names(tmp_path: Path):
    with dask_cluster() as address:
        engine = dask(address)
        engine.submit("dl-lost-1", spec("quick", tmp_path))
        eventually(lambda: engine.status("dl-lost-1").state is RemoteState.SUCCEEDED, interval_sec=0.05)

    with pytest.raises(EngineUnavailable):
        engine.status("dl-lost-1")
