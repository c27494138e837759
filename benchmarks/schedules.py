"""Measures schedules: idle cost, lateness, a burst, a race of processes that are killed, and the making of slices.

Takes about 4 minutes.

*Idle*: 10,000 schedules (`--schedules`) of which none is due: milliseconds of statements in each second, with all that
the maintenance leader and one other process do for schedules. The yardstick is to
read the clock once a second.

*Lateness*: the same schedules with intervals of ten minutes (`--every`), spread over them, in a worker pool with its
usual threads: seconds from the nominal time of each firing to the time at which its row was made.

*Burst*: 500 schedules due at one time: seconds until the last job was made.

*Race*: 16 processes that fire 100 schedules of one second for 20 s. Each kills itself, between two of its statements or
at any moment, on average after half a second, and another takes its place. Each nominal time must have one row and one
job.

*Slices*: a backfill of 100,000 slices (`--slices`) by one process: slices per second, and next to it INSERTs of as many
plain jobs by the same groups; then the dashboard's pages of it, in milliseconds, next to a probe's.

*Claim*: a claim of one of 1,000 plain jobs: alone, with a limit set that they do not name, and where a backfill of
another queue has made as many slices, of which the last ones are queued.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any
from uuid import UUID

import psycopg2

from benchmarks import depth
from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, quantile, run_rounds
from dataloader.app.db.connection import Session
from dataloader.app.db.pool import Pool
from dataloader.app.errors import DatabaseUnavailable
from dataloader.app.features.alerts.rows import Alerts, RuleKind
from dataloader.app.features.backfills.duty import BackfillsDuty
from dataloader.app.features.backfills.rows import Backfills
from dataloader.app.features.schedules.duty import SchedulesDuty, schedules_duty
from dataloader.app.features.schedules.rows import Schedules
from dataloader.app.http.app import create_app
from dataloader.app.http.options import WebOptions
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from dataloader.pipelines.schedule_definition import definition_from
from dataloader.workers.duties import DutyContext, MaintenanceOptions
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions

RACERS, RACED = 16, 100
MEAN_LIFE_SEC = 0.5
BURST = 500
_WARM_UP_SEC = 3.0
_CREATE = """
INSERT INTO dl_schedules (name, source, task, overrides, last_at, next_at)
SELECT 'schedule ' || n, 'people', 'noop',
       jsonb_build_object('kind', 'interval', 'expression', %(every)s::text, 'queue', 'bench', 'zone', 'UTC',
                          'overlap', 'allow', 'catch_up', 'all',
                          'anchor', to_jsonb(%(begin)s::timestamptz + n * %(apart)s::interval)),
       %(begin)s::timestamptz - interval '1 second', %(begin)s::timestamptz + n * %(apart)s::interval
  FROM generate_series(1, %(count)s) n
