"""Measures the cost of renewing a thousand leases, in one statement and in one statement per job.

Takes about 1 minute.

Each line of the result is a database of its own with running jobs that were claimed through the queue. A heartbeat
renews all of them through the queue's own code, as a worker process does every few seconds. `WAL` is all the
write-ahead log of a heartbeat, between checkpoints, divided by the jobs. `HOT` is the share of new row versions that
stayed on their page and touched no index. The last line adds an index on lease_expires_at, which the schema avoids.

The progress of a job is 10 kB of numbers, either unchanged or new with each heartbeat.

Ratios are to the median of the first line in the same rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, run_rounds
from dataloader.app.db.connection import Session
from dataloader.app.queue.job import ClaimedJob, RenewalRequest, new_run_ids
from dataloader.app.queue.jobs import JobQueue

FILL = """
INSERT INTO dl_jobs (queue, task, lock_key, args, progress, lease_ttl_sec, wait_state)
SELECT 'bench', 'noop', 'key ' || n, %s::jsonb, %s::jsonb, 3600, 'ready' FROM generate_series(1, %s) n
"""
LATE_SEC = 1e6
INDEX = "CREATE INDEX ON dl_jobs (lease_expires_at) WHERE status = 'running'"


@dataclass(frozen=True)
class RenewalVariant:
    name: str
    is_one_statement: bool
    progress_bytes: int = 0  # size of the args, and of the progress
    has_changed_progress: bool = False  # new progress with each heartbeat
    setup_sql: str = "SELECT 1"


@dataclass(frozen=True)
class RenewalCosts:
    ms: float  # per heartbeat
    wal: float  # bytes per job and heartbeat
    hot: float  # share of the updates
    grown: float  # bytes per job and heartbeat, of the table


VARIANTS = (
    RenewalVariant("one statement", True),
    RenewalVariant("a statement a job", False),
    RenewalVariant("one, 10 kB args and progress", True, progress_bytes=10_000),
    RenewalVariant("a job, 10 kB args and progress", False, progress_bytes=10_000),
    RenewalVariant("one, 10 kB new progress each heartbeat", True, progress_bytes=10_000, has_changed_progress=True),
    RenewalVariant("a job, 10 kB new progress each heartbeat", False, progress_bytes=10_000, has_changed_progress=True),
    RenewalVariant("one, with an index on the lease", True, setup_sql=INDEX),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=5)
    parser.add_argument("--jobs", type=int, default=1_000, help="running jobs")
    parser.add_argument(
        "--heartbeats",
        type=int,
        default=5,
        help="heartbeats per round; always one for variants with a statement per job",
    )
    options = parser.parse_args(argv)
    with benchmark_server() as (server_dsn, _), ExitStack() as ends:
        print(describe_environment(server_dsn))
        sides: dict[str, Callable[[], RenewalCosts]] = {}
        empty = ends.enter_context(fresh_database(server_dsn, "heartbeat_empty"))
        for n, way in enumerate(VARIANTS):
            dsn = ends.enter_context(fresh_database(server_dsn, f"heartbeat_{n}", like=empty))
            query_value(dsn, way.setup_sql)
            session = Session(dsn, application_name="bench")
            ends.callback(session.close)
            queue = JobQueue(session)
            runs = claimed_jobs(dsn, queue, way, options.jobs)
            sides[way.name] = partial(time_renewals, session, queue, way, runs, options.heartbeats)
        query_value(server_dsn, "CHECKPOINT")
        taken = run_rounds(sides, options.rounds, warm_up=1)
    print_results(taken, options.jobs, options.rounds, options.heartbeats)


def claimed_jobs(dsn: str, queue: JobQueue, variant: RenewalVariant, jobs: int) -> list[ClaimedJob]:
    query_value(dsn, FILL, *(_json(variant.progress_bytes), _json(variant.progress_bytes)), jobs)
    runs: list[ClaimedJob] = []
    while len(runs) < jobs:
        claimed, _ = queue.claim("bench", ["noop"], new_run_ids(min(500, jobs - len(runs))), "bench")
        assert claimed, f"only {len(runs)} of {jobs} jobs could be claimed"
        runs += claimed
    query_value(dsn, "VACUUM ANALYZE dl_jobs")
    return runs


def time_renewals(
    session: Session, queue: JobQueue, variant: RenewalVariant, runs: Sequence[ClaimedJob], number: int
) -> RenewalCosts:
    number = number if variant.is_one_statement else 1  # one heartbeat of many commits is long enough
    before, seconds = counters(session), 0.0
    for _ in range(number):
        progress = [_numbers(variant.progress_bytes) if variant.has_changed_progress else None for _ in range(10)]
        news = [RenewalRequest(run.id, run.run_id, progress[n % 10]) for n, run in enumerate(runs)]
        groups = [news] if variant.is_one_statement else [[request] for request in news]
        began = time.perf_counter()
        for group in groups:
            renewed = queue.renew(group, late_sec=LATE_SEC)
            assert all(renewal.renewed for renewal in renewed)
        seconds += time.perf_counter() - began
    wal, updates, hot, size = (b - a for a, b in zip(before, counters(session), strict=True))
    each = number * len(runs)
    assert updates == each, f"{variant.name}: {updates} updates in {each} renewals"
    return RenewalCosts(seconds / number * 1000, wal / each, hot / updates, size / each)


def counters(session: Session) -> tuple[int, int, int, int]:
    session.execute_raw("SELECT pg_stat_force_next_flush()")
    ((wal, updates, hot, size),) = session.execute_raw(
        """
        SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, n_tup_upd, n_tup_hot_upd,
               pg_total_relation_size(relid)
          FROM pg_stat_user_tables
         WHERE relname = 'dl_jobs'
        """
    )
    return wal, updates, hot, size


def print_results(costs: dict[str, list[RenewalCosts]], jobs: int, rounds: int, number: int) -> None:
    lines: list[Sequence[Cell]] = []
    base = costs[VARIANTS[0].name]
    base_ms, base_wal = median([cost.ms for cost in base]), median([cost.wal for cost in base])
    for name, all_taken in costs.items():
        ms, wal, hot, grown = (
            median([getattr(one, what) for one in all_taken]) for what in ("ms", "wal", "hot", "grown")
        )
        share = f"{hot * 100:.0f} %"
        lines.append(
            (name, ms, format_ratio(ms / base_ms), round(wal), format_ratio(wal / base_wal), share, round(grown))
        )
    print(f"{jobs:,} running jobs, {rounds} rounds in turn of {number} heartbeats, medians")
    print(
        format_table(
            ["renewed in", "ms per heartbeat", "ratio", "WAL bytes per job", "ratio", "HOT", "table grows by"], lines
        )
    )


def _json(size: int) -> str:
    return "{}" if size == 0 else '{"numbers": [' + ", ".join(map(str, _numbers(size)["numbers"])) + "]}"


def _numbers(size: int) -> dict[str, Any]:
    """Return random numbers of about ten bytes each."""
    return {"numbers": [round(random.random() * 1e4, 4) for _ in range(max(1, size // 11))]}


if __name__ == "__main__":
    main()
