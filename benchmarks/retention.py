"""Checks that tables stay small and claims fast while millions of jobs pass through.

    python -m benchmarks.retention [--jobs 5000000] [--keep 60] [--claimers 2] [--batch 200] [--every 15]

Takes about 20 minutes.

Jobs are enqueued, claimed, settled and deleted at the same time: enqueued by dl_enqueue_many, claimed and settled in
batches by the service's own statements (without worker threads, which would dominate), and deleted by its own retention
with periods of seconds instead of days. One in a hundred jobs fails and is kept three times as long. The events have
partitions as usual, of seconds. Sizes and the cost of a claim are measured when all rows have been replaced once, and
again after --jobs further jobs. The goal is a ratio of at most 2.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.place import benchmark_server, describe_environment, fresh_database, query_value
from dataloader.app.db.connection import Session
from dataloader.app.features.retention.rows import Retention
from dataloader.app.queue.batch import enqueue_batch
from dataloader.app.queue.job import NewJob, Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue
from dataloader.app.queue.retention_periods import RetentionPeriods

QUEUE, TASK = "bench", "noop"
MAX_WAITING = 20_000
INSERT_BATCH, DELETE_BATCH = 2_000, 1_000
FAILURE_PERIOD = 100
SIZES = """
SELECT pg_relation_size('dl_jobs'), pg_indexes_size('dl_jobs'),
       (SELECT coalesce(sum(pg_relation_size(c.oid)), 0) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'dl_job_events'::regclass),
       (SELECT coalesce(sum(pg_indexes_size(c.oid)), 0) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'dl_job_events'::regclass),
       (SELECT count(*) FROM dl_partitions('dl_job_events'))
"""
SIZE_NAMES = ("jobs", "their indexes", "events", "their indexes")


@dataclass
class SharedState:
    """The state that the threads share."""

    stop: threading.Event = field(default_factory=threading.Event)
    done: int = 0  # guarded by the lock, like the next two
    waiting: int = 0
    claims: list[float] = field(default_factory=list)  # milliseconds, since the last report
    lock: threading.Lock = field(default_factory=threading.Lock)
    errors: list[BaseException] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5_000_000, help="jobs after all rows were replaced once")
    parser.add_argument("--keep", type=float, default=60.0, help="seconds that a succeeded job is kept")
    parser.add_argument("--claimers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=200, help="jobs per claim")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between lines of the report")
    options = parser.parse_args()
    with benchmark_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(describe_environment(server_dsn))
        for (part,) in query_value(dsn, "SELECT part FROM dl_partitions('dl_job_events')"):
            query_value(dsn, f'DROP TABLE "{part}"')  # partitions of a day would delay those of seconds
        query_value(dsn, "SELECT setval('dl_job_events_event_id_seq', 1)")
        work = SharedState()
        threads = [
            threading.Thread(target=run_guarded, args=(work, turn), daemon=True)
            for turn in make_loops(dsn, work, options)
        ]
        for thread in threads:
            thread.start()
        try:
            first = report_until_over(
                dsn, work, options, lambda: time.monotonic() - began > 4 * options.keep, began := time.monotonic()
            )
            begun_with = work.done
            last = report_until_over(
                dsn, work, options, lambda: work.done - begun_with >= options.jobs, time.monotonic()
            )
        finally:
            work.stop.set()
            for thread in threads:
                thread.join(30)
    print_results(first, last)


def run_guarded(state: SharedState, loop: Callable[[], None]) -> None:
    try:
        while not state.stop.is_set():
            loop()
    except BaseException as error:
        state.errors.append(error)
        state.stop.set()


def make_loops(dsn: str, state: SharedState, options: argparse.Namespace) -> list[Callable[[], None]]:
    def session(name: str) -> Session:
        return Session(dsn, application_name=name)

    maker = session("maker")
    ages = RetentionPeriods(
        succeeded=options.keep, failed=3 * options.keep, events=3 * options.keep, logs=3 * options.keep
    )
    keeper = Retention(session("keeper"), ages)
    claimers = [JobQueue(session(f"claimer-{n}")) for n in range(options.claimers)]

    def make() -> None:
        if state.waiting >= MAX_WAITING:
            state.stop.wait(0.01)
            return
        enqueue_batch(
            maker, [NewJob(queue=QUEUE, task=TASK, lock_key=f"{time.monotonic_ns()}-{n}") for n in range(INSERT_BATCH)]
        )
        with state.lock:
            state.waiting += INSERT_BATCH

    def delete() -> None:
        keeper.create_partitions()
        full = keeper.prune(limit=DELETE_BATCH).has_more
        keeper.drop_partitions()
        if not full:
            state.stop.wait(0.2)

    def claim(queue: JobQueue) -> None:
        began = time.perf_counter()
        jobs, _ = queue.claim(QUEUE, [TASK], new_run_ids(options.batch), "bench")
        took = time.perf_counter() - began
        ends = [
            (
                job,
                Settlement(Status.FAILED, error="failed") if n % FAILURE_PERIOD == 0 else Settlement(Status.SUCCEEDED),
            )
            for n, job in enumerate(jobs)
        ]
        if ends:
            queue.settle(ends)
        else:
            state.stop.wait(0.01)
        with state.lock:
            state.done += len(jobs)
            state.waiting -= len(jobs)
            if jobs:
                state.claims.append(took * 1000)

    return [make, delete, *(lambda queue=queue: claim(queue) for queue in claimers)]


@dataclass(frozen=True)
class Measurement:
    sizes: tuple[int, ...]
    claim_ms: float
    jobs_per_sec: float


def report_until_over(
    dsn: str, state: SharedState, options: argparse.Namespace, is_over: Callable[[], bool], started_at: float
) -> Measurement:
    """Report until the phase is over; return the last measurement."""
    seen = Measurement((0,) * 4, 0.0, 0.0)
    before = state.done
    while not state.stop.is_set():
        state.stop.wait(options.every)
        with state.lock:
            claims, state.claims = state.claims, []
            done = state.done
        *sizes, parts = query_value(dsn, SIZES)[0]
        sizes = [int(size) for size in sizes]
        seen = Measurement(tuple(sizes), statistics.median(claims or [0.0]), (done - before) / options.every)
        before = done
        sizes_text = "  ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in zip(SIZE_NAMES, sizes, strict=True))
        print(
            f"{time.monotonic() - started_at:6.0f} s  {done:>10,} jobs  {seen.jobs_per_sec:>7,.0f}/s  "
            f"claim {seen.claim_ms:.1f} ms  {sizes_text}  {parts} partitions",
            flush=True,
        )
        if is_over():
            return seen
    raise SystemExit(f"a thread ended: {state.errors}")


def print_results(first: Measurement, last: Measurement) -> None:
    print(f"\n{'':<16}{'at the start':>14}{'at the end':>14}{'ratio':>8}")
    for name, start, end in zip(SIZE_NAMES, first.sizes, last.sizes, strict=True):
        print(f"{name:<16}{start / 1e6:>11,.0f} MB{end / 1e6:>11,.0f} MB{end / max(1, start):>8.2f}")
    print(
        f"{'claim, p50':<16}{first.claim_ms:>11.1f} ms{last.claim_ms:>11.1f} ms{last.claim_ms / first.claim_ms:>8.2f}"
    )
    print(f"{'jobs/s':<16}{first.jobs_per_sec:>14,.0f}{last.jobs_per_sec:>14,.0f}")


if __name__ == "__main__":
    main()
