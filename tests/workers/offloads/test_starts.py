"""What a job shows of its work on Kubernetes: why it has not started, its progress, its last lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.offload import RemoteState, RemoteStatus
from dataloader.workers.pool import WorkerPool
from tests.support.fake_engine import FakeExecutor
from tests.support.fake_kubernetes import FakeKubernetes
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import OffloadFixture

WHY = 'Back-off pulling image "acme:1"'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeKubernetes]:
    made = FakeKubernetes(tmp_path).up()
    yield made
    made.close()


def start(offloads: OffloadFixture, cluster: FakeKubernetes, **settings: Any) -> WorkerPool:
    of_engine = {"address": cluster.address, "namespace": "loads", "image": "acme:1", "token": cluster.token}
    return offloads.start(engines=Engines({"kubernetes": {**of_engine, **settings}}))


def add(offloads: OffloadFixture, task: str, mode: str, **options: Any) -> UUID:
    return offloads.add(task, mode, engine="kubernetes", job={"max_attempts": 1}, options=options)


def progress_of(offloads: OffloadFixture, job_id: UUID) -> dict[str, Any]:
    return dict(offloads.pools.queue_fixture.job(job_id).progress)


def explanation(offloads: OffloadFixture, job_id: UUID) -> str:
    (reason, *_) = JobExplainer(offloads.pools.queue_fixture.session, FEATURES).explain(job_id).reasons
    return reason.message


@pytest.mark.parametrize("task", ["blocking", "waiting"])
def test_work_that_cannot_start_fails_with_its_reason(offloads: OffloadFixture, cluster: FakeKubernetes, task: str):
    cluster.missing_images["acme:1"] = WHY
    start(offloads, cluster, start_timeout=2)

    job_id = add(offloads, task, "quick")

    if task == "blocking":
        eventually(lambda: WHY in progress_of(offloads, job_id).get("engine", ""))
    else:
        eventually(lambda: WHY in explanation(offloads, job_id), message="`why` has it")
    error = offloads.failed(job_id).error or ""
    assert f"has not started, and was stopped: within 2 s (start_timeout): ImagePullBackOff: {WHY}" in error
    assert cluster.jobs == {}, "nothing is left that could start later"


def test_progress_of_a_waiting_job_is_shown(offloads: OffloadFixture, cluster: FakeKubernetes):
    start(offloads, cluster)

    job_id = add(offloads, "waiting", "progress")

    eventually(lambda: progress_of(offloads, job_id) == {"processed": 3, "total": 4})
    assert offloads.pools.queue_fixture.wait_state(job_id) == "waiting"
    offloads.open_gate()
    assert offloads.succeeded(job_id).progress["processed"] == 3


@pytest.mark.parametrize("task", ["blocking", "waiting"])
def test_failure_has_the_last_lines(offloads: OffloadFixture, cluster: FakeKubernetes, task: str):
    start(offloads, cluster)

    error = offloads.failed(add(offloads, task, "fails")).error or ""

    assert "failed: exit code 1: BackoffLimitExceeded" in error
    assert error.endswith("begun\nit broke")


def test_used_up_quota_is_waited_for(offloads: OffloadFixture, cluster: FakeKubernetes):
    cluster.quota = 0
    start(offloads, cluster)

    job_id = add(offloads, "blocking", "quick")

    eventually(lambda: "full since" in progress_of(offloads, job_id).get("engine", ""))
    eventually(lambda: any("accepts no more work for now" in line for line in offloads.log(job_id, "note")))
    cluster.quota = None
    assert offloads.succeeded(job_id).attempt == 1


def test_work_that_starts_and_ends_between_two_polls_is_pending_no_more(
    offloads: OffloadFixture, monkeypatch: pytest.MonkeyPatch
):
    real_status, is_first = FakeExecutor.status, iter((True,))

    def status(executor: FakeExecutor, name: str) -> RemoteStatus:
        if next(is_first, False):
            return RemoteStatus(RemoteState.PENDING, detail="in a queue")
        eventually(lambda: real_status(executor, name).state.is_over)
        return real_status(executor, name)

    monkeypatch.setattr(FakeExecutor, "status", status)
    offloads.start()

    job = offloads.succeeded(offloads.add("blocking", "quick"))

    assert job.progress["engine"] == "available"
