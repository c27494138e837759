"""Measures the cost of a claim with few waiting jobs, with very many, and with other jobs in the table.

Takes about 5 minutes; with --full, up to 10 million rows, about 15 minutes and 15 GB of disk.

Each line of the result is a database of its own, filled before the first round. The baseline has a thousand waiting
jobs. The others have more of them, or a million together with scheduled jobs, in ten queues, behind a hundred thousand
jobs of one running lock_key, among finished jobs, or with query plans made while the table was empty. In each round
every database serves single claims and claims of a hundred through the queue's own code. Each claim is settled before
the next one and replaced by a new job, so that the depth stays the same. Only the claims and their commits are timed.

A ratio is the median claim divided by that of the baseline in the same rounds; the goal is at most 1.5. `pages` is the
number of pages that the server touched for one claim, its settlement and the new job; it does not depend on the load
of the machine.

The rows are inserted in bulk with triggers off, so they have no events. Indexes and statistics are made afterwards,
except in the last line, whose session keeps the plans made while the table was empty.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import psycopg2
from psycopg2.extensions import parse_dsn

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, quantile, run_rounds
from dataloader.app.db.connection import Session
from dataloader.app.queue.claims import ClaimRequest
from dataloader.app.queue.job import Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue

MAX_COST_RATIO = 1.5
BYTES_PER_ROW = 700  # of table and indexes, generously
CHUNK_ROWS = 1_000_000
MAX_SCANNED = 500  # limit of ready jobs that one claim of a worker scans

READY = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, wait_state, created_at)
SELECT {queue}, 'noop', 'key ' || gen_random_uuid(), n %% 10 + 1, 'ready', clock_timestamp()
  FROM generate_series(1, %s) n
"""
FUTURE = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, available_at)
SELECT 'bench', 'noop', 'future ' || n, 0, now() + interval '1 day' + n * interval '1 second'
  FROM generate_series(1, %s) n
"""
ONE_KEY = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, wait_state)
SELECT 'bench', 'noop', 'hot key', 0, 'ready' FROM generate_series(1, %s) n
"""
KEY_HOLDER = """
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, lease_expires_at, started_at)
VALUES ('bench', 'noop', 'hot key', 'running', 1, gen_random_uuid(), now() + interval '1 day', now())
"""
FINISHED = """
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, created_at, started_at, finished_at)
SELECT 'bench', 'noop', 'key ' || n, 'succeeded', 1, gen_random_uuid(), moment, moment, moment
  FROM generate_series(1, %s) n, LATERAL (SELECT now() - interval '30 days' + n * interval '1 ms' AS moment) m
"""
ONE_QUEUE, TEN_QUEUES = "'bench'", "CASE n %% 10 WHEN 0 THEN 'bench' ELSE 'bench ' || n %% 10 END"


@dataclass(frozen=True)
class QueueContent:
    """The rows of a database before the first claim."""

    name: str
    ready: int
    queue: str = ONE_QUEUE
    other_rows: tuple[tuple[str, int], ...] = ()  # (statement, rows)
    has_stale_statistics: bool = False  # claims are planned on the empty table, without ANALYZE afterwards

    @property
    def rows(self) -> int:
        return self.ready + sum(rows for _, rows in self.other_rows)


@dataclass(frozen=True)
class ClaimCosts:
    single_ms: float
    hundred_ms: float
    pages: float


@dataclass
class ClaimDatabase:
    """A filled database, the session that claims from it, and the one that makes new jobs.

    The latter has triggers off: to change that setting makes a session plan all its statements again.
    """

    content: QueueContent
    dsn: str
    session: Session = field(init=False)
    queue: JobQueue = field(init=False)
    producer: Session = field(init=False)

    def __post_init__(self) -> None:
        self.session, self.producer = (
            Session(self.dsn, application_name=name, command_timeout_sec=600) for name in ("bench", "bench-producer")
        )
        self.queue = JobQueue(self.session)

    def close(self) -> None:
        self.session.close()
        self.producer.close()


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=15)
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of waiting jobs; the first is the baseline")
    parser.add_argument("--around", type=int, help="waiting jobs in the databases with other jobs (default 1,000,000)")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of other jobs")
    parser.add_argument("--singles", type=int, default=20, help="single claims per round")
    parser.add_argument("--hundreds", type=int, default=3, help="claims of a hundred per round")
    parser.add_argument(
        "--full", action="store_true", help="also measure 10 million waiting and 10 million finished jobs"
    )
    options = parser.parse_args(argv)
    rows = options.rows or [1_000, 100_000, 1_000_000, *([10_000_000] if options.full else [])]
    contents = all_contents(rows, options.around or 1_000_000, options.scale, is_full=options.full)
    require_disk_space(contents)
    with (
        benchmark_server({"max_wal_size": "8GB", "maintenance_work_mem": "512MB"}) as (server_dsn, _),
        ExitStack() as ends,
    ):
        print(describe_environment(server_dsn))
        empty = ends.enter_context(fresh_database(server_dsn, "depth_empty"))
        places = [
            ends.enter_context(open_database(server_dsn, empty, n, content)) for n, content in enumerate(contents)
        ]
        query_value(server_dsn, "CHECKPOINT")
        sides: dict[str, Callable[[], ClaimCosts]] = {
            place.content.name: partial(measure, place, options.singles, options.hundreds) for place in places
        }
        taken = run_rounds(sides, options.rounds, warm_up=1)
        sizes = [query_value(place.dsn, "SELECT pg_database_size(current_database())")[0][0] for place in places]
    print_results(taken, sizes, options.rounds)


