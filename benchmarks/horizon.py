"""What a long transaction costs: a dump or a COPY next door keeps the server from forgetting what has ended.

Takes about 2 minutes.

Two sides in turn: a process drains a large queue for a while, and does the same while somebody holds a snapshot that he
took just before. Then nothing that claims leave behind can be cleaned up, and each claim walks past more of it. What
counts is the last third of that time beside the same third without the transaction; at least half is wanted. Deadlocks
are counted, and none is wanted.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial

import psycopg2

from benchmarks.drain import FILL, OURS, at_work
from benchmarks.place import ask, environment, fresh_database, some_server
from benchmarks.rounds import Cell, in_turn, median, options, table, times

BESIDE = {"nothing else": False, "a long transaction": True}


@dataclass(frozen=True)
class Held:
    thirds: tuple[float, float, float]  # jobs a second
    deadlocks: int


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__, rounds=2)
    parser.add_argument("--jobs", type=int, default=250_000, help="waiting: more than are done in the time")
    parser.add_argument("--seconds", type=float, default=15.0, help="that each side takes")
    parser.add_argument("--threads", type=int, default=10)
    asked = parser.parse_args(argv)
    with some_server() as (server_dsn, _):
        print(environment(server_dsn))
        sides = {name: partial(one_round, server_dsn, held, asked) for name, held in BESIDE.items()}
        taken = in_turn(sides, asked.rounds, tell=lambda _, one: " ".join(f"{rate:,.0f}" for rate in one.thirds))
    print(
        f"{asked.jobs:,} jobs waiting, {asked.seconds:.0f} s in three thirds, {asked.rounds} rounds in turn, medians\n"
    )
    rate = {name: [median([one.thirds[n] for one in rounds]) for n in range(3)] for name, rounds in taken.items()}
    alone = rate[next(iter(BESIDE))]
    rows: list[list[Cell]] = [
        [name, *rates, times(rates[-1] / alone[-1]), sum(one.deadlocks for one in taken[name])]
        for name, rates in rate.items()
    ]
    print(table(["beside", "jobs/s, first third", "second", "last", "of the last alone", "deadlocks"], rows))


def one_round(server_dsn: str, held: bool, asked: Namespace) -> Held:
    with fresh_database(server_dsn) as dsn:
        ask(dsn, FILL.format(table="dl_jobs"), asked.jobs)
        with open_snapshot(dsn, held), at_work(OURS[0], dsn, asked.threads, lambda _: None):
            ((began,),) = ask(dsn, "SELECT clock_timestamp()")
            until = time.monotonic() + asked.seconds
            while time.monotonic() < until:
                time.sleep(0.1)
            ((rest,),) = ask(dsn, "SELECT count(*) FROM dl_jobs WHERE status = 'queued'")
            assert rest, f"all {asked.jobs:,} jobs were done in the time: ask for more with --jobs"
        thirds = ask(
            dsn,
            "SELECT n, count(j.job_id) FROM generate_series(0, 2) n LEFT JOIN dl_jobs j"
            " ON j.finished_at >= %s::timestamptz + n * make_interval(secs => %s)"
            " AND j.finished_at < %s::timestamptz + (n + 1) * make_interval(secs => %s) GROUP BY n ORDER BY n",
            *[began, asked.seconds / 3] * 2,
        )
        ((deadlocks,),) = ask(dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        a, b, c = (done / (asked.seconds / 3) for _, done in thirds)
        return Held((a, b, c), deadlocks)


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
