"""The progress of a job over time: by the API and on the job's page, which both let its worker save it at once."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest

from dataloader.app.features.jobs.run_follower import RunFollower
from dataloader.app.queue.job import ClaimedJob, Status
from tests.support.queue_fixture import QueueFixture


@pytest.fixture
def own_dsn(dsn: str) -> str:
    """The database of the client."""
    return dsn


@pytest.fixture
def run(own_queue_db: QueueFixture) -> ClaimedJob:
    """A run of a minute and a half so far, with a second attempt's row of progress every five seconds."""
    db = own_queue_db
    job_id = db.enqueue("k", max_attempts=3)
    (first,) = db.claim()
    save(db, first, done=7, seconds_ago=200)
    db.settle(first, Status.QUEUED)
    (second,) = db.claim()
    db.sql("UPDATE dl_job_events SET ts = ts - interval '90 s' WHERE kind = 'picked' AND payload ->> 'attempt' = '2'")
    db.sql("UPDATE dl_jobs SET heartbeat_at = heartbeat_at - interval '90 s'")
    for n in range(17):
        save(db, second, done=n * 50, seconds_ago=85 - n * 5)
    assert second.id == job_id
    return second


def save(db: QueueFixture, run: ClaimedJob, *, done: float, seconds_ago: float) -> None:
    db.sql(
        "INSERT INTO dl_progress (job_id, run_id, ts, progress)"
        " VALUES (%s, %s, clock_timestamp() - %s * interval '1 s', %s)",
        *(str(run.id), str(run.run_id), seconds_ago, f'{{"processed": {done}, "total": 2000, "unit": "rows"}}'),
    )


def test_progress_has_points_rate_and_time_left(client, run):
    path = f"/api/v1/jobs/{run.id}/progress"

    answer = client.get(path).json

    assert (answer["job_id"], answer["status"], answer["attempt"], answer["run"]) == (str(run.id), "running", 2, 1)
    assert (answer["run_id"], answer["finished_at"], answer["stalled_sec"]) == (str(run.run_id), None, None)
    assert [point["done"] for point in answer["points"]] == [n * 50 for n in range(17)]
    assert answer["points"][-1] | {"at": ""} == {"at": "", "done": 800, "total": 2000, "unit": "rows"}
    assert (answer["rate"], answer["remaining_sec"]) == (pytest.approx(10, rel=0.1), pytest.approx(115, abs=15))
    few = client.get(path, query_string={"limit": 3}).json
    assert [point["done"] for point in few["points"]] == [0, pytest.approx(400, abs=50), 800]
    assert few["rate"] == answer["rate"]
    earlier = client.get(path, query_string={"attempt": 1}).json
    assert (earlier["attempt"], [point["done"] for point in earlier["points"]]) == (1, [7])
    assert (earlier["remaining_sec"], earlier["finished_at"] is None) == (None, False)
    unknown = client.get(path, query_string={"attempt": 9}).json
    assert (unknown["attempt"], unknown["points"], unknown["rate"]) == (None, [], None)


@pytest.mark.parametrize(
    ("job_id", "query", "status"),
    [
        (uuid4(), "", 404),
        ("none", "", 404),
        (None, "limit=0", 400),
        (None, "limit=501", 400),
        (None, "attempt=x", 400),
        (None, "since=1", 400),
    ],
)
def test_unknown_jobs_and_parameters_are_refused(client, trigger, job_id, query, status):
    response = client.get(f"/api/v1/jobs/{job_id or trigger()}/progress?{query}")

    assert response.status_code == status, response.text


def test_progress_of_an_ended_job_has_its_last_value(client, own_queue_db, run):
    assert client.get(f"/api/v1/jobs/{own_queue_db.enqueue('other')}/progress").json["points"] == []
    own_queue_db.settle(run, progress={"processed": 2000, "total": 2000, "unit": "rows"})

    answer = client.get(f"/api/v1/jobs/{run.id}/progress").json

    assert (answer["points"][-1]["done"], answer["points"][-1]["at"]) == (2000, answer["finished_at"])
    assert (answer["remaining_sec"], answer["rate"]) == (None, pytest.approx(2000 / 85, rel=0.1))


def test_page_draws_progress_with_its_figures(client, own_queue_db, run):
    page = client.get(f"/jobs/{run.id}").text

    bar = re.search(r'<div id="progress">.*?</div>', page, re.DOTALL)
    assert bar is not None
    assert re.search(r"800 of 2 000 rows · (10|9)[.\d]*/s · (1|2) min[ \ds]* left", bar[0])
    chart = re.search(r'<section class="sec" id="progress-chart".*?</section>', page, re.DOTALL)
    assert chart is not None
    assert re.search(r"800 of 2 000 rows, now (10|9)[.\d]*/s, mean (10|9)[.\d]*/s, highest 1\d[.\d]*/s\.", chart[0])
    (line,) = re.findall(r'points="([^"]+)"', chart[0])
    heights = [float(point.partition(",")[2]) for point in line.split()]
    assert (len(heights), heights[0], heights[-1]) == (17, 100, 60)
    assert all(0 <= float(point.partition(",")[0]) <= 100 for point in line.split())
    assert chart[0].count("<title>") > 30  # a bar of the rate every two seconds

    own_queue_db.settle(run, Status.FAILED)
    ended = client.get(f"/jobs/{run.id}").text
    assert 'id="progress-chart"' in ended
    assert " left</small>" not in ended
    assert 'id="progress-chart"' not in client.get(f"/jobs/{own_queue_db.enqueue('other')}").text


def test_looking_at_a_running_job_lets_its_worker_save_progress_at_once(client, own_queue_db, run, trigger):
    listener = own_queue_db.listener("dl_control")

    for path in (f"/api/v1/jobs/{run.id}/status", f"/api/v1/jobs/{trigger(lock_key='waits')}/progress"):
        client.get(path)
    assert [line for line in listener.payloads() if line.startswith("follow")] == []
    for path in (f"/jobs/{run.id}", f"/api/v1/jobs/{run.id}/progress", f"/jobs/{run.id}"):
        assert client.get(path).status_code == 200

    assert [line for line in listener.payloads() if line.startswith("follow")] == [f"follow {run.run_id}"]


def test_run_is_followed_once_an_interval_and_failures_are_ignored():
    times, calls = [0.0], []

    class Away:
        schema = "public"

        def execute(self, name, parameters=None):
            calls.append((times[0], name, parameters["run_id"]))
            raise RuntimeError("cannot execute NOTIFY during recovery")

    follower = RunFollower(Away(), clock=lambda: times[0])
    first, second = uuid4(), uuid4()
    for times[0] in (0.0, 1.0, 9.0, 10.0, 21.0):
        follower.follow(Status.RUNNING, first)
        follower.follow(Status.SUCCEEDED, second)
        follower.follow(Status.RUNNING, None)
    follower.follow(Status.RUNNING, second)

    assert calls == [
        *((at, "follow_run", str(first)) for at in (0.0, 10.0, 21.0)),
        (21.0, "follow_run", str(second)),
    ]
