"""Measures what limits cost: jobs without one, jobs behind others that wait, and jobs that share one.

Takes about 6 minutes, of which the rows of the claims take half.

Each ratio is to a yardstick of the same rounds, which take turns.

*Drain*: jobs per second of one worker process with empty jobs: no limit set, and one that none of the jobs has. Once
any limit is set, each claim looks up the limits of its jobs.

*Claim*: one plain job among a thousand, alone and next to jobs that wait for other jobs and for a limit, a million of
each (`--rows`); and with a limit set.

*Sharing*: four sessions that claim groups of 20 and settle them, until 12,000 jobs are done: without a limit, in one
limit of 100, which is never full and costs its lock; and a sixth of them in one of 10, where nearly all jobs wait and
are woken.

*Turns*: one claim in a fair queue of 1,000 jobs of 100 tenants, and of a million (`--rows`) of 10,000, of which one has
half; for one job and for 20, next to claims by age in the same queues.

*Children*: a chain of jobs, each after the one before, in a worker with two threads that is otherwise idle:
milliseconds from the end of the parent to the claim of its child, by the events' times. The yardstick is the time from
an INSERT to the claim of that job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from threading import Event

from benchmarks import depth, drain
from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_ratio, format_table, make_parser, median, run_rounds
from dataloader.app.db.connection import Session
from dataloader.app.queue.claims import FIRST_TURN, ClaimMode, ClaimRequest
from dataloader.app.queue.job import Released, ReleaseReason, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.pipelines.contract import Pipelines
from dataloader.workers.pool import WorkerPool
from dataloader.workers.pool_options import PoolOptions

MAX_CLAIM_RATIO = 1.05
CLAIMERS, GROUP = 4, 20
EMPTY_PAUSE_SEC = 0.002
SHARING_TIMEOUT_SEC = 600.0

WAITING = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, wait_state)
SELECT 'bench', 'noop', 'waiting ' || n, 0, 'waiting' FROM generate_series(1, %s) n
"""
LIMITED = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, wait_state, limits, waits_on)
SELECT 'bench', 'noop', 'limited ' || n, 0, 'limited', '{"warehouse": 1}', 'warehouse' FROM generate_series(1, %s) n
"""
SET_LIMIT = "INSERT INTO dl_limits (name, concurrency) VALUES ('warehouse', {})"
FILL_SHARED = """
INSERT INTO dl_jobs (queue, task, lock_key, limits)
SELECT 'bench', 'noop', 'key ' || n, %s::jsonb FROM generate_series(1, %s) n
"""


FILL_TENANTS = """
INSERT INTO dl_jobs (queue, task, lock_key, wait_state, fair_key)
SELECT 'bench', 'noop', 'key ' || n, 'ready', CASE WHEN n %% 2 = 0 THEN 'big' ELSE 'tenant ' || n %% (2 * %s) END
  FROM generate_series(1, %s) n
"""
MAKE_FAIR = "INSERT INTO dl_queues (queue, fair) VALUES ('bench', 'partition_key')"
MAX_TURN_RATIO = 1.5


INSERT_SINGLE = "INSERT INTO dl_jobs (queue, task, lock_key) VALUES ('bench', 'noop', %s)"
ENQUEUE_CHAIN = """
SELECT count(*) FROM dl_enqueue_graph(jsonb_build_object('jobs', (
    SELECT jsonb_agg(jsonb_build_object('key', n::text, 'queue', 'bench', 'task', 'noop', 'lock_key', 'chain ' || n,
               'after', CASE WHEN n = 1 THEN '[]' ELSE jsonb_build_array(jsonb_build_object('job', (n - 1)::text)) END)
             ORDER BY n)
      FROM generate_series(1, %s) n)))
"""
LEFT = "SELECT count(*) FROM dl_jobs WHERE status IN ('queued', 'running')"
SINGLE_LATENCIES = """
SELECT string_agg((extract(epoch FROM p.ts - q.ts) * 1000)::text, ',')
  FROM dl_job_events p JOIN dl_job_events q USING (job_id)
 WHERE p.kind = 'picked' AND q.kind = 'queued'
"""
CHILD_LATENCIES = """
SELECT string_agg((extract(epoch FROM p.ts - d.ts) * 1000)::text, ',')
  FROM dl_edges e
       JOIN dl_job_events p ON p.job_id = e.child_id AND p.kind = 'picked'
       JOIN dl_job_events d ON d.job_id = e.parent_id AND d.kind = 'done'