"""
_FIRINGS = "SELECT count(*) FROM dl_firings"
_LATENESS = "SELECT extract(epoch FROM made_at - due_at)::float8 FROM dl_firings WHERE due_at > %s ORDER BY 1"
_END_JOBS = "UPDATE dl_jobs SET status = 'succeeded', finished_at = clock_timestamp() WHERE status = 'queued'"
_INSERT_PLAIN = """
INSERT INTO dl_jobs (queue, task, lock_key) SELECT 'bench', 'noop', gen_random_uuid()::text FROM generate_series(1, %s)
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="what to measure")
    parser.add_argument("--schedules", type=int, default=10_000, help="schedules of idle and lateness")
    parser.add_argument("--every", type=int, default=600, help="the interval of lateness, in seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long lateness is measured")
    parser.add_argument("--race", type=float, default=20.0, help="seconds of the race")
    parser.add_argument("--slices", type=int, default=100_000, help="slices of the backfill")
    parser.add_argument("--claims", type=int, default=300, help="claims of each kind")
    parser.add_argument("--racer", metavar="DSN", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.racer:
        race_until_killed(options.racer)
    rows: list[Sequence[Cell]] = []
    with benchmark_server() as (server_dsn, _):
        print(describe_environment(server_dsn))
        options.server_dsn = server_dsn
        for part in options.parts:
            with fresh_database(server_dsn) as dsn:
                rows += PARTS[part](dsn, options)
    print(format_table(["", "figure", "unit", "ratio", "goal"], rows, text_columns=(0, 2)))


# ── idle, lateness, burst ───────────────────────────────────────────────────────────────────────────────────────────


def create_schedules(dsn: str, count: int, *, begin: datetime, every_sec: int, apart: timedelta) -> None:
    parameters = {"count": count, "begin": begin, "every": str(every_sec), "apart": apart}
    with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(_CREATE, parameters)
    query_value(dsn, "VACUUM ANALYZE dl_schedules")


def database_now(dsn: str) -> datetime:
    now: datetime = query_value(dsn, "SELECT clock_timestamp()")[0][0]
    return now


def measure_idle(dsn: str, options: argparse.Namespace) -> list[Sequence[Cell]]:
    begin = database_now(dsn) + timedelta(hours=1)
    create_schedules(dsn, options.schedules, begin=begin, every_sec=3600, apart=timedelta(milliseconds=300))
    with closing(Session(dsn, application_name="bench")) as session:
        alerts, schedules, duty = Alerts(session), Schedules(session), make_duty(session)
        alerts.add("late", RuleKind.SCHEDULE_LATE, 60)
        # How often the leader does it, and another process for what the leader leaves.
        periods: dict[str, tuple[Callable[[], object], float]] = {
            "due": (duty.run, 1 / 30 + 1 / 5),
            "seen": (schedules.see, 1 / 60),
            "alerts": (lambda: alerts.check(interval_sec=15), 1 / 15),
        }
        base = median([milliseconds(lambda: session.execute("database_time")) for _ in range(50)])
        costs = {name: median([milliseconds(run) for _ in range(20)]) * rate for name, (run, rate) in periods.items()}
    rows: list[Sequence[Cell]] = [["the clock read each second", base, "ms/s", format_ratio(1.0), None]]
    for name, cost in costs.items():
        rows.append(
            [f"{options.schedules:,} schedules, none due: {name}", cost, "ms/s", format_ratio(cost / base), None]
        )
    total = sum(costs.values())
    return [*rows, ["all of these", total, "ms/s", format_ratio(total / base), "≤ 1 ms"]]


def measure_lateness(dsn: str, options: argparse.Namespace) -> list[Sequence[Cell]]:
    first = database_now(dsn) + timedelta(seconds=_WARM_UP_SEC)
    apart = timedelta(seconds=options.every / options.schedules)
    create_schedules(dsn, options.schedules, begin=first, every_sec=options.every, apart=apart)
    rate = f"{options.schedules / options.every:,.0f} a second"
    return lateness_rows(dsn, "lateness", options.seconds, rate)


def lateness_rows(dsn: str, name: str, seconds: float, rate: str) -> list[Sequence[Cell]]:
    tasks = Pipelines()
    tasks.register("noop")(lambda args: None)
    since = database_now(dsn)
    pool = WorkerPool(tasks, PoolOptions(dsn=dsn, queues={"bench": 2}), on_crash=print)
    pool.start()
    try:
        time.sleep(_WARM_UP_SEC + seconds)
    finally:
        pool.stop(5.0)
    values = [float(value) for (value,) in query_value(dsn, _LATENESS, since)]
    assert values, "nothing was fired"
    base = quantile(values, 50)
    return [
        [f"{name}, {rate}, {len(values):,} firings, p{percent}", 1000 * quantile(values, percent), "ms",
         format_ratio(quantile(values, percent) / base), "≤ 1,000" if percent == 99 else None]
        for percent in (50, 99)
    ]  # fmt: skip


def measure_burst(dsn: str, options: argparse.Namespace) -> list[Sequence[Cell]]:
    count = min(BURST, options.schedules)
    begin = database_now(dsn) - timedelta(seconds=1)
    create_schedules(dsn, count, begin=begin, every_sec=86_400, apart=timedelta())
    with closing(Session(dsn, application_name="bench")) as session:
        duty, base = make_duty(session), milliseconds(lambda: session.execute("database_time"))
        taken = milliseconds(lambda: run_until_idle(duty.run))
    assert query_value(dsn, _FIRINGS)[0][0] == count
    ratio = format_ratio(taken / base)
    return [[f"{count:,} schedules due at once", taken / 1000, "s", ratio, "≤ 2 s"]]


def run_until_idle(run: Callable[[], float | None]) -> None:
    while run() == 0.0:
        pass


def make_duty(session: Session) -> SchedulesDuty:
    return schedules_duty(DutyContext(executor=session, options=MaintenanceOptions(), tasks=Pipelines()))


def milliseconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - began)


