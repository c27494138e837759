"""Where a job is that runs in a thread of its worker process."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from dataloader.app.queue.job import Status
from tests.app.features.where.conftest import WhereFixture


def places(thread: dict[str, Any]) -> list[tuple[str, str]]:
    return [(frame["function"], frame["kind"]) for frame in thread["frames"]]


def test_stack_of_a_thread_names_the_task_first(where: WhereFixture):
    job_id = where.start("stay")

    answer = where.locate_at(job_id, "wait_for")

    (thread,) = answer["threads"]
    assert (answer["isolation"], answer["problem"], answer["processes"]) == ("thread", None, [])
    assert places(thread)[:2] == [("wait_for", "task"), ("stay_here", "task")]
    assert {kind for _, kind in places(thread)[2:]} == {"dataloader", "standard"}
    frame = thread["frames"][1]
    assert (frame["file"].endswith("where_tasks.py"), frame["repeated"]) == (True, 1)
    assert answer["summary"].startswith("wait_for in support/where_tasks.py:")
    assert "never shown" not in str(answer)
    assert 0 <= answer["cpu_percent"] <= 100
    assert (answer["status"], answer["attempt"]) == ("running", 1)


def test_deep_recursion_is_one_frame_with_its_number(where: WhereFixture):
    job_id = where.start("recurse", depth=700)

    answer = where.locate_at(job_id, "wait_for")

    (thread,) = answer["threads"]
    frames = [frame for frame in thread["frames"] if frame["kind"] == "task"]
    assert [(f["function"], f["repeated"]) for f in frames[:3]] == [
        ("wait_for", 1), ("recurse", 1), ("recurse", 700),
    ]  # fmt: skip
    assert thread["frame_count"] > 700
    assert len(thread["frames"]) < 30


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ("awaits", ["wait_in_coroutine", "await_here"]),
        ("yields", ["yield_here"]),
        ("computes", ["wait_for", "compute_here"]),
    ],
)
def test_coroutine_is_shown_where_it_awaits(where: WhereFixture, task: str, own: list[str]):
    job_id = where.start(task)

    answer = where.locate_at(job_id, own[-1])

    (thread,) = answer["threads"]
    assert [name for name, kind in places(thread) if kind == "task"] == own
    assert answer["summary"].startswith(f"{own[0]} in support/where_tasks.py:")


def test_odd_names_are_cut_and_storable(where: WhereFixture):
    job_id = where.start("odd")

    answer = where.locate_at(job_id, "wait_for")

    odd = answer["threads"][0]["frames"][1]
    assert odd["function"].startswith("q\N{REPLACEMENT CHARACTER}<b>")
    assert (len(odd["function"]), len(odd["file"])) == (100, 200)


def test_job_that_does_not_run_has_no_stack(where: WhereFixture):
    waiting = where.pools.add_job("stay")

    answer = where.locate(waiting)

    assert (answer["status"], answer["problem"]) == ("queued", "The job has not started yet.")
    assert (answer["summary"], answer["threads"], answer["servers"]) == (answer["problem"], [], [])
    where.release()
    ended = where.start_to_end()
    assert where.locate(ended)["problem"] == f"The job has ended: it is {Status.SUCCEEDED.value}."


def test_unknown_job_is_refused(where: WhereFixture):
    assert where.client.get(f"/api/v1/jobs/{uuid4()}/where").status_code == 404
    assert where.client.get("/api/v1/jobs/none/where").status_code == 404


def test_nothing_is_written_while_nothing_asks(where: WhereFixture):
    job_id = where.start("stay")
    assert where.pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_where") == 0

    where.locate_at(job_id, "wait_for")
    where.pools.queue_fixture.sql("UPDATE dl_where SET answered_at = answered_at - interval '2 minutes', run_id = %s",
                                  str(uuid4()))  # fmt: skip
    where.locate_at(job_id, "wait_for")

    run_id = where.pools.queue_fixture.job(job_id).run_id
    assert [str(run) for (run,) in where.pools.queue_fixture.sql("SELECT run_id FROM dl_where")] == [str(run_id)]
