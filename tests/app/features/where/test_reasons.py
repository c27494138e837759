"""That `why` names who blocks a statement of a running job."""

from __future__ import annotations

from uuid import UUID

import pytest

from dataloader.app.acts.reasons import ExplanationReason
from dataloader.app.features.targets.servers import TargetServers
from dataloader.app.features.where import reasons
from dataloader.app.features.where.reasons import WhereReasons
from dataloader.app.features.where.sampler_options import WhereOptions
from tests.app.features.where.conftest import WhereFixture
from tests.app.features.where.test_sessions import UPDATE, is_blocked, open_transaction


def read(where: WhereFixture, job_id: UUID) -> list[ExplanationReason]:
    job = where.pools.queue_fixture.job(job_id)
    return list(WhereReasons(where.app_pool, WhereOptions(TargetServers(where.targets))).of_running(job))


def test_blocked_statement_in_a_named_target_is_a_reason(
    where: WhereFixture, target_dsn: str, monkeypatch: pytest.MonkeyPatch
):
    where.targets["warehouse"] = target_dsn
    with open_transaction(target_dsn, UPDATE):
        job_id = where.start("query", statement=UPDATE, target="warehouse")
        where.locate_until(job_id, is_blocked)
        monkeypatch.setattr(reasons, "_MIN_LOCK_WAIT_SEC", 1000.0)
        brief = read(where, job_id)
        monkeypatch.setattr(reasons, "_MIN_LOCK_WAIT_SEC", 0.0)
        (reason,) = read(where, job_id)
        where.pools.queue_fixture.sql("INSERT INTO dl_task_targets (task, target) VALUES ('query', 'warehouse')")
        (other,) = read(where, job_id)

    assert brief == []
    assert reason.code == "sql_blocked"
    assert reason.message.startswith("A statement has waited ")
    assert (reason.details["server"], other.details["server"]) == ("queue server", "warehouse")
    assert reason.details["session"]["waits_for"] == [reason.details["blockers"][0]["pid"]]


def test_running_job_that_waits_for_no_lock_has_no_reason(where: WhereFixture):
    job_id = where.start("stay")

    assert read(where, job_id) == []
