"""Do the tables stay small, and claims quick, while millions of jobs go through them?

    python -m benchmarks.retention [--jobs 5000000] [--keep 60] [--claimers 2] [--batch 200] [--every 15]

Jobs are made, claimed, ended and deleted at the same time: made by dl_enqueue_many, claimed and settled by the
service's own statements in batches (threads that run them would be what is measured), deleted by its own retention with
ages of seconds instead of days, so that as many go as come. One in a hundred fails, and is kept three times as long.
The journal is cut into parts as ever, of seconds. When all that is kept has been replaced once, sizes and the cost of a
claim are noted; after --jobs more they are noted again. They should be about the same: within twice.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from app.queue.batch import Batch
from app.queue.ids import draw_runs
from app.queue.job import NewJob, Settlement, Status
from app.queue.jobqueue import JobQueue
from app.queue.retention import Ages, Retention
from app.queue.session import Session
from benchmarks.place import ask, environment, fresh_database, some_server

QUEUE, TASK = "bench", "noop"
DEPTH = 20_000  # jobs that wait
MADE_AT_ONCE, DELETED_AT_ONCE = 2_000, 1_000
ONE_FAILS = 100
SIZES = """
SELECT pg_relation_size('dl_jobs'), pg_indexes_size('dl_jobs'),
       (SELECT coalesce(sum(pg_relation_size(c.oid)), 0) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'dl_job_events'::regclass),
       (SELECT coalesce(sum(pg_indexes_size(c.oid)), 0) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
         WHERE i.inhparent = 'dl_job_events'::regclass),
       (SELECT count(*) FROM dl_parts('dl_job_events'))
"""
NAMES = ("jobs", "their indexes", "journal", "its indexes")


@dataclass
class Work:
    """What the threads share."""

    stop: threading.Event = field(default_factory=threading.Event)
    done: int = 0  # under the lock, as the next two
    waiting: int = 0
    claims: list[float] = field(default_factory=list)  # milliseconds since they were last looked at
    lock: threading.Lock = field(default_factory=threading.Lock)
    errors: list[BaseException] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5_000_000, help="after everything was replaced once")
    parser.add_argument("--keep", type=float, default=60.0, help="seconds that a success is kept")
    parser.add_argument("--claimers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=200, help="jobs a claim")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between two lines of the report")
    asked = parser.parse_args()
    with some_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
        print(environment(server_dsn))
        for (part,) in ask(dsn, "SELECT part FROM dl_parts('dl_job_events')"):
            ask(dsn, f'DROP TABLE "{part}"')  # of days; those of seconds would begin only after it
        ask(dsn, "SELECT setval('dl_job_events_event_id_seq', 1)")
        work = Work()
        threads = [threading.Thread(target=guarded, args=(work, turn), daemon=True) for turn in turns(dsn, work, asked)]
        for thread in threads:
            thread.start()
        try:
            first = after(
                dsn, work, asked, lambda: time.monotonic() - began > 4 * asked.keep, began := time.monotonic()
            )
            begun_with = work.done
            last = after(dsn, work, asked, lambda: work.done - begun_with >= asked.jobs, time.monotonic())
        finally:
            work.stop.set()
            for thread in threads:
                thread.join(30)
    show(first, last)


def guarded(work: Work, turn: Callable[[], None]) -> None:
    try:
        while not work.stop.is_set():
            turn()
    except BaseException as error:
        work.errors.append(error)
        work.stop.set()


def turns(dsn: str, work: Work, asked: argparse.Namespace) -> list[Callable[[], None]]:
    def session(name: str) -> Session:
        return Session(dsn, name=name)

    maker = Batch(session("maker"))
    ages = Ages(succeeded=asked.keep, failed=3 * asked.keep, journal=3 * asked.keep, logs=3 * asked.keep)
    keeper = Retention(session("keeper"), ages)
    claimers = [JobQueue(session(f"claimer-{n}")) for n in range(asked.claimers)]

    def make() -> None:
        if work.waiting >= DEPTH:
            work.stop.wait(0.01)
            return
        maker.enqueue(
            [NewJob(queue=QUEUE, task=TASK, lock_key=f"{time.monotonic_ns()}-{n}") for n in range(MADE_AT_ONCE)]
        )
        with work.lock:
            work.waiting += MADE_AT_ONCE

    def delete() -> None:
        keeper.keep_parts()
        full = keeper.prune(most=DELETED_AT_ONCE).full
        keeper.drop_parts()
        if not full:
            work.stop.wait(0.2)

    def claim(queue: JobQueue) -> None:
        began = time.perf_counter()
        jobs, _ = queue.claim(QUEUE, [TASK], draw_runs(asked.batch), "bench")
        took = time.perf_counter() - began
        ends = [
            (job, Settlement(Status.FAILED, error="it broke") if n % ONE_FAILS == 0 else Settlement(Status.SUCCEEDED))
            for n, job in enumerate(jobs)
        ]
        if ends:
            queue.settle(ends)
        else:
            work.stop.wait(0.01)
        with work.lock:
            work.done += len(jobs)
            work.waiting -= len(jobs)
            if jobs:
                work.claims.append(took * 1000)

    return [make, delete, *(lambda queue=queue: claim(queue) for queue in claimers)]


@dataclass(frozen=True)
class Seen:
    sizes: tuple[int, ...]
    claim_ms: float
    jobs_a_second: float


def after(dsn: str, work: Work, asked: argparse.Namespace, over: Callable[[], bool], began: float) -> Seen:
    """Report until it is over; what was seen in the last stretch."""
    seen = Seen((0,) * 4, 0.0, 0.0)
    before = work.done
    while not work.stop.is_set():
        work.stop.wait(asked.every)
        with work.lock:
            claims, work.claims = work.claims, []
            done = work.done
        *sizes, parts = ask(dsn, SIZES)[0]
        sizes = [int(size) for size in sizes]
        seen = Seen(tuple(sizes), statistics.median(claims or [0.0]), (done - before) / asked.every)
        before = done
        told = "  ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in zip(NAMES, sizes, strict=True))
        print(
            f"{time.monotonic() - began:6.0f} s  {done:>10,} jobs  {seen.jobs_a_second:>7,.0f}/s  "
            f"claim {seen.claim_ms:.1f} ms  {told}  {parts} parts",
            flush=True,
        )
        if over():
            return seen
    raise SystemExit(f"a thread ended: {work.errors}")


def show(first: Seen, last: Seen) -> None:
    print(f"\n{'':<16}{'at the start':>14}{'at the end':>14}{'ratio':>8}")
    for name, start, end in zip(NAMES, first.sizes, last.sizes, strict=True):
        print(f"{name:<16}{start / 1e6:>11,.0f} MB{end / 1e6:>11,.0f} MB{end / max(1, start):>8.2f}")
    print(
        f"{'claim, p50':<16}{first.claim_ms:>11.1f} ms{last.claim_ms:>11.1f} ms{last.claim_ms / first.claim_ms:>8.2f}"
    )
    print(f"{'jobs/s':<16}{first.jobs_a_second:>14,.0f}{last.jobs_a_second:>14,.0f}")


if __name__ == "__main__":
    main()
