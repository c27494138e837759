"""What a claim costs when few jobs wait, when very many do, and when others stand around them.

Takes about 5 minutes; with --full, up to 10 million rows, about 15 minutes and 15 GB of disk.

Each line is a database of its own, filled before the first round: a thousand waiting jobs, the yardstick; more of them;
and a million with jobs ahead that are not due yet, in ten queues, behind a hundred thousand jobs of one lock_key that
runs, among finished jobs, and with plans that were made while the table was empty. In each round every database gives
single claims and claims of a hundred, through the queue's own code, each settled before the next and replaced by a new
job, so that a depth stays what it is. Only the claims' time counts, with their commit.

A ratio is the median claim over that of the yardstick in the same rounds; 1.5 is wanted at most. `pages` is how many of
them the server touched for a single claim, its settlement and the new job: a busy machine cannot change that figure.

The rows are made by set-based INSERTs with triggers off, so they have no journal; indexes are built after them, and
statistics are taken (but for the last line, whose session keeps the plans it made while the table was empty).
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

from app.queue.ids import draw_runs
from app.queue.job import Settlement, Status
from app.queue.jobqueue import JobQueue
from app.queue.session import Session
from benchmarks.place import ask, environment, fresh_database, some_server
from benchmarks.rounds import Cell, in_turn, median, options, quantile, table, times

WANTED = 1.5
BYTES_A_ROW = 700  # of table and indexes, generously
CHUNK = 1_000_000
FURTHEST = 500  # ready jobs that one claim of a worker looks at, at most

READY = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, place, created_at)
SELECT {queue}, 'noop', 'key ' || gen_random_uuid(), n %% 10 + 1, 'ready', clock_timestamp()
  FROM generate_series(1, %s) n
"""
FUTURE = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, available_at)
SELECT 'bench', 'noop', 'future ' || n, 0, now() + interval '1 day' + n * interval '1 second'
  FROM generate_series(1, %s) n
"""
ONE_KEY = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, place)
SELECT 'bench', 'noop', 'the one key', 0, 'ready' FROM generate_series(1, %s) n
"""
ITS_HOLDER = """
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, lease_expires_at, started_at)
VALUES ('bench', 'noop', 'the one key', 'running', 1, gen_random_uuid(), now() + interval '1 day', now())
"""
FINISHED = """
INSERT INTO dl_jobs (queue, task, lock_key, status, attempt, run_id, created_at, started_at, finished_at)
SELECT 'bench', 'noop', 'key ' || n, 'succeeded', 1, gen_random_uuid(), moment, moment, moment
  FROM generate_series(1, %s) n, LATERAL (SELECT now() - interval '30 days' + n * interval '1 ms' AS moment) m
"""
ONE_QUEUE, TEN_QUEUES = "'bench'", "CASE n %% 10 WHEN 0 THEN 'bench' ELSE 'bench ' || n %% 10 END"


@dataclass(frozen=True)
class Scene:
    """What stands in a database before the first claim."""

    name: str
    ready: int
    queue: str = ONE_QUEUE
    more: tuple[tuple[str, int], ...] = ()  # (statement, rows)
    stale: bool = False  # claims are prepared and planned first, and nobody takes statistics

    @property
    def rows(self) -> int:
        return self.ready + sum(rows for _, rows in self.more)


@dataclass(frozen=True)
class Taken:
    single_ms: float
    hundred_ms: float
    pages: float


