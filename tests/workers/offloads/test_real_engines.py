"""What only real engines show. Run by `make engines`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dataloader.pipelines.executors import Engines
from dataloader.pipelines.offload import EngineRefused, EngineUnavailable, FailureKind, OffloadSpec, RemoteState
from tests.support.waiting import eventually
from tests.workers.offloads import functions
from tests.workers.offloads.offload_fixture import start_count
from tests.workers.offloads.real_engines import DASK, RAY, DaskCluster, RayHead, dask_cluster, dask_executor


def marked(marks: list[pytest.MarkDecorator]):
    def mark(test):
        for one in marks:
            test = one(test)
        return test

    return mark


@marked(RAY)
@pytest.mark.parametrize(("token", "words"), [({}, "asks for"), ({"token": "another"}, "does not accept")])
def test_ray_head_that_wants_a_token_is_described(ray: RayHead, token: dict[str, str], words: str):
    executor = Engines({"ray": {"address": ray.address, **token}}).get("ray")

    with pytest.raises(EngineUnavailable, match=f'{words} the setting "token" of this engine in DL_EXECUTORS'):
        executor.status("dl-x")
    with pytest.raises(EngineUnavailable, match=words):
        executor.submit("dl-x", OffloadSpec(entrypoint="true"))


def spec(mode: str, folder: Path) -> OffloadSpec:
    return OffloadSpec(call=getattr(functions, mode), args=(str(folder),))


@marked(DASK)
def test_dask_does_not_run_the_task_of_a_lost_worker_again(tmp_path: Path):
    with dask_cluster() as cluster:
        engine = dask_executor(cluster)
        engine.submit("dl-dies-1", spec("dies", tmp_path))

        eventually(lambda: engine.status("dl-dies-1").state is RemoteState.FAILED, interval_sec=0.1)

        assert engine.status("dl-dies-1").kind is FailureKind.WORKER_LOST
        assert start_count(tmp_path) == 1


@marked(DASK)
def test_dask_that_runs_tasks_again_is_refused(tmp_path: Path):
    with (
        dask_cluster(DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="3") as cluster,
        pytest.raises(EngineRefused, match="up to 3 times"),
    ):
        dask_executor(cluster).status("dl-x")


@marked(DASK)
def test_dask_task_is_found_by_another_client(dask: DaskCluster, tmp_path: Path):
    name = f"dl-found-{time.time_ns()}"
    dask_executor(dask).submit(name, spec("gate", tmp_path))
    eventually(lambda: start_count(tmp_path) == 1)

    other = dask_executor(dask)
    assert other.status(name).state is RemoteState.RUNNING
    (tmp_path / "gate").touch()

    eventually(lambda: other.status(name).state is RemoteState.SUCCEEDED, interval_sec=0.05)
    assert other.result(name) == {"rows": 3}


@marked(DASK)
def test_dask_needs_no_package_of_ours(tmp_path: Path):
    def triple(n: int) -> int:
        return 3 * n

    with dask_cluster(PYTHONPATH="", PYTHONSAFEPATH="1") as cluster:
        engine = dask_executor(cluster)
        engine.submit("dl-alone-1", OffloadSpec(call=triple, args=(14,)))

        eventually(lambda: engine.status("dl-alone-1").state.is_over, interval_sec=0.05)
        assert engine.result("dl-alone-1") == 42


@marked(DASK)
def test_restarted_dask_has_forgotten_its_names(tmp_path: Path):
    with dask_cluster() as cluster:
        engine = dask_executor(cluster)
        engine.submit("dl-lost-1", spec("quick", tmp_path))
        eventually(lambda: engine.status("dl-lost-1").state is RemoteState.SUCCEEDED, interval_sec=0.05)

    with pytest.raises(EngineUnavailable):
        engine.status("dl-lost-1")
