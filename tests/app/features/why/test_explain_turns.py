"""Why a job of a fair queue waits."""

from __future__ import annotations

from dataloader.app.acts.reasons import ReasonCode
from dataloader.app.features.registry import FEATURES
from dataloader.app.features.why.explain import JobExplainer
from dataloader.app.state.queues import Queues


def test_a_job_of_a_fair_queue_waits_for_its_turn(queue_db):
    Queues(queue_db.session).change_settings("q", fair="args.tenant")
    for n in range(3):
        queue_db.enqueue(f"a{n}", args={"tenant": "a"})
    queue_db.enqueue("b", args={"tenant": "b"})
    last = queue_db.enqueue("last", args={"tenant": "a"})

    explanation = JobExplainer(queue_db.session, FEATURES).explain(last)

    (reason,) = (reason for reason in explanation.reasons if reason.code is ReasonCode.TENANTS_IN_TURN)
    assert reason.message == (
        "Queue 'q' serves 2 tenants in turn, by args.tenant. Of its tenant 'a' 3 jobs are before it, and 0 running."
    )
    assert reason.details == {"tenant": "a", "ahead": 3, "running": 0, "tenants": 2}
    assert explanation.position is None
    queue_db.sql("DELETE FROM dl_queues")
