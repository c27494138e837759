"""dl_enqueue and dl_enqueue_many, from SQL and from Python."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg2
import pytest
from psycopg2.extensions import make_dsn

from dataloader.app.errors import InvalidJob
from dataloader.app.queue.batch import Outcome, enqueue_batch
from dataloader.app.queue.job import NewJob
from tests.support.databases import another_role
from tests.support.queue_fixture import BackgroundCall

FINE: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k"}


def many(queue_db, *requests, whole=False):
    return [
        (row[0], row[1])
        for row in queue_db.sql(
            "SELECT outcome, coalesce(field || ' ' || detail, detail) FROM dl_enqueue_many(%s, %s)",
            json.dumps(requests),
            whole,
        )
    ]


def test_one_from_sql_is_as_one_over_http(queue_db):
    job_id = UUID(
        queue_db.fetch_row("SELECT dl_enqueue('q', 't', 'k', '{\"n\": 1}', priority => 3, idempotency_key => 'once')")
    )

    job = queue_db.job(job_id)
    assert (job.args, job.priority, job.max_attempts, job.lease_ttl_sec) == ({"n": 1}, 3, 5, 60)
    assert queue_db.wait_state(job_id) == "ready"
    assert queue_db.event_kinds(job_id) == ["queued"]
    assert queue_db.queue.enqueue(NewJob(**FINE, args={"n": 1}, idempotency_key="once")).job_id == job_id
    assert (
        UUID(queue_db.fetch_row("SELECT dl_enqueue('q', 't', 'k', '{\"n\": 1}', idempotency_key => 'once')")) == job_id
    )
    with pytest.raises(psycopg2.errors.UniqueViolation, match="belongs to job"):
        queue_db.sql("SELECT dl_enqueue('q', 'u', 'k', idempotency_key => 'once')")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="priority must be 0 or more"):
        queue_db.sql("SELECT dl_enqueue('q', 't', 'k', priority => -1)")
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="limits must be an object"):
        queue_db.sql("SELECT dl_enqueue('q', 't', 'k', limits => '{\"w\": null}')")


NULLS = json.dumps(
    [{**FINE, "args": {"a": None}, "producer": "p", "live_key": None, "after": None, "expires_at": None}]
)


@pytest.mark.parametrize(
    "call",
    [
        "SELECT dl_enqueue('q', 't', 'k', '{\"a\": null}', producer => 'p')",
        f"SELECT job_id FROM dl_enqueue_many('{NULLS}')",
    ],
    ids=["dl_enqueue", "dl_enqueue_many"],
)
def test_request_whose_keys_are_null_takes_one_insert(queue_db, call):
    connection = queue_db.connect()
    with connection.cursor() as cursor:  # only requests that need more than the INSERT are parsed
        cursor.execute(
            "CREATE OR REPLACE FUNCTION dl_parse_requests(jobs jsonb) RETURNS SETOF dl_enqueue_request"
            " LANGUAGE plpgsql AS $$ BEGIN RAISE 'the request is parsed'; END $$"
        )
        cursor.execute(call)
        (job_id,) = cursor.fetchone()
        cursor.execute("SELECT args, producer, live_key, expires_at FROM dl_jobs WHERE job_id = %s", (job_id,))
        assert cursor.fetchone() == ({"a": None}, "p", None, None)
    connection.rollback()


def test_names_of_one_letter_are_not_blank(queue_db):
    with queue_db.connect() as connection, connection.cursor() as cursor:
        for letter in "tnrfv":
            cursor.execute("SELECT dl_enqueue(%(letter)s, %(letter)s, %(letter)s)", {"letter": letter})


def test_what_is_enqueued_commits_or_not_with_its_caller(queue_db):
    connection, listener = queue_db.connect(), queue_db.listener()
    connection.cursor().execute("SELECT dl_enqueue('q', 't', 'k')")
    connection.rollback()
    assert (queue_db.claim(), listener.payloads()) == ([], [])

    connection.cursor().execute("SELECT dl_enqueue('q', 't', 'k')")
    connection.commit()
    assert listener.payloads() == ["q"]
    assert len(queue_db.claim()) == 1


@pytest.mark.parametrize(
    ("wrong", "output"),
    [
        ({"queue": " "}, "queue must be a text that is not empty"),
        ({"lock_key": " \t\n\r\f\v"}, "lock_key must be a text that is not empty"),
        ({"task": None}, "task is required"),
        ({"queue": "q" * 1001}, "queue must be a text that is not empty, of at most 1000 bytes"),
        ({"task": "é" * 501}, "task must be a text that is not empty, of at most 1000 bytes"),
        ({"lock_key": "k" * 2001}, "lock_key must be a text"),
        ({"args": [1]}, "args must be a JSON object"),
        ({"idempotency_key": ""}, "idempotency_key must be a text"),
        ({"live_key": "\t"}, "live_key must be a text"),
        ({"partition_key": "p" * 2001}, "partition_key must be a text"),
        ({"priority": "high"}, 'invalid input syntax for type integer: "high"'),
        ({"priority": 2**31}, "out of range"),
        ({"available_at": "soon"}, "invalid input syntax for type timestamp"),
        ({"available_at": "infinity"}, "available_at must be a time"),
        ({"max_attempts": 0}, "max_attempts must be 1 or more"),
        ({"lease_ttl_sec": 0}, "lease_ttl_sec must be 1 or more"),
        ({"time_limit_sec": 0}, "time_limit_sec must be 1 or more"),
        ({"retry": 3}, "retry must be a JSON object"),
        ({"prio": 3}, "prio is no field of this request"),
        ({"parent_id": "x"}, "invalid input syntax for type uuid"),
    ],
)
def test_invalid_item_is_reported_and_others_are_enqueued(queue_db, wrong, output):
    (first, (outcome, why), last) = many(queue_db, FINE, FINE | wrong, FINE)

    assert (first[0], outcome, last[0]) == ("created", "invalid", "created")
    assert output in why


def test_neither_object_nor_array_is_reported(queue_db):
    assert many(queue_db, 3, {}) == [("invalid", "is no JSON object"), ("invalid", "queue is required")]
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="array"):
        queue_db.sql("SELECT * FROM dl_enqueue_many('{}')")
    assert many(queue_db) == []


def test_with_whole_nothing_is_made_when_something_is_wrong(queue_db):
    key = FINE | {"idempotency_key": "a"}

    assert [one for one, _ in many(queue_db, key, key, FINE, FINE | {"priority": -1}, whole=True)] == [
        "skipped",
        "skipped",
        "skipped",
        "invalid",
    ]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 0
    assert [one for one, _ in many(queue_db, key, key, FINE, whole=True)] == ["created", "exists", "created"]


def test_uncommitted_key_is_waited_for(queue_db):
    requests = [NewJob(**FINE, idempotency_key=key) for key in "ab"]
    with queue_db.open_transaction() as step:
        step("INSERT INTO dl_jobs (queue, task, lock_key, idempotency_key) VALUES ('q', 't', 'k', 'b')")
        asking = BackgroundCall(enqueue_batch, queue_db.new_session(), requests)
        queue_db.wait_for_lock_waiters()

    assert [made.outcome for made in asking.result()] == [Outcome.CREATED, Outcome.EXISTS]
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs") == 2


def test_all_fields_arrive_and_thousands_are_no_matter(queue_db):
    at = datetime(2100, 1, 1, tzinfo=UTC)
    full = NewJob(
        **FINE, args={"a": [None, "ж"]}, idempotency_key="i", partition_key="p", priority=1, available_at=at,
        max_attempts=2, lease_ttl_sec=30, producer="me", consumer_group="you", live_key="l", time_limit_sec=9,
        retry={"kind": "fixed", "seconds": 1}, tags=["finance"],
    )  # fmt: skip
    made = enqueue_batch(
        queue_db.session, [full, *(NewJob(queue="q", task="t", lock_key=f"k{n}") for n in range(3000))]
    )

    assert {one.outcome for one in made} == {Outcome.CREATED}
    job = queue_db.job(made[0].job_id)
    for name, value in vars(full).items():
        if name not in ("webhook", "traceparent", "parent_id", "after", "debounce", "throttle", "start_within_sec"):
            assert getattr(job, name) == value, name
    assert queue_db.wait_state(job.id) == "scheduled"
    again = enqueue_batch(queue_db.session, [full] * 3000)
    assert {(one.outcome, one.job_id) for one in again} == {(Outcome.EXISTS, job.id)}


def test_tags_are_up_to_twenty_short_texts(queue_db):
    assert many(queue_db, {**FINE, "tags": ["a", "é" * 50]}, {**FINE, "tags": []}, {**FINE, "tags": None}) == [
        ("created", None), ("created", None), ("created", None),
    ]  # fmt: skip
    for tags in ([""], ["é" * 51], ["a"] * 21, [["a"]], [None], "a"):
        ((outcome, _),) = many(queue_db, {**FINE, "tags": tags})
        assert outcome == "invalid", tags
    with pytest.raises(psycopg2.errors.InvalidParameterValue, match="tags must be an array of at most 20 texts"):
        queue_db.sql("SELECT dl_enqueue('q', 't', 'k', tags => ARRAY[''])")
    for tags in ("{}", '{""}', "{NULL}"):
        with pytest.raises(psycopg2.errors.CheckViolation, match="dl_jobs_chk_tags"):
            queue_db.insert("k", tags=tags)
    assert queue_db.fetch_row("SELECT count(*) FROM dl_jobs WHERE tags IS NOT NULL") == 1


def test_what_postgresql_cannot_keep_is_refused_by_name(queue_db):
    with pytest.raises(InvalidJob, match="NUL"):
        enqueue_batch(queue_db.session, [NewJob(**FINE), NewJob(**FINE, args={"x": "\0"})])
    assert enqueue_batch(queue_db.session, []) == []


def test_enqueue_role_needs_no_right_to_tables(own_queue_db):
    queue_db = own_queue_db
    with (
        another_role(queue_db.dsn) as role,
        closing(psycopg2.connect(make_dsn(queue_db.dsn, user=role, password="x"))) as connection,
    ):
        cursor = connection.cursor()
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            cursor.execute("SELECT dl_enqueue('q', 't', 'k')")
        connection.rollback()
        queue_db.sql(f"GRANT EXECUTE ON FUNCTION dl_enqueue_many, dl_enqueue TO {role}")
        cursor.execute("SELECT dl_enqueue('q', 't', 'k')")
        cursor.execute("SELECT count(*) FROM dl_enqueue_many(%s)", (json.dumps([FINE]),))
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            cursor.execute("SELECT FROM dl_jobs")


ODD: tuple[Any, ...] = (
    *("", " \t\n", "x" * 2000, "x" * 2001, "é" * 1001, "null", "infinity", "2030-01-01", "0001-01-01 BC", "9999-12-31"),
    *(0, 1, -1, 2**31, 1.5, True, None, [], {}, {"a": 1}),
)
FIELDS = (
    *(
        "args",
        "partition_key",
        "priority",
        "available_at",
        "max_attempts",
        "lease_ttl_sec",
        "producer",
        "consumer_group",
    ),
    *("time_limit_sec", "retry", "parent_id", "webhook", "traceparent", "tags", "surprise", "$fault"),
)


def test_batch_looked_at_as_a_whole_is_judged_as_row_by_row(queue_db):
    """Rows without keys are put in at once if nothing is wrong; a key of one sends all of them the longer way."""
    good: dict[str, Any] = {"queue": "q", "task": "t", "lock_key": "k"}
    rows: list[Any] = [good | {field: value} for field in FIELDS for value in ODD]
    rows += [good | {field: value} for field in good for value in ODD]
    rows += [{"queue": "q", "task": "t"}, {}, [], "text", None, 5]
    ask = "SELECT outcome, status, field, detail FROM dl_enqueue_many(%s) ORDER BY n LIMIT 1"
    keyed = good | {"live_key": "of another row"}
    for row in rows:
        (at_once,) = queue_db.sql(ask, json.dumps([row]))
        by_row, _ = queue_db.sql(ask.replace("LIMIT 1", "LIMIT 2"), json.dumps([row, keyed]))
        assert at_once == by_row, row