@dataclass
class Place:
    """A filled database and the one session that claims from it."""

    scene: Scene
    dsn: str
    session: Session = field(init=False)
    queue: JobQueue = field(init=False)

    def __post_init__(self) -> None:
        self.session = Session(self.dsn, name="bench", command_timeout=600)
        self.queue = JobQueue(self.session)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__name__, rounds=15)
    parser.add_argument("--rows", type=int, nargs="+", help="waiting jobs; the first is the yardstick")
    parser.add_argument("--around", type=int, help="waiting jobs where others stand around them (default 1,000,000)")
    parser.add_argument("--scale", type=float, default=1.0, help="a factor for the jobs that stand around")
    parser.add_argument("--singles", type=int, default=20, help="single claims in a round")
    parser.add_argument("--hundreds", type=int, default=3, help="claims of a hundred in a round")
    parser.add_argument("--full", action="store_true", help="10 million waiting jobs, and as many finished ones")
    asked = parser.parse_args(argv)
    rows = asked.rows or [1_000, 100_000, 1_000_000, *([10_000_000] if asked.full else [])]
    scenes = all_scenes(rows, asked.around or 1_000_000, asked.scale, full=asked.full)
    see_to_room(scenes)
    with some_server({"max_wal_size": "8GB", "maintenance_work_mem": "512MB"}) as (server_dsn, _), ExitStack() as ends:
        print(environment(server_dsn))
        empty = ends.enter_context(fresh_database(server_dsn, "depth_empty"))
        places = [ends.enter_context(closing_place(server_dsn, empty, n, scene)) for n, scene in enumerate(scenes)]
        ask(server_dsn, "CHECKPOINT")
        sides: dict[str, Callable[[], Taken]] = {
            place.scene.name: partial(measure, place, asked.singles, asked.hundreds) for place in places
        }
        taken = in_turn(sides, asked.rounds, warm_up=1)
        sizes = [ask(place.dsn, "SELECT pg_database_size(current_database())")[0][0] for place in places]
    show(taken, sizes, asked.rounds)


def all_scenes(rows: Sequence[int], around: int, scale: float, *, full: bool) -> list[Scene]:
    def many(number: int) -> int:
        return max(1, round(number * scale))

    finished = many(10_000_000 if full else 1_000_000)
    return [
        *(Scene(f"{ready:,} waiting", ready) for ready in rows),
        Scene(f"{around:,} behind {many(30_000):,} future", around, more=((FUTURE, many(30_000)),)),
        Scene(f"{around:,} behind {many(200_000):,} future", around, more=((FUTURE, many(200_000)),)),
        Scene(f"{around:,} in 10 queues", around, TEN_QUEUES),
        Scene(
            f"{around:,} behind {many(100_000):,} of one key",
            around,
            more=((ITS_HOLDER, 1), (ONE_KEY, many(100_000))),
        ),
        Scene(f"{around:,} among {finished:,} finished", around, more=((FINISHED, finished),)),
        Scene(f"{around:,}, planned when empty", around, stale=True),
    ]


def see_to_room(scenes: Sequence[Scene]) -> None:
    need = sum(scene.rows for scene in scenes) * BYTES_A_ROW + 2**30
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if need > free:
        raise SystemExit(
            f"{need / 2**30:.0f} GiB may be needed in {tempfile.gettempdir()} and {free / 2**30:.0f} are free; "
            "name another folder with TMPDIR, or ask for fewer --rows"
        )


def show(taken: dict[str, list[Taken]], sizes: Sequence[int], rounds: int) -> None:
    singles, hundreds, pages = (
        {name: [getattr(one, what) for one in all_taken] for name, all_taken in taken.items()}
        for what in ("single_ms", "hundred_ms", "pages")
    )
    base = next(iter(taken))
    lines: list[Sequence[Cell]] = []
    for name, size in zip(taken, sizes, strict=True):
        single, hundred = median(singles[name]), median(hundreds[name])
        ratios = times(single / median(singles[base])), times(hundred / median(hundreds[base]))
        p95, megabytes = quantile(singles[name], 95), f"{size / 2**20:,.0f} MB"
        lines.append((name, single, ratios[0], p95, hundred, ratios[1], median(pages[name]), megabytes))
    print(f"{rounds} rounds in turn, medians; single claims and claims of a hundred, in ms")
    print(table(["jobs", "claim", "ratio", "p95", "of 100", "ratio", "pages", "database"], lines))
    worst = max(max(median(s[name]) / median(s[base]) for s in (singles, hundreds)) for name in taken)
    print(f"\nwanted: {WANTED} × at most; the worst is {times(worst)}")


# ── making a database ───────────────────────────────────────────────────────────────────────────────────────────────