# ── race ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_race(dsn: str, options: argparse.Namespace) -> list[Sequence[Cell]]:
    begin = database_now(dsn).replace(microsecond=0)
    create_schedules(dsn, RACED, begin=begin, every_sec=1, apart=timedelta())
    command = [sys.executable, "-m", "benchmarks.schedules", "--racer", dsn]
    racers = [subprocess.Popen(command) for _ in range(RACERS)]
    killed, until = 0, time.monotonic() + options.race
    try:
        while time.monotonic() < until:
            for n, racer in enumerate(racers):
                if racer.poll() is not None:
                    killed += 1
                    racers[n] = subprocess.Popen(command)
            time.sleep(0.02)
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    end = database_now(dsn).replace(microsecond=0)
    with closing(Session(dsn, application_name="bench")) as session:
        run_until_idle(make_duty(session).run)
    seconds = int((end - begin).total_seconds())
    ((times, jobs, distinct),) = query_value(
        dsn,
        "SELECT (SELECT count(*) FROM dl_firings WHERE fire_at <= %s AND outcome = 'made'), count(*),"
        " count(DISTINCT (schedule_id, logical_at)) FROM dl_jobs WHERE logical_at <= %s",
        end,
        end,
    )
    expected = RACED * (seconds + 1)
    assert times == jobs == distinct == expected, f"{expected} times, {times} rows, {jobs} jobs, {distinct} distinct"
    return [
        [
            f"race: {RACERS} processes, {killed} killed, {times:,} times, rows without a job or doubled",
            0.0,
            "",
            "–",
            "0",
        ]
    ]


