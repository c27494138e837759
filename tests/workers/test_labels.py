"""A worker process claims only jobs whose tasks require no label that it lacks."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.job import Status
from dataloader.app.state.queues import Queues
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.claimer import Claimer
from tests.support import eventually
from tests.support.worker_pool_fixture import WorkerPoolFixture


@pytest.fixture
def tasks(worker_pools: WorkerPoolFixture) -> Pipelines:
    worker_pools.pipelines.register("train", requires={"gpu": True, "spot": False})(worker_pools._run_held)
    return worker_pools.pipelines


def test_job_runs_where_the_labels_are(worker_pools: WorkerPoolFixture, tasks: Pipelines):
    plain = worker_pools.listening_pool()
    job_id = worker_pools.add_job("train")
    explainer = JobExplainer(worker_pools.queue_fixture.session, FEATURES)
    deferred = eventually(lambda: worker_pools.queue_fixture.job(job_id).error)
    (reason,) = explainer.explain(job_id).reasons
    worker_pools.wait_for_status(worker_pools.add_job("quick"), Status.SUCCEEDED)

    assert deferred == "no live worker has the labels that are required by the task 'train'"
    assert reason.code == "labels_missing"
    assert reason.message == ("No live worker of queue 'q' has gpu=true (task 'train' requires gpu=true, spot=false).")
    assert explainer.explain_task("train", queue=None, default_queue="q").reasons[0].code == "labels_missing"

    on_spot = worker_pools.listening_pool(labels={"gpu": True, "spot": True})
    (reason,) = explainer.explain(job_id).reasons
    assert "has gpu=true, spot=false (task" in reason.message

    worker_pools.gate.open()
    fits = worker_pools.listening_pool(labels={"gpu": True})
    worker_pools.wait_for_status(job_id, Status.SUCCEEDED)

    served = {found.worker_id: found for found in Queues(worker_pools.queue_fixture.session).workers()}
    assert served[plain.id].unserved_tasks == {"train": {"gpu": True, "spot": False}}
    assert served[on_spot.id].labels == {"gpu": True, "spot": True}
    assert "train" in served[fits.id].tasks


def test_worker_without_the_label_does_not_spin(
    worker_pools: WorkerPoolFixture, tasks: Pipelines, monkeypatch: pytest.MonkeyPatch
):
    claims: dict[Any, list[float]] = {}
    claim = Claimer.claim

    def counted(self: Claimer, *args: Any, **options: Any) -> Any:
        claims.setdefault(self._info.id, []).append(time.monotonic())
        return claim(self, *args, **options)

    monkeypatch.setattr(Claimer, "claim", counted)
    fits = worker_pools.listening_pool({"q": 1}, labels={"gpu": True})
    plain = worker_pools.listening_pool({"q": 1})
    for _ in range(20):
        worker_pools.add_job("train")  # one runs, and the others stay ready for its process
    eventually(lambda: fits.state().busy == 1)
    claims.clear()
    eventually(lambda: len(claims.get(plain.id, ())) >= 6, 30)

    times = claims[plain.id]
    assert times[5] - times[0] > 1  # of a notification a second, and a look for unknown tasks after it
    worker_pools.gate.open()