class closing_place:
    """A database with the scene in it and a session that may claim; both go at the end."""

    def __init__(self, server_dsn: str, empty: str, number: int, scene: Scene) -> None:
        self._scene = scene
        self._database = fresh_database(server_dsn, f"depth_{number}", like=empty)

    def __enter__(self) -> Place:
        began = time.monotonic()
        self._place = Place(self._scene, self._database.__enter__())
        if self._scene.stale:
            plan_while_empty(self._place)
        fill(self._place)
        note = park_the_one_key(self._place) if any(sql is ONE_KEY for sql, _ in self._scene.more) else ""
        took = f"  {self._scene.name}: made in {time.monotonic() - began:.0f} s{note}"
        print(took, file=sys.stderr, flush=True)
        return self._place

    def __exit__(self, *what: Any) -> None:
        self._place.session.close()
        self._database.__exit__(*what)


def plan_while_empty(place: Place) -> None:
    """Often enough for the server to settle on one plan."""
    for _ in range(10):
        place.queue.claim("bench", ["noop"], draw_runs(1), "bench")
        place.queue.settle([])


def fill(place: Place) -> None:
    scene = place.scene
    with closing(psycopg2.connect(place.dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("SET session_replication_role = replica")  # no triggers
        if scene.stale:
            cursor.execute("ALTER TABLE dl_jobs SET (autovacuum_enabled = off)")
        indexes = () if scene.stale else take_indexes(cursor)
        for statement, rows in ((READY.format(queue=scene.queue), scene.ready), *scene.more):
            for done in range(0, rows, CHUNK):
                cursor.execute(statement, (min(CHUNK, rows - done),))
        for definition in indexes:
            cursor.execute(definition)
        if not scene.stale:
            cursor.execute("VACUUM ANALYZE dl_jobs")


def take_indexes(cursor: Any) -> list[str]:
    """Drop what can be built faster afterwards, and tell how."""
    cursor.execute(
        """
        SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid)
          FROM pg_index
         WHERE indrelid = 'dl_jobs'::regclass
           AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
        """
    )
    found = cursor.fetchall()
    for name, _ in found:
        cursor.execute(f"DROP INDEX {name}")
    return [definition for _, definition in found]


def park_the_one_key(place: Place) -> str:
    """Claim as a worker does that meets a long row of one busy key, until it is out of the way."""
    began, claims = time.monotonic(), 0
    while True:
        taken, outlook = place.queue.claim("bench", ["noop"], draw_runs(1), "bench", look=FURTHEST)
        claims += 1
        if taken:
            place.queue.settle([(taken[0], Settlement(Status.SUCCEEDED))])
        if not outlook.skipped:
            break
    took = time.monotonic() - began
    ((parked,),) = ask(place.dsn, "SELECT count(*) FROM dl_jobs WHERE place = 'parked' AND status = 'queued'")
    ask(place.dsn, "VACUUM ANALYZE dl_jobs")
    return f"; {parked:,} jobs of one key were parked once, by {claims:,} claims in {took:.1f} s"


# ── a round ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def measure(place: Place, singles: int, hundreds: int) -> Taken:
    before = pages_of(place)
    single_ms = median([one_claim(place, 1) for _ in range(singles)])
    pages = (pages_of(place) - before) / singles
    hundred_ms = median([one_claim(place, 100) for _ in range(hundreds)])
    return Taken(single_ms, hundred_ms, pages)


def one_claim(place: Place, most: int) -> float:
    """Milliseconds. What was claimed is settled, and as many new jobs come."""
    runs = draw_runs(most)
    began = time.perf_counter()
    taken, _ = place.queue.claim("bench", ["noop"], runs, "bench")
    took = (time.perf_counter() - began) * 1000
    assert len(taken) == most, f"{place.scene.name}: {len(taken)} of {most} jobs were claimed"
    place.queue.settle([(run, Settlement(Status.SUCCEEDED)) for run in taken])
    refill(place, most)
    return took


def refill(place: Place, rows: int) -> None:
    place.session.command(
        "SET session_replication_role = replica;"
        + (READY.format(queue=ONE_QUEUE) % rows)
        + "; SET session_replication_role = origin"
    )


def pages_of(place: Place) -> int:
    """How many pages the sessions of this database have touched so far."""
    place.session.command("SELECT pg_stat_force_next_flush()")
    name = parse_dsn(place.dsn)["dbname"]
    ((pages,),) = place.session.command(f"SELECT blks_hit + blks_read FROM pg_stat_database WHERE datname = '{name}'")
    return int(pages)


if __name__ == "__main__":
    main()