def all_contents(rows: Sequence[int], other_jobs: int, scale: float, *, is_full: bool) -> list[QueueContent]:
    def many(number: int) -> int:
        return max(1, round(number * scale))

    finished = many(10_000_000 if is_full else 1_000_000)
    return [
        *(QueueContent(f"{ready:,} waiting", ready) for ready in rows),
        QueueContent(
            f"{other_jobs:,} behind {many(30_000):,} future", other_jobs, other_rows=((FUTURE, many(30_000)),)
        ),
        QueueContent(
            f"{other_jobs:,} behind {many(200_000):,} future", other_jobs, other_rows=((FUTURE, many(200_000)),)
        ),
        QueueContent(f"{other_jobs:,} in 10 queues", other_jobs, TEN_QUEUES),
        QueueContent(
            f"{other_jobs:,} behind {many(100_000):,} of one key",
            other_jobs,
            other_rows=((KEY_HOLDER, 1), (ONE_KEY, many(100_000))),
        ),
        QueueContent(f"{other_jobs:,} among {finished:,} finished", other_jobs, other_rows=((FINISHED, finished),)),
        QueueContent(f"{other_jobs:,}, planned when empty", other_jobs, has_stale_statistics=True),
    ]


def require_disk_space(contents: Sequence[QueueContent]) -> None:
    need = sum(content.rows for content in contents) * BYTES_PER_ROW + 2**30
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if need > free:
        raise SystemExit(
            f"{need / 2**30:.0f} GiB may be needed in {tempfile.gettempdir()}, but {free / 2**30:.0f} GiB are free; "
            "set TMPDIR to another folder or lower --rows"
        )


def print_results(costs: dict[str, list[ClaimCosts]], sizes: Sequence[int], rounds: int) -> None:
    singles, hundreds, pages = (
        {name: [getattr(cost, column) for cost in rounds_costs] for name, rounds_costs in costs.items()}
        for column in ("single_ms", "hundred_ms", "pages")
    )
    base = next(iter(costs))
    lines: list[Sequence[Cell]] = []
    for name, size in zip(costs, sizes, strict=True):
        single, hundred = median(singles[name]), median(hundreds[name])
        ratios = format_ratio(single / median(singles[base])), format_ratio(hundred / median(hundreds[base]))
        p95, megabytes = quantile(singles[name], 95), f"{size / 2**20:,.0f} MB"
        lines.append((name, single, ratios[0], p95, hundred, ratios[1], median(pages[name]), megabytes))
    print(f"{rounds} rounds in turn, medians; single claims and claims of a hundred, in ms")
    print(format_table(["jobs", "claim", "ratio", "p95", "of 100", "ratio", "pages", "database"], lines))
    worst = max(max(median(s[name]) / median(s[base]) for s in (singles, hundreds)) for name in costs)
    print(f"\ngoal: at most {MAX_COST_RATIO} ×; worst: {format_ratio(worst)}")


# ── making a database ───────────────────────────────────────────────────────────────────────────────────────────────


class open_database:
    """Create a filled database with a session that claims; drop both on exit."""

    def __init__(self, server_dsn: str, empty: str, number: int, content: QueueContent) -> None:
        self._scene = content
        self._database = fresh_database(server_dsn, f"depth_{number}", like=empty)

    def __enter__(self) -> ClaimDatabase:
        began = time.monotonic()
        self._claim_database = ClaimDatabase(self._scene, self._database.__enter__())
        if self._scene.has_stale_statistics:
            warm_up_plans(self._claim_database)
        fill(self._claim_database)
        note = block_hot_key(self._claim_database) if any(sql is ONE_KEY for sql, _ in self._scene.other_rows) else ""
        took = f"  {self._scene.name}: made in {time.monotonic() - began:.0f} s{note}"
        print(took, file=sys.stderr, flush=True)
        return self._claim_database

    def __exit__(self, *exception: Any) -> None:
        self._claim_database.close()
        self._database.__exit__(*exception)


