"""What keeping the leases of a thousand running jobs costs: in one statement, and in a statement for each job.

Takes about 1 minute.

Each line is a database of its own with running jobs, claimed through the queue. A beat renews them all through the
queue's own code, as one worker process does every few seconds. `WAL` is what a beat writes for one job, all of the
server's write-ahead log counted, between checkpoints. `HOT` is the share of row versions that stayed on their page and
touched no index. The last line has an index on lease_expires_at, which we do without, to show why.

Progress is what a pipeline reports: 10 kB of numbers that compress as such do; kept, or new with each beat.

Ratios are of the first line's median in the same rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.queue.ids import draw_runs
from app.queue.job import Claimed, News
from app.queue.jobqueue import JobQueue
from app.queue.session import Session
from benchmarks.place import ask, environment, fresh_database, some_server
from benchmarks.rounds import Cell, in_turn, median, options, table, times

FILL = """
INSERT INTO dl_jobs (queue, task, lock_key, args, progress, lease_ttl_sec, place)
SELECT 'bench', 'noop', 'key ' || n, %s::jsonb, %s::jsonb, 3600, 'ready' FROM generate_series(1, %s) n
"""
LATE_SEC = 1e6
INDEX = "CREATE INDEX ON dl_jobs (lease_expires_at) WHERE status = 'running'"


@dataclass(frozen=True)
class Way:
    name: str
    together: bool
    size: int = 0  # bytes of args, and of progress
    news: bool = False  # new progress with each beat
    before: str = "SELECT 1"


@dataclass(frozen=True)
class Taken:
    ms: float  # a beat
    wal: float  # bytes a job and beat
    hot: float  # share of the updates
    grown: float  # bytes a job and beat, of the table


WAYS = (
    Way("one statement", True),
    Way("a statement a job", False),
    Way("one, 10 kB args and progress", True, size=10_000),
    Way("a job, 10 kB args and progress", False, size=10_000),
    Way("one, 10 kB new progress each beat", True, size=10_000, news=True),
    Way("a job, 10 kB new progress each beat", False, size=10_000, news=True),
    Way("one, with an index on the lease", True, before=INDEX),
)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__, rounds=5)
    parser.add_argument("--jobs", type=int, default=1_000, help="that are running")
    parser.add_argument(
        "--beats", type=int, default=5, help="of each way in each round; one where each job has a statement"
    )
    asked = parser.parse_args(argv)
    with some_server() as (server_dsn, _), ExitStack() as ends:
        print(environment(server_dsn))
        sides: dict[str, Callable[[], Taken]] = {}
        empty = ends.enter_context(fresh_database(server_dsn, "beat_empty"))
        for n, way in enumerate(WAYS):
            dsn = ends.enter_context(fresh_database(server_dsn, f"beat_{n}", like=empty))
            ask(dsn, way.before)
            session = Session(dsn, name="bench")
            ends.callback(session.close)
            queue = JobQueue(session)
            runs = running(dsn, queue, way, asked.jobs)
            sides[way.name] = partial(beats, session, queue, way, runs, asked.beats)
        ask(server_dsn, "CHECKPOINT")
        taken = in_turn(sides, asked.rounds, warm_up=1)
    show(taken, asked.jobs, asked.rounds, asked.beats)


def running(dsn: str, queue: JobQueue, way: Way, jobs: int) -> list[Claimed]:
    ask(dsn, FILL, *(_json(way.size), _json(way.size)), jobs)
    runs: list[Claimed] = []
    while len(runs) < jobs:
        claimed, _ = queue.claim("bench", ["noop"], draw_runs(min(500, jobs - len(runs))), "bench")
        assert claimed, f"only {len(runs)} of {jobs} jobs could be claimed"
        runs += claimed
    ask(dsn, "VACUUM ANALYZE dl_jobs")
    return runs


def beats(session: Session, queue: JobQueue, way: Way, runs: Sequence[Claimed], number: int) -> Taken:
    number = number if way.together else 1  # a beat of many commits is long enough
    before, seconds = counters(session), 0.0
    for _ in range(number):
        told = [_numbers(way.size) if way.news else None for _ in range(10)]
        news = [News(run.id, run.run_id, told[n % 10]) for n, run in enumerate(runs)]
        groups = [news] if way.together else [[one] for one in news]
        began = time.perf_counter()
        for group in groups:
            renewed = queue.renew(group, late_sec=LATE_SEC)
            assert all(one.renewed for one in renewed)
        seconds += time.perf_counter() - began
    wal, updates, hot, size = (b - a for a, b in zip(before, counters(session), strict=True))
    each = number * len(runs)
    assert updates == each, f"{way.name}: {updates} updates in {each} renewals"
    return Taken(seconds / number * 1000, wal / each, hot / updates, size / each)


def counters(session: Session) -> tuple[int, int, int, int]:
    session.command("SELECT pg_stat_force_next_flush()")
    ((wal, updates, hot, size),) = session.command(
        """
        SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint, n_tup_upd, n_tup_hot_upd,
               pg_total_relation_size(relid)
          FROM pg_stat_user_tables
         WHERE relname = 'dl_jobs'
        """
    )
    return wal, updates, hot, size


def show(taken: dict[str, list[Taken]], jobs: int, rounds: int, number: int) -> None:
    lines: list[Sequence[Cell]] = []
    base = taken[WAYS[0].name]
    base_ms, base_wal = median([one.ms for one in base]), median([one.wal for one in base])
    for name, all_taken in taken.items():
        ms, wal, hot, grown = (
            median([getattr(one, what) for one in all_taken]) for what in ("ms", "wal", "hot", "grown")
        )
        share = f"{hot * 100:.0f} %"
        lines.append((name, ms, times(ms / base_ms), round(wal), times(wal / base_wal), share, round(grown)))
    print(f"{jobs:,} running jobs, {rounds} rounds in turn of {number} beats, medians")
    print(table(["renewed in", "ms a beat", "ratio", "WAL bytes a job", "ratio", "HOT", "table grows by"], lines))


def _json(size: int) -> str:
    return "{}" if size == 0 else '{"numbers": [' + ", ".join(map(str, _numbers(size)["numbers"])) + "]}"


def _numbers(size: int) -> dict[str, Any]:
    """Measurements, some ten bytes each."""
    return {"numbers": [round(random.random() * 1e4, 4) for _ in range(max(1, size // 11))]}


if __name__ == "__main__":
    main()
