"""Jobs' ids begin with the time, so that jobs made together are together in the indexes, whatever makes them."""

from __future__ import annotations

from uuid import RFC_4122, UUID

MANY = 5_000
CHANCE = (1 << 62) - 1  # what the time does not say


def assert_of_their_time(ids: list[UUID], began: float, ended: float) -> None:
    assert {(one.version, one.variant) for one in ids} == {(7, RFC_4122)}
    assert len({one.int & CHANCE for one in ids}) == len(ids) == MANY
    assert int(began * 1000) <= ids[0].int >> 80 <= ids[-1].int >> 80 <= int(ended * 1000) + 1


def test_ids_of_a_plain_insert_grow_with_its_rows(queue_db):
    clock = "SELECT extract(epoch FROM clock_timestamp())::float8"
    began = queue_db.fetch_row(clock)
    queue_db.sql(
        "INSERT INTO dl_jobs (queue, task, lock_key)"
        f" SELECT 'q', 't', lpad(n::text, 5, '0') FROM generate_series(1, {MANY}) n"
    )
    rows = queue_db.sql("SELECT job_id, lock_key FROM dl_jobs ORDER BY job_id")

    assert_of_their_time([UUID(str(job_id)) for job_id, _ in rows], began, queue_db.fetch_row(clock))
    keys = [key for _, key in rows]
    # Two of one microsecond may change places.
    assert sum(here != there for here, there in zip(keys, sorted(keys), strict=True)) < MANY // 10
    assert sorted(run.lock_key for run in queue_db.claim(10)) == keys[:10], (
        "of one time, they are claimed in that order"
    )


def test_ids_of_the_functions_in_sql_grow(queue_db):
    asked = '[{"queue": "q", "task": "t", "lock_key": "a"}, {"queue": "q", "task": "t", "lock_key": "b"}]'
    made = [UUID(str(row[0])) for row in queue_db.sql("SELECT job_id FROM dl_enqueue_many(%s) ORDER BY n", asked)]
    assert made == sorted(made)
    assert {one.version for one in made} == {7}
