"""What holds a job, as real worker processes' threads and limits have it."""

from __future__ import annotations

from uuid import UUID

from dataloader.app.acts.reasons import ReasonCode
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.queue.job import Status
from dataloader.app.state.queues import Queues
from dataloader.workers.dispatcher import Dispatcher
from tests.support import eventually
from tests.support.recording import record_calls
from tests.support.worker_pool_fixture import WorkerPoolFixture


def codes(worker_pools: WorkerPoolFixture, job_id: UUID) -> list[str]:
    return [
        reason.code for reason in JobExplainer(worker_pools.queue_fixture.session, FEATURES).explain(job_id).reasons
    ]


def test_busy_threads_of_queue_delay_job_despite_idle_queues(worker_pools):
    worker_pools.listening_pool({"a": 2, "b": 2})
    for n in range(2):
        worker_pools.add_job("held", queue="a", args={"n": n})
    eventually(lambda: len(worker_pools.gate.arrived) == 2, message="both run")

    assert codes(worker_pools, worker_pools.add_job(queue="a")) == ["threads_busy"]


def test_per_worker_limit_delays_job_despite_idle_threads(worker_pools, monkeypatch):
    applied = record_calls(monkeypatch, Dispatcher, "apply_settings")
    Queues(worker_pools.queue_fixture.session).change_settings("q", per_worker=1)
    worker_pools.listening_pool({"q": 2})
    eventually(lambda: any(settings["q"].max_in_process == 1 for _, settings in applied), message="the process knows")
    worker_pools.add_job("held")
    eventually(lambda: worker_pools.gate.arrived, message="one runs")

    job_id = worker_pools.add_job("held")
    (reason,) = JobExplainer(worker_pools.queue_fixture.session, FEATURES).explain(job_id).reasons
    assert reason.code is ReasonCode.PER_WORKER_LIMIT
    assert reason.details["per_worker"] == 1
    Queues(worker_pools.queue_fixture.session).change_settings("q", per_worker=3)  # the pool starts a third thread

    eventually(lambda: len(worker_pools.gate.arrived) == 2, message="the limit was what held it")
    eventually(
        lambda: worker_pools.queue_fixture.fetch_row("SELECT queue_threads ->> 'q' FROM dl_workers") == "3",
        message="the third is known",
    )


def test_worker_that_shuts_down_holds_a_job(worker_pools):
    pool = worker_pools.listening_pool({"q": 2})
    worker_pools.add_job("held")
    eventually(lambda: worker_pools.gate.arrived, message="one runs")

    pool.stop_claiming()
    job_id = worker_pools.add_job()

    eventually(
        lambda: codes(worker_pools, job_id) == ["workers_draining"], message=lambda: str(codes(worker_pools, job_id))
    )


def test_thread_kept_by_a_run_without_lease_counts_as_busy(worker_pools):
    worker_pools.listening_pool({"q": 1})
    lost = worker_pools.add_job("stubborn", max_attempts=1)
    eventually(lambda: worker_pools.gate.arrived, message="it runs")
    eventually(
        lambda: worker_pools.queue_fixture.expire_lease(lost) or worker_pools.queue_fixture.reap(lost),
        message="it is reaped",
    )
    job_id = worker_pools.add_job()

    eventually(
        lambda: codes(worker_pools, job_id) == ["threads_busy"], message=lambda: str(codes(worker_pools, job_id))
    )
    worker_pools.gate.open()
    worker_pools.wait_for_status(job_id, Status.SUCCEEDED)
