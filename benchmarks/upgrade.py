"""Measures `dataloader migrate` on the tables of release 0.2.0 with many jobs, and on today's.

Takes about 5 minutes; with --jobs 10000000 about 40 minutes and 25 GB of disk.

The tables are those of the release, with as many jobs in each status, and two events and one line of log of each. The
upgrade from it needs all processes stopped, so its seconds are those in which no job starts. The second line is the way
of every later release: tables of today, whose functions and triggers are replaced while processes run.
"""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path

import psycopg2

from benchmarks.place import benchmark_server, describe_environment, fresh_database
from benchmarks.rounds import format_table, make_parser
from dataloader.app.db.schema import migrate

_SCHEMA = Path(__file__).parents[1] / "tests" / "releases" / "schema-0.2.0.sql"
_CHUNK = 500_000
_JOBS = """
SET session_replication_role = replica;
INSERT INTO dl_jobs (job_id, queue, task, lock_key, args, status, place, attempt, run_id, lease_expires_at, created_at,
                     started_at, finished_at)
SELECT gen_random_uuid(), 'etl', 'load.' || n %% 20, 'key ' || n, '{"day": "2026-01-31"}', status,
       CASE status WHEN 'queued' THEN 'ready' ELSE 'timed' END::dl_place, (status <> 'queued')::int,
       CASE WHEN status <> 'queued' THEN gen_random_uuid() END,
       CASE status WHEN 'running' THEN began + interval '1 min' END,
       began, CASE WHEN status <> 'queued' THEN began END,
       CASE WHEN status NOT IN ('queued', 'running') THEN began + interval '1 min' END
  FROM generate_series(%(first)s, %(last)s) n
       CROSS JOIN enum_range(NULL::dl_status) statuses
       CROSS JOIN LATERAL (SELECT now() - n * interval '1 second' AS began,
                                  statuses[1 + n %% cardinality(statuses)] AS status) x;
"""
_EVENTS = """
INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
SELECT job_id, queue, created_at, kind, '{"status": "succeeded", "attempt": 1}'
  FROM dl_jobs CROSS JOIN unnest(ARRAY['queued', 'done']) kind;
INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)
SELECT job_id, 1, created_at, 'INFO', 'log', 'loaded 1,000 rows of sales' FROM dl_jobs;
"""


def main() -> None:
    parser = make_parser(__name__, rounds=1)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    options = parser.parse_args()
    with benchmark_server() as (server_dsn, _), fresh_database(server_dsn, empty=True) as dsn:
        print(describe_environment(dsn))
        began = time.monotonic()
        _fill(dsn, options.jobs)
        print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)
        rows = []
        for name in ("from 0.2.0, processes stopped", "from this version, processes live"):
            began = time.monotonic()
            steps = migrate(dsn).steps
            rows.append([name, f"{options.jobs:,}", f"{time.monotonic() - began:.1f}", len(steps)])
            with closing(psycopg2.connect(dsn)) as connection, connection, connection.cursor() as cursor:
                cursor.execute("UPDATE dl_schema SET fingerprint = 'of another file'")
    print(format_table(["upgrade", "jobs", "seconds", "steps"], rows))


def _fill(dsn: str, count: int) -> None:
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(_SCHEMA.read_text(encoding="utf-8"))
            for first in range(1, count + 1, _CHUNK):
                cursor.execute(_JOBS, {"first": first, "last": min(first + _CHUNK - 1, count)})
            cursor.execute(_EVENTS)
            cursor.execute("ANALYZE")


if __name__ == "__main__":
    main()
