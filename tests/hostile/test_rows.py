"""Rows that other services write with plain SQL, whatever is in them: each settles, and none keeps others waiting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from dataloader.app.queue.job import Status
from tests.support import eventually
from tests.support.queue_fixture import list_jobs
from tests.support.worker_pool_fixture import WorkerPoolFixture

MB = 1_000_000

# name → the row's own columns as SQL, in addition to queue, task and lock_key; and how it ends
ROWS: dict[str, tuple[dict[str, str], str, str]] = {
    "args of a gigabyte in 3 kB": (
        {"args": "jsonb_build_object('a', (SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 9000)))"},
        "failed", "args cannot be read: a number in it has more than 310 digits",
    ),
    "args past what a worker takes": (
        {"args": "jsonb_build_object('a', repeat('x', 70000000))"}, "failed", "args cannot be read: more than 67108864",
    ),
    "args of 20 MB": ({"args": "jsonb_build_object('a', repeat('x', 20000000))"}, "succeeded", ""),
    "a number that is no number to Python": ({"args": "'{\"n\": 1e5000}'"}, "failed", "args cannot be decoded"),
    "5,000 levels": ({"args": "(repeat('[', 5000) || repeat(']', 5000))::jsonb"}, "failed", "args cannot be decoded"),
    "5,000 levels of objects": (
        {"args": "(repeat('{\"a\":', 5000) || '1' || repeat('}', 5000))::jsonb"}, "failed", "args cannot be decoded",
    ),
    "a list": ({"args": "'[1]'"}, "failed", "args must be an object, not list"),
    "JSON's null": ({"args": "'null'"}, "failed", "args must be an object, not NoneType"),
    "200,000 values": (
        {"args": "(SELECT jsonb_object_agg(n, n) FROM generate_series(1, 200000) n)"}, "succeeded", "",
    ),
    "a checkpoint of a gigabyte": (
        {"checkpoint": "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 9000))"},
        "failed", "the checkpoint cannot be read",
    ),
    "an undecodable checkpoint": ({"checkpoint": "'1e5000'"}, "failed", "the checkpoint cannot be decoded"),
    "progress of a gigabyte": (
        {"progress": "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 9000))"}, "succeeded", "",
    ),
    "a retry policy of nonsense": ({"retry": "'[[[1e5000]]]'"}, "succeeded", ""),
    "a retry policy of a gigabyte": (
        {"retry": "(SELECT jsonb_agg('1e131071'::jsonb) FROM generate_series(1, 9000))"}, "succeeded", "",
    ),
    "empty texts": (dict.fromkeys(("partition_key", "producer", "consumer_group", "live_key"), "''"), "succeeded", ""),
    "a producer of 1 MB": ({"producer": "repeat('\U0001f600', 250000)"}, "succeeded", ""),
    "a partition of 1 MB": ({"partition_key": "repeat('p', 1000000)"}, "succeeded", ""),
    "an error of 20 MB": ({"error": "repeat('e', 20000000)"}, "succeeded", ""),
    "control characters": ({"producer": "E'\\x01\\x1b[31m\\n\\r'", "partition_key": "E'\\n'"}, "succeeded", ""),
    "before the year 1": ({"available_at": "'4000-01-01 BC'", "created_at": "'4713-01-01 BC'"}, "succeeded", ""),
    "at the beginning of time": ({"available_at": "'-infinity'", "created_at": "'-infinity'"}, "succeeded", ""),
    "the largest numbers": (
        {"priority": "2147483647", "max_attempts": "2147483647", "lease_ttl_sec": "2147483647"}, "succeeded", "",
    ),
    "a limit of no time": ({"time_limit_sec": "-5"}, "succeeded|failed", ""),
}  # fmt: skip


@pytest.fixture
def worker_pools(dsn: str) -> Iterator[WorkerPoolFixture]:
    made = WorkerPoolFixture(dsn)
    yield made
    made.close()


def insert(
    worker_pools: WorkerPoolFixture,
    columns: dict[str, str],
    *,
    key: str = "'k'",
    queue: str = "'q'",
    task: str = "'taker'",
) -> Any:
    names = ["queue", "task", "lock_key", "max_attempts", *columns]
    values = [queue, task, key, "1", *columns.values()]
    if "max_attempts" in columns:
        del names[3], values[3]
    return worker_pools.queue_fixture.fetch_row(
        f"INSERT INTO dl_jobs ({', '.join(names)}) VALUES ({', '.join(values)}) RETURNING job_id"
    )


def test_odd_row_is_readable_settles_and_blocks_no_other(worker_pools: WorkerPoolFixture):
    worker_pools.pipelines.register("taker")(len)
    rows = {
        name: insert(worker_pools, columns, key=f"'key of {name.replace(chr(39), '')}'")
        for name, (columns, _, _) in ROWS.items()
    }
    honest = worker_pools.add_job()

    looked_at = [worker_pools.queue_fixture.job(job_id) for job_id in rows.values()]
    listed = list_jobs(worker_pools.queue_fixture.queue)

    assert len(looked_at) == len(listed) - 1 == len(ROWS)

    worker_pools.listening_pool({"q": 2})

    worker_pools.wait_for_status(honest, Status.SUCCEEDED, 90)
    eventually(
        lambda: (
            worker_pools.queue_fixture.fetch_row("SELECT count(*) FROM dl_jobs WHERE status IN ('queued', 'running')")
            == 0
        ),
        90,
        lambda: str(
            worker_pools.queue_fixture.sql(
                "SELECT lock_key, status, left(error, 200) FROM dl_jobs WHERE status < 'succeeded'"
            )
        ),
    )
    for name, (_, ends, result) in ROWS.items():
        ((status, error),) = worker_pools.queue_fixture.sql(
            "SELECT status::text, left(error, 500) FROM dl_jobs WHERE job_id = %s", rows[name]
        )
        assert status in ends.split("|"), f"{name}: {error}"
        assert result in (error or ""), name
    assert worker_pools.crashes == []
    worker_pools.queue_fixture.check_invariants()


@pytest.mark.parametrize("column", ["queue", "task", "lock_key"])
def test_name_too_long_for_the_index_is_refused(worker_pools: WorkerPoolFixture, column: str):
    long = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100) n)"
    given = {"queue": "'q'", "task": "'quick'", "key": "'k'"} | {"key" if column == "lock_key" else column: long}

    with pytest.raises(psycopg2.errors.CheckViolation, match="dl_jobs_chk_sizes"):
        insert(worker_pools, {}, **given)


def test_names_of_maximum_length_work(worker_pools: WorkerPoolFixture):
    """As little compressible as they come."""
    name = "left((SELECT string_agg(md5({seed} || n::text), '') FROM generate_series(1, 63) n), {size})"
    queue, key = (
        worker_pools.queue_fixture.fetch_row("SELECT " + name.format(seed=size, size=size)) for size in (1000, 2000)
    )
    task = "".join(chr(0x20000 + ord(letter) * n % 40_000) for n, letter in enumerate(key[:200], 1))
    worker_pools.pipelines.register(task)(len)
    first, second = (
        worker_pools.queue_fixture.insert(key, queue=queue, task=task, live_key=f"{n}{key[1:]}", partition_key=key)
        for n in (1, 2)
    )

    worker_pools.listening_pool({queue: 2})

    worker_pools.wait_for_all([first, second])
