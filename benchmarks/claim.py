"""Measures the cost of a claim with few and with many waiting jobs.

    python -m benchmarks.claim                    1,000 and 1,000,000 waiting jobs
    python -m benchmarks.claim --rows 1000 100000

Uses a temporary embedded server, or the server in DL_BENCH_DSN, and a database that is dropped afterwards.
"""

from __future__ import annotations

import argparse
import statistics
import time

from benchmarks.place import benchmark_server, fresh_database, query_value
from dataloader.app.db.connection import Session
from dataloader.app.queue.job import Settlement, Status, new_run_ids
from dataloader.app.queue.jobs import JobQueue

FILL = """
INSERT INTO dl_jobs (queue, task, lock_key, priority, wait_state)
SELECT 'bench', 'noop', 'key ' || n, n %% 10, 'ready' FROM generate_series(1, %s) n
"""


def fill(dsn: str, rows: int) -> None:
    query_value(dsn, FILL, rows)
    query_value(dsn, "VACUUM ANALYZE dl_jobs")
    query_value(dsn, "CHECKPOINT")


def measure(dsn: str, times: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of each claim, and of each claim with its settlement, one job at a time."""
    session = Session(dsn, application_name="bench")
    queue = JobQueue(session)
    claim_ms, cycle_ms = [], []
    for n in range(times + 20):
        started_at = time.perf_counter()
        (run,), _ = queue.claim("bench", ["noop"], new_run_ids(1), "bench")
        claimed_at = time.perf_counter()
        queue.settle([(run, Settlement(Status.SUCCEEDED))])
        ended_at = time.perf_counter()
        if n >= 20:  # the first claims connect, prepare and warm up
            claim_ms.append((claimed_at - started_at) * 1000)
            cycle_ms.append((ended_at - started_at) * 1000)
    session.close()
    return claim_ms, cycle_ms


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of a claim at several queue depths.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 1_000_000], help="numbers of waiting jobs")
    parser.add_argument("--times", type=int, default=400, help="claims to measure at each depth")
    options = parser.parse_args()

    medians = []
    print(f"{'waiting':>10}  {'claim p50':>10}  {'p95':>8}  {'with settle p50':>16}  {'p95':>8}   (ms)")
    for rows in options.rows:
        with benchmark_server() as (server_dsn, _), fresh_database(server_dsn) as dsn:
            fill(dsn, max(rows, options.times + 20))
            claims, both = measure(dsn, options.times)
        medians.append(statistics.median(claims))
        p95, p95_both = (statistics.quantiles(times, n=20)[-1] for times in (claims, both))
        print(f"{rows:>10,}  {medians[-1]:>10.3f}  {p95:>8.3f}  {statistics.median(both):>16.3f}  {p95_both:>8.3f}")
    if len(medians) > 1:
        print(f"a claim at {options.rows[-1]:,} costs {medians[-1] / medians[0]:.2f} times one at {options.rows[0]:,}")


if __name__ == "__main__":
    main()
