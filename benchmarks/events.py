"""Measures how many events a second become statistics, with and without the pauses between batches.

Takes about 1 minute.

The events are those of jobs that ran without a mistake: queued, picked, done. All jobs were queued before the first one
started, so that the event before each end is in an earlier batch and has to be looked up. Without pauses is how the
maintenance leader aggregates when its statistics are more than a minute late; with pauses, when they are not late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks.place import benchmark_server, cpu_sec_of, describe_environment, fresh_database, query_value
from benchmarks.rounds import Cell, format_table, make_parser, median
from dataloader.app.db.connection import Session
from dataloader.app.features.statistics.duty import AGGREGATE_BATCH, INTERVAL_SEC, rest_sec
from dataloader.app.features.statistics.rows import StatisticsWriter

_FILL = """
WITH jobs AS (
    INSERT INTO dl_jobs (queue, task, lock_key, created_at, started_at, finished_at, status, attempt, wait_state)
    SELECT 'q' || n %% 5, 't' || n %% 20, 'key ' || n, now() - interval '3 s', now() - interval '2 s', now(),
           'succeeded', 1, 'scheduled'
      FROM generate_series(1, %s) n
    RETURNING job_id, queue, created_at, started_at, finished_at
), kinds (kind, n) AS (VALUES ('queued', 1), ('picked', 2), ('done', 3))
INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT job_id, queue, CASE n WHEN 1 THEN created_at WHEN 2 THEN started_at ELSE finished_at END, kind,
       jsonb_build_object('attempt', 1, 'status', 'running')
  FROM jobs CROSS JOIN kinds
 ORDER BY n, job_id
"""
_COUNT = "SELECT count(*) FROM dl_job_events"


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__name__, rounds=3)
    parser.add_argument("--jobs", type=int, default=50_000)
    options = parser.parse_args(argv)
    with benchmark_server() as (server_dsn, server):
        print(describe_environment(server_dsn))
        rows: list[list[Cell]] = []
        for name, has_pauses in (("without pauses", False), ("with pauses", True)):
            rates, cpu_us = [], []
            for _ in range(options.rounds):
                with fresh_database(server_dsn) as dsn:
                    query_value(dsn, _FILL, options.jobs if not has_pauses else max(1, options.jobs // 5))
                    query_value(dsn, "VACUUM ANALYZE")
                    ((count,),) = query_value(dsn, _COUNT)
                    cpu = 0.0 if server is None else cpu_sec_of(server)
                    seconds = aggregate_all(dsn, has_pauses=has_pauses)
                    rates.append(count / seconds)
                    cpu_us.append(0.0 if server is None else (cpu_sec_of(server) - cpu) / count * 1e6)
            rows.append([name, median(rates), median(rates) / 3, median(cpu_us) or None])
    print(format_table(("statistics", "events/s", "jobs/s", "server CPU, µs/event"), rows))


def aggregate_all(dsn: str, *, has_pauses: bool) -> float:
    """Return the seconds in which the maintenance leader aggregates all events."""
    session = Session(dsn, application_name="dataloader-maintenance")
    statistics, began = StatisticsWriter(session), time.perf_counter()
    try:
        while True:
            batch_began = time.perf_counter()
            if statistics.aggregate(AGGREGATE_BATCH) is None:
                return time.perf_counter() - began
            if has_pauses:
                time.sleep(min(INTERVAL_SEC, rest_sec(time.perf_counter() - batch_began, 0.0)))
    finally:
        session.close()


if __name__ == "__main__":
    main()
