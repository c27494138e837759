"""Names that ended long ago are deleted, here and at their engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dataloader.app.features.offload.rows import Offloads
from dataloader.pipelines.executors import Engines
from dataloader.pipelines.offload import OffloadSpec, RemoteState
from dataloader.workers.offloads.pruning import prune_offloads
from tests.support.fake_engine import FakeEngine, FakeExecutor
from tests.support.queue_fixture import QueueFixture
from tests.support.waiting import eventually
from tests.workers.offloads.offload_fixture import program


@pytest.fixture
def queue(dsn: str):
    made = QueueFixture(dsn)
    yield made
    made.close()


def add(queue: QueueFixture, name: str, *, days: int, engine: str = "fake") -> None:
    queue.sql(
        "INSERT INTO dl_offloads (name, job_id, run_id, call, number, engine, fingerprint, fence_token, ended_at,"
        "                         outcome)"
        " SELECT %s, gen_random_uuid(), gen_random_uuid(), '1', 1, %s, 'f', 't', now() - make_interval(days => %s),"
        "        'stopped'",
        name, engine, days,
    )  # fmt: skip


def names(queue: QueueFixture) -> list[str]:
    return [name for (name,) in queue.sql("SELECT name FROM dl_offloads ORDER BY name")]


def test_names_of_a_week_ago_are_deleted(queue: QueueFixture, engine: FakeEngine, tmp_path: Path):
    executor = FakeExecutor({"address": engine.address})
    executor.submit("dl-old", OffloadSpec(entrypoint=program("quick", tmp_path, sys.executable)))
    eventually(lambda: executor.status("dl-old").state is RemoteState.SUCCEEDED)
    for name, days in (("dl-old", 8), ("dl-new", 6)):
        add(queue, name, days=days)

    prune_offloads(Offloads(queue.session.execute), Engines(executors={"fake": executor}))

    assert names(queue) == ["dl-new"]
    assert executor.status("dl-old").state is RemoteState.UNKNOWN


def test_name_of_a_job_that_has_not_ended_is_kept(queue: QueueFixture, engine: FakeEngine):
    add(queue, "dl-old", days=31)
    queue.sql("UPDATE dl_offloads SET job_id = %s", str(queue.enqueue_and_claim().id))

    executor = FakeExecutor({"address": engine.address})
    prune_offloads(Offloads(queue.session.execute), Engines(executors={"fake": executor}))

    assert names(queue) == ["dl-old"]


def test_engine_that_is_away_is_asked_again(queue: QueueFixture, engine: FakeEngine):
    executor = FakeExecutor({"address": engine.address})
    engine.down()
    add(queue, "dl-old", days=8)
    add(queue, "dl-forgotten", days=31)
    add(queue, "dl-other", days=8, engine="removed")

    prune_offloads(Offloads(queue.session.execute), Engines(executors={"fake": executor}))

    assert names(queue) == ["dl-old", "dl-other"]