def warm_up_plans(claim_database: ClaimDatabase) -> None:
    """Claim until the server caches a generic plan."""
    for _ in range(10):
        claim_database.queue.claim("bench", ["noop"], new_run_ids(1), "bench")
        claim_database.queue.settle([])


def fill(claim_database: ClaimDatabase) -> None:
    content = claim_database.content
    with closing(psycopg2.connect(claim_database.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("SET session_replication_role = replica")  # no triggers
        if content.has_stale_statistics:
            cursor.execute("ALTER TABLE dl_jobs SET (autovacuum_enabled = off)")
        indexes = () if content.has_stale_statistics else drop_indexes(cursor)
        for statement, rows in ((READY.format(queue=content.queue), content.ready), *content.other_rows):
            for done in range(0, rows, CHUNK_ROWS):
                cursor.execute(statement, (min(CHUNK_ROWS, rows - done),))
        for definition in indexes:
            cursor.execute(definition)
        if not content.has_stale_statistics:
            cursor.execute("VACUUM ANALYZE dl_jobs")


def drop_indexes(cursor: Any) -> list[str]:
    """Drop the indexes that are built faster after the INSERTs; return their definitions."""
    cursor.execute(
        """
        SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
          FROM pg_index
         WHERE indrelid = 'dl_jobs'::regclass
           AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
        """
    )
    indexes = cursor.fetchall()
    for name, _ in indexes:
        cursor.execute(f"DROP INDEX {name}")
    return [definition for _, definition in indexes]


def block_hot_key(claim_database: ClaimDatabase) -> str:
    """Claim as a worker does until all jobs of the busy key are blocked; return a note with the cost."""
    began, claims = time.monotonic(), 0
    while True:
        taken, outlook = claim_database.queue.claim(
            "bench", ["noop"], new_run_ids(1), "bench", ClaimRequest(scan_limit=MAX_SCANNED)
        )
        claims += 1
        if taken:
            claim_database.queue.settle([(taken[0], Settlement(Status.SUCCEEDED))])
        if not outlook.skipped:
            break
    took = time.monotonic() - began
    ((blocked,),) = query_value(
        claim_database.dsn, "SELECT count(*) FROM dl_jobs WHERE wait_state = 'blocked' AND status = 'queued'"
    )
    query_value(claim_database.dsn, "VACUUM ANALYZE dl_jobs")
    return f"; {claims:,} claims blocked {blocked:,} jobs of one key in {took:.1f} s"


# ── a round ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(claim_database: ClaimDatabase, singles: int, hundreds: int) -> ClaimCosts:
    before = pages_touched(claim_database)
    single_ms = median([time_claim(claim_database, 1) for _ in range(singles)])
    pages = (pages_touched(claim_database) - before) / singles
    hundred_ms = median([time_claim(claim_database, 100) for _ in range(hundreds)])
    return ClaimCosts(single_ms, hundred_ms, pages)


def time_claim(claim_database: ClaimDatabase, limit: int) -> float:
    """Return the milliseconds of one claim; settle and replace the claimed jobs."""
    runs = new_run_ids(limit)
    began = time.perf_counter()
    taken, _ = claim_database.queue.claim("bench", ["noop"], runs, "bench")
    took = (time.perf_counter() - began) * 1000
    assert len(taken) == limit, f"{claim_database.content.name}: {len(taken)} of {limit} jobs were claimed"
    claim_database.queue.settle([(run, Settlement(Status.SUCCEEDED)) for run in taken])
    refill(claim_database, limit)
    return took


def refill(claim_database: ClaimDatabase, rows: int) -> None:
    insert = READY.format(queue=ONE_QUEUE) % rows
    claim_database.producer.execute_raw(f"SET session_replication_role = replica; {insert}")


def pages_touched(claim_database: ClaimDatabase) -> int:
    """Return the pages that the sessions of this database have touched so far."""
    for session in (claim_database.session, claim_database.producer):
        session.execute_raw("SELECT pg_stat_force_next_flush()")
    name = parse_dsn(claim_database.dsn)["dbname"]
    ((pages,),) = claim_database.session.execute_raw(
        f"SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = '{name}'"
    )
    return int(pages)


if __name__ == "__main__":
    main()