def race_until_killed(dsn: str) -> None:
    """Fire until a kill at a moment that is drawn: before or after a statement, or during one."""
    session = Session(dsn, application_name="racer")
    duty, execute = make_duty(session), session.execute
    life = random.expovariate(1 / MEAN_LIFE_SEC)
    until = time.monotonic() + life

    def execute_and_die(*arguments: Any, **more: Any) -> Any:
        if time.monotonic() > until and random.random() < 0.5:
            os.kill(os.getpid(), signal.SIGKILL)
        rows = execute(*arguments, **more)
        if time.monotonic() > until:
            os.kill(os.getpid(), signal.SIGKILL)
        return rows

    for part in (duty._schedules, duty._queue):
        part._execute = execute_and_die
    if random.random() < 0.5:
        threading.Timer(life, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    while True:
        with suppress(DatabaseUnavailable):
            duty.run()


# ── slices ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure_slices(dsn: str, options: argparse.Namespace) -> list[Sequence[Cell]]:
    tasks = Pipelines()
    tasks.register("noop")(lambda args: None)
    made_sec = plain_sec = 0.0
    with closing(Session(dsn, application_name="bench")) as session:
        backfills, backfill_id = Backfills(session), create_backfill(session, "bench", options.slices)
        duty = BackfillsDuty(session, tasks, default_lease_sec=60)
        while (found := backfills.get(backfill_id)).made < options.slices:
            began = time.perf_counter()
            duty.run()
            made_sec += time.perf_counter() - began
            made = backfills.get(backfill_id).made - found.made
            query_value(dsn, _END_JOBS)
            began = time.perf_counter()
            query_value(dsn, _INSERT_PLAIN, made)
            plain_sec += time.perf_counter() - began
            query_value(dsn, "DELETE FROM dl_jobs WHERE status = 'queued'")
    query_value(dsn, "VACUUM ANALYZE dl_slices")
    pages = time_pages(dsn, tasks, ["/health", f"/backfills/{backfill_id}", "/slices/noop", "/backfills"])
    rates = {"plain jobs, one INSERT a group": options.slices / plain_sec, "slices": options.slices / made_sec}
    base = next(iter(rates.values()))
    return [
        *(
            [f"{options.slices:,} {name}", rate, "a second", format_ratio(rate / base), goal]
            for (name, rate), goal in zip(rates.items(), (None, "≥ 3,000"), strict=True)
        ),
        *(
            [f"page {name}", cost, "ms", format_ratio(cost / pages[0][1]), "≤ 60" if n else None]
            for n, (name, cost) in enumerate(pages)
        ),
    ]


def create_backfill(session: Session, queue: str, count: int) -> UUID:
    first = datetime(2000, 1, 1, tzinfo=UTC)
    last = first + timedelta(hours=count)
    slices = {"unit": "hour", "zone": "UTC", "start": first.isoformat()[:13], "end": last.isoformat()[:13]}
    template = definition_from({"task": "noop", "expression": "@daily", "queue": queue}, zone="UTC").to_json()
    backfill, _ = Backfills(session).create("noop", queue=queue, slices=slices, total=count, template=template)
    return backfill.backfill_id


def measure_claim(dsn: str, options: argparse.Namespace) -> list[Sequence[Cell]]:
    ready = 1_000
    names = (
        f"claim, {ready:,} ready",
        f"claim, {ready:,} ready, a limit of others set",
        f"claim, next to {options.slices:,} slices of another queue",
    )
    with ExitStack() as ends:
        places = [
            ends.enter_context(depth.open_database(options.server_dsn, dsn, n, depth.QueueContent(name, ready)))
            for n, name in enumerate(names)
        ]
        query_value(places[1].dsn, "INSERT INTO dl_limits (name, concurrency) VALUES ('warehouse', 2)")
        make_slices(places[2].dsn, options.slices)
        for place in places[:2]:
            query_value(place.dsn, "VACUUM ANALYZE")
        sides: dict[str, Callable[[], float]] = {
            place.content.name: partial(depth.time_claim, place, 1) for place in places
        }
        costs = [median(values) for values in run_rounds(sides, options.claims, warm_up=20).values()]
    return [
        [name, cost, "ms", format_ratio(cost / costs[0]), goal]
        for name, cost, goal in zip(names, costs, (None, "≤ 1.05", "≤ 1.05"), strict=True)
    ]


def make_slices(dsn: str, count: int) -> None:
    """Make all slices of a backfill; end the jobs of all but the last step."""
    tasks = Pipelines()
    tasks.register("noop")(lambda args: None)
    with closing(Session(dsn, application_name="bench")) as session:
        backfills, backfill_id = Backfills(session), create_backfill(session, "others", count)
        duty = BackfillsDuty(session, tasks, default_lease_sec=60)
        while True:
            duty.run()
            if backfills.get(backfill_id).made >= count:
                break
            query_value(dsn, f"{_END_JOBS} AND queue = 'others'")
    query_value(dsn, "VACUUM ANALYZE")


def time_pages(dsn: str, tasks: Pipelines, paths: Sequence[str]) -> list[tuple[str, float]]:
    pool = Pool(dsn, size=1, overflow=0)
    try:
        client = create_app(JobQueue(pool), tasks, WebOptions(version="0"), pool=pool).test_client()

        def get(path: str) -> None:
            assert client.get(path).status_code == HTTPStatus.OK, path

        taken = run_rounds({path: partial(milliseconds, partial(get, path)) for path in paths}, 20, warm_up=2)
    finally:
        pool.close()
    names = ["of a probe", "of the backfill", "of the task's slices", "of all backfills"]
    return [(name, median(costs)) for name, costs in zip(names, taken.values(), strict=True)]


PARTS: dict[str, Callable[[str, argparse.Namespace], list[Sequence[Cell]]]] = {
    "idle": measure_idle,
    "lateness": measure_lateness,
    "burst": measure_burst,
    "race": measure_race,
    "slices": measure_slices,
    "claim": measure_claim,
}

if __name__ == "__main__":
    main()
