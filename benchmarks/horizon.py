"""Measures what a long transaction in the same database, such as a dump, costs the queue.

Takes about 2 minutes.

A process drains a large queue for a while, alone and while another session holds a snapshot taken just before. With the
snapshot, vacuum removes no dead row, and each claim scans more of them. Compare the last third of the time with the
same third without the transaction; the goal is at least half. The goal for deadlocks is none.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg2

from benchmarks.drain import DATALOADER, FILL, running_workers
from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, run_rounds

NEIGHBORS = {"nothing else": False, "a long transaction": True}


@dataclass(frozen=True)
class HorizonCosts:
    thirds: tuple[float, float, float]  # jobs per second
    deadlocks: int


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=2)
    parser.add_argument("--jobs", type=int, default=250_000, help="waiting jobs; more than can be done in the time")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of each variant")
    parser.add_argument("--threads", type=int, default=10)
    options = parser.parse_args(argv)
    with benchmark_server() as (server_dsn, _):
        print(describe_environment(server_dsn))
        sides = {name: partial(run_round, server_dsn, held, options) for name, held in NEIGHBORS.items()}
        taken = run_rounds(sides, options.rounds, log=lambda _, one: " ".join(f"{rate:,.0f}" for rate in one.thirds))
    print(f"{options.jobs:,} waiting jobs, {options.seconds:.0f} s in three thirds, {options.rounds} rounds, medians\n")
    rate = {name: [median([costs.thirds[n] for costs in rounds]) for n in range(3)] for name, rounds in taken.items()}
    alone = rate[next(iter(NEIGHBORS))]
    rows: list[list[Cell]] = [
        [name, *rates, format_ratio(rates[-1] / alone[-1]), sum(costs.deadlocks for costs in taken[name])]
        for name, rates in rate.items()
    ]
    print(
        format_table(
            ["other load", "jobs/s, first third", "second", "last", "last, of that without", "deadlocks"], rows
        )
    )


def run_round(server_dsn: str, has_open_snapshot: bool, options: Namespace) -> HorizonCosts:
    with fresh_database(server_dsn) as dsn:
        query_value(dsn, FILL.format(table="dl_jobs"), options.jobs)
        with (
            open_snapshot(dsn, has_open_snapshot),
            running_workers(DATALOADER[0], dsn, options.threads, lambda _: None),
        ):
            ((began,),) = query_value(dsn, "SELECT clock_timestamp()")
            until = time.monotonic() + options.seconds
            while time.monotonic() < until:
                time.sleep(0.1)
            ((rest,),) = query_value(dsn, "SELECT count(*) FROM dl_jobs WHERE status = 'queued'")
            assert rest, f"all {options.jobs:,} jobs ended in the time: raise --jobs"
        thirds = query_value(
            dsn,
            "SELECT n, count(j.job_id) FROM generate_series(0, 2) n LEFT JOIN dl_jobs j"
            " ON j.finished_at >= %s::timestamptz + n * make_interval(secs => %s)"
            " AND j.finished_at < %s::timestamptz + (n + 1) * make_interval(secs => %s) GROUP BY n ORDER BY n",
            *[began, options.seconds / 3] * 2,
        )
        ((deadlocks,),) = query_value(dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        a, b, c = (done / (options.seconds / 3) for _, done in thirds)
        return HorizonCosts((a, b, c), deadlocks)


@contextmanager
def open_snapshot(dsn: str, held: bool) -> Iterator[None]:
    if not held:
        yield
        return
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT count(*) FROM dl_schema")
        yield


if __name__ == "__main__":
    main()
