"""The rate, the time left and the points of an attempt's progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import uuid4

import pytest

from dataloader.app.features.jobs.job_detail import JobReader
from dataloader.app.features.jobs.progress_history import (
    MAX_POINTS,
    Estimate,
    ProgressPoint,
    ProgressReader,
    estimate,
    thin,
)
from dataloader.app.features.retention.rows import MAX_PARTITION_SEC
from dataloader.app.queue.job import RunRef
from tests.support.queue_fixture import QueueFixture

START = datetime(2030, 1, 31, 5, tzinfo=UTC)
HOURS_3 = 10_800


def made(*amounts: tuple[float, float], total: float | None = 10_000, unit: str | None = "rows") -> list[ProgressPoint]:
    """Points of (second, done)."""
    return [ProgressPoint(START + timedelta(seconds=second), done, total, unit) for second, done in amounts]


def steady(rate: float, first: int, last: int, *, every: int = 5, done: float = 0) -> list[tuple[float, float]]:
    return [(second, done + (second - first) * rate) for second in range(first, last + 1, every)]


SLOWER = [*steady(2, 0, 3000), *steady(0.5, 3005, 4000, done=6000)]  # for a quarter of the time


@pytest.mark.parametrize(
    ("points", "now", "expected"),
    [
        ([], 5, Estimate()),
        (made((1, 10)), 5, Estimate()),
        (made((0, 0), (10, 100)), 10, Estimate(10, 990)),
        (made((0, 0), (10, 100)), 15, Estimate(10, 985)),  # the time since the last change counts
        (made((0, 0), (10, 9_950)), 60, Estimate(995, 0)),  # never less than nothing
        (made((0, 500_000), (10, 500_100), total=1_000_000), 10, Estimate(10, 49_990)),  # resumed
        (made(*SLOWER), 4000, Estimate(0.5, 7_005)),  # the last tenth, not the mean of 1.6
        (made(*steady(1, 0, 600)), 661, Estimate(stalled_sec=61)),
        (made(*steady(1, 0, 6000, every=600)), 6_900, Estimate(1, 3_100)),  # it advances every ten minutes
        (made(*steady(1, 0, 6000, every=600)), 7_300, Estimate(stalled_sec=1_300)),
        (made((0, 0), (10, 100), total=None), 10, Estimate(10)),
        (made((0, 0), (10, 100), total=50), 10, Estimate(10)),
        (made((0, 900), (10, 1000), (11, 0), (21, 50)), 21, Estimate(5, 1_990)),  # the count began again
        ([*made((0, 9), (10, 10), unit="files"), *made((11, 20), (21, 30))], 21, Estimate(1, 9_970)),
        (made((0, 0), (10, 100), (20, 100), (30, 100)), 30, Estimate(10, 970)),  # something else has changed
        (made((0, 5), (0, 9)), 1, Estimate()),
    ],
)
def test_estimate_is_of_the_recent_past(points, now, expected):
    assert estimate(points, now=START + timedelta(seconds=now), has_ended=False) == expected


def test_estimate_of_an_ended_attempt_is_its_mean():
    assert estimate(made(*SLOWER), now=START, has_ended=True) == Estimate(6_497.5 / 4000)


def test_thinned_points_are_even_in_time_with_the_last_one():
    points = made(*steady(1, 0, 1000), *((1001 + n / 100, 2000) for n in range(100)))

    for limit in (1, 2, 3, 7, 100, 1000):
        thinned = thin(points, limit)
        assert len(thinned) <= limit
        assert thinned[-1] == points[-1]
        pauses = [(b.at - a.at).total_seconds() for a, b in pairwise(thinned)]
        assert all(pause <= 2 * 1002 / (limit - 1) + 5 for pause in pauses)


def test_points_of_long_run_are_read_evenly(queue_db: QueueFixture):
    """Of a run of three hours, with rows of others, and of another run of the job, between its own."""
    run = queue_db.enqueue_and_claim("k")
    queue_db.sql(
        "INSERT INTO dl_progress (job_id, run_id, ts, progress)"
        " SELECT CASE kind WHEN 1 THEN %s ELSE %s END::uuid, CASE kind WHEN 0 THEN %s ELSE %s END::uuid,"
        " clock_timestamp() + n * interval '5 s', "
        " jsonb_build_object('processed', n * 10, 'total', 21600, 'unit', 'rows')"
        " FROM generate_series(0, 2159) n, generate_series(0, 2) other (kind) ORDER BY n, kind",
        *map(str, (uuid4(), run.id, run.run_id, uuid4())),
    )
    (record,) = JobReader(queue_db.session).attempts(run.id)

    points = ProgressReader(queue_db.session).points(run.id, record)

    assert 200 <= len(points) <= MAX_POINTS
    assert (points[0].done, points[-1]) == (0, ProgressPoint(points[-1].at, 21_590, 21_600, "rows"))
    assert [p.done for p in points[-30:]] == [21_590 - 10 * n for n in reversed(range(30))]
    pauses = [(b.at - a.at).total_seconds() for a, b in pairwise(points)]
    assert all(5 <= pause <= HOURS_3 / 200 + 5 for pause in pauses)


def test_progress_of_old_partition_is_read(queue_db: QueueFixture):
    """Ids are as old as the start of their partition."""
    queue_db.sql(
        "SELECT setval('dl_progress_progress_id_seq', dl_first_id_at(clock_timestamp() - %s * interval '1 s'))",
        str(MAX_PARTITION_SEC),
    )
    run = queue_db.enqueue_and_claim("k")
    queue_db.queue.save_progress([(RunRef(run.id, run.run_id), {"done": 1})])
    (record,) = JobReader(queue_db.session).attempts(run.id)

    assert [point.done for point in ProgressReader(queue_db.session).points(run.id, record)] == [1]
    assert queue_db.job(run.id).progress == {"done": 1}


def test_odd_values_are_left_out(queue_db: QueueFixture):
    run = queue_db.enqueue_and_claim("k")
    odd = (
        '{"processed": 1, "total": 0, "unit": 3}', '{}', '{"processed": "2"}', '{"processed": -1}',
        '{"processed": 1e400}',
        '{"processed": 3, "total": [1], "unit": "postgres://u:hidden@h/d"}', '{"processed": true}', '[1]', '"text"',
        '{"done": 4, "total": 8, "unit": "pages"}', '{"processed": null, "done": 9}',
    )  # fmt: skip
    for text in odd:
        queue_db.sql(
            "INSERT INTO dl_progress (job_id, run_id, ts, progress) VALUES (%s, %s, clock_timestamp(), %s)",
            *map(str, (run.id, run.run_id)),
            text,
        )
    (record,) = JobReader(queue_db.session).attempts(run.id)

    points = ProgressReader(queue_db.session).points(run.id, record)

    assert [(p.done, p.total, p.unit) for p in points] == [
        (1, None, None),
        (3, None, "postgres://u:***@h/d"),
        (4, 8, "pages"),
    ]