"""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=5)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="what to measure")
    parser.add_argument("--rows", type=int, default=1_000_000, help="jobs that wait for other jobs, and for a limit")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs of a drain")
    parser.add_argument("--shared", type=int, default=12_000, help="jobs that share a limit")
    parser.add_argument("--chain", type=int, default=500, help="jobs of a chain")
    parser.add_argument("--singles", type=int, default=60, help="claims per round")
    options = parser.parse_args(argv)
    rows: list[Sequence[Cell]] = []
    with benchmark_server({"max_wal_size": "8GB", "maintenance_work_mem": "512MB"}) as (server_dsn, server):
        print(describe_environment(server_dsn))
        for part in options.parts:
            if part == "drain":
                rows += measure_drain(partial(drain.run_round, drain.DATALOADER[0], server_dsn, server), options.jobs,
                                      options.rounds)  # fmt: skip
            elif part == "claim":
                rows += measure_claim(server_dsn, options.rows, options.rounds, options.singles)
            elif part == "turns":
                rows += measure_turns(server_dsn, options.rows, options.rounds, options.singles)
            elif part == "children":
                rows += measure_children(server_dsn, options.chain)
            else:
                rows += measure_sharing(server_dsn, options.shared, options.rounds)
    print(f"{options.rounds} rounds in turn, medians\n")
    print(format_table(["", "figure", "unit", "ratio", "goal"], rows, text_columns=(0, 2)))


PARTS = ("drain", "claim", "sharing", "turns", "children")


def measure_drain(run_round: Callable[..., drain.DrainCosts], jobs: int, rounds: int) -> list[Sequence[Cell]]:
    sides: dict[str, Callable[[], float]] = {
        "drain, no limit set": lambda: run_round(jobs, 10).jobs_per_sec,
        "drain, an unrelated limit set": lambda: run_round(jobs, 10, SET_LIMIT.format(10)).jobs_per_sec,
    }
    taken = run_rounds(sides, rounds, log=lambda _, speed: f"{speed:,.0f} jobs/s")
    return table_rows(taken, "jobs/s", None)


def measure_claim(server_dsn: str, rows: int, rounds: int, singles: int) -> list[Sequence[Cell]]:
    ready = 1_000
    others = ((WAITING, rows), (LIMITED, rows))
    contents = [
        depth.QueueContent(f"claim, {ready:,} ready", ready),
        depth.QueueContent(f"claim, next to {rows:,} waiting and {rows:,} limited", ready, other_rows=others),
        depth.QueueContent(f"claim, {ready:,} ready, a limit set", ready),
        depth.QueueContent(f"claim, next to {rows:,} and {rows:,}, a limit set", ready, other_rows=others),
    ]
    depth.require_disk_space(contents)
    with ExitStack() as ends:
        empty = ends.enter_context(fresh_database(server_dsn, "flow_empty"))
        places = [
            ends.enter_context(depth.open_database(server_dsn, empty, n, content)) for n, content in enumerate(contents)
        ]
        for place in places[2:]:
            query_value(place.dsn, SET_LIMIT.format(0))
        query_value(server_dsn, "CHECKPOINT")
        sides: dict[str, Callable[[], float]] = {
            place.content.name: partial(depth.time_claim, place, 1) for place in places
        }
        costs = run_rounds(sides, rounds * singles, warm_up=20)  # claim by claim: other load changes within a round
    plain, limited = dict(list(costs.items())[:2]), dict(list(costs.items())[2:])
    return [*table_rows(plain, "ms", f"≤ {MAX_CLAIM_RATIO}"), *table_rows(limited, "ms", f"≤ {MAX_CLAIM_RATIO}")]


def measure_sharing(server_dsn: str, jobs: int, rounds: int) -> list[Sequence[Cell]]:
    sides: dict[str, Callable[[], float]] = {
        f"{CLAIMERS} claimers, no limit": partial(share, server_dsn, jobs, None),
        f"{CLAIMERS} claimers, one limit of 100": partial(share, server_dsn, jobs, 100),
        f"{CLAIMERS} claimers, one limit of 10": partial(share, server_dsn, max(1, jobs // 6), 10),  # slow
    }
    return table_rows(run_rounds(sides, rounds, log=lambda _, speed: f"{speed:,.0f} jobs/s"), "jobs/s", None)


def share(server_dsn: str, jobs: int, concurrency: int | None) -> float:
    """Return the jobs per second of sessions that claim and settle until all jobs are done."""
    with fresh_database(server_dsn) as dsn:
        if concurrency is not None:
            query_value(dsn, SET_LIMIT.format(concurrency))
        query_value(dsn, FILL_SHARED, None if concurrency is None else '{"warehouse": 1}', jobs)
        query_value(dsn, "VACUUM ANALYZE dl_jobs")
        until = time.monotonic() + SHARING_TIMEOUT_SEC
        done: list[int] = []  # each claimer appends the size of its groups
        failed = Event()
        with ThreadPoolExecutor(CLAIMERS) as threads:
            began = time.perf_counter()
            claimers = [threads.submit(claim_and_settle, dsn, done, jobs, until, failed) for _ in range(CLAIMERS)]
            for claimer in claimers:
                claimer.result()
            seconds = time.perf_counter() - began
        assert sum(done) == jobs, f"{sum(done)} of {jobs} jobs were done in {SHARING_TIMEOUT_SEC:.0f} s"
        return jobs / seconds


def claim_and_settle(dsn: str, done: list[int], jobs: int, until: float, failed: Event) -> None:
    with closing(Session(dsn, application_name="bench", command_timeout_sec=600)) as session:
        queue = JobQueue(session)
        try:
            while sum(done) < jobs and time.monotonic() < until and not failed.is_set():
                claimed, _ = queue.claim("bench", ["noop"], new_run_ids(GROUP), "bench")
                if claimed:
                    queue.settle([(job, Settlement(Status.SUCCEEDED)) for job in claimed])
                    done.append(len(claimed))
                else:
                    time.sleep(EMPTY_PAUSE_SEC)
        except BaseException:
            failed.set()  # the others would wait for the jobs that this one has claimed
            raise


def measure_turns(server_dsn: str, jobs: int, rounds: int, singles: int) -> list[Sequence[Cell]]:
    rows: list[Sequence[Cell]] = []
    with ExitStack() as ends:
        sessions = {}
        for count, tenants in ((1_000, 100), (jobs, 10_000)):
            dsn = ends.enter_context(fresh_database(server_dsn))
            query_value(dsn, MAKE_FAIR)
            query_value(dsn, FILL_TENANTS, tenants, count)
            query_value(dsn, "VACUUM ANALYZE dl_jobs")
            session = ends.enter_context(closing(Session(dsn, application_name="bench", command_timeout_sec=600)))
            sessions[f"{count:,} jobs of {tenants:,} tenants"] = session
        query_value(server_dsn, "CHECKPOINT")
        for group in (1, GROUP):
            for in_turn in (False, True):
                way = "in turn" if in_turn else "by age"
                sides: dict[str, Callable[[], float]] = {
                    f"claim of {group} {way}, {name}": TurnTimer(session, group, in_turn=in_turn).time_claim
                    for name, session in sessions.items()
                }
                goal = f"≤ {MAX_TURN_RATIO}" if in_turn else None
                rows += table_rows(run_rounds(sides, rounds * singles, warm_up=20), "ms", goal)
    return rows


class TurnTimer:
    """Claims as one process does, which remembers where its last claim ended. What it claims goes back."""

    def __init__(self, session: Session, group: int, *, in_turn: bool) -> None:
        self._session, self._group, self._in_turn = session, group, in_turn
        self._turn = FIRST_TURN

    def time_claim(self) -> float:
        queue = JobQueue(self._session)
        began = time.perf_counter()
        request = ClaimRequest(ClaimMode.IN_TURN, self._turn) if self._in_turn else ClaimRequest()
        claimed, hint = queue.claim("bench", ["noop"], new_run_ids(self._group), "bench", request)
        milliseconds = 1000 * (time.perf_counter() - began)
        self._turn = hint.next_start or self._turn
        assert len(claimed) == self._group
        queue.release([(job, Released(ReleaseReason.NOT_STARTED)) for job in claimed])
        return milliseconds


def measure_children(server_dsn: str, jobs: int) -> list[Sequence[Cell]]:
    tasks = Pipelines()
    tasks.register("noop")(lambda args: None)
    with fresh_database(server_dsn) as dsn:
        pool = WorkerPool(tasks, PoolOptions(dsn=dsn, queues={"bench": 2}), on_crash=print)
        pool.start()
        try:
            wait_until(lambda: pool.state().listener == "listening")
            for n in range(jobs):
                query_value(dsn, INSERT_SINGLE, f"single {n}")
                wait_until(lambda: query_value(dsn, LEFT)[0][0] == 0)
            singles = latencies(dsn, SINGLE_LATENCIES)
            query_value(dsn, ENQUEUE_CHAIN, jobs)
            wait_until(lambda: query_value(dsn, LEFT)[0][0] == 0)
            children = latencies(dsn, CHILD_LATENCIES)
        finally:
            pool.stop(5.0)
    rows: list[Sequence[Cell]] = []
    for name, values, goals in (
        ("insert to claim", singles, ("", "")),
        ("end of a parent to claim", children, ("≤ 3", "≤ 15")),
    ):
        for percentile, goal in zip((50, 99), goals, strict=True):
            value = values[min(len(values) - 1, len(values) * percentile // 100)]
            base = singles[min(len(singles) - 1, len(singles) * percentile // 100)]
            rows.append([f"{name}, p{percentile}", value, "ms", format_ratio(value / base), goal or None])
    return rows


def latencies(dsn: str, text: str) -> list[float]:
    return sorted(float(value) for value in query_value(dsn, text)[0][0].split(","))


def wait_until(is_done: Callable[[], bool]) -> None:
    until = time.monotonic() + SHARING_TIMEOUT_SEC
    while not is_done():
        assert time.monotonic() < until, "the jobs take too long"
        time.sleep(EMPTY_PAUSE_SEC)


def table_rows(results: dict[str, list[float]], unit: str, goal: str | None) -> list[Sequence[Cell]]:
    """The first side is the yardstick."""
    base = median(next(iter(results.values())))
    return [
        [name, median(values), unit, format_ratio(median(values) / base), goal if n else None]
        for n, (name, values) in enumerate(results.items())
    ]


if __name__ == "__main__":
    main()
