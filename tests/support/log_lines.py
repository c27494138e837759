"""Three thousand lines of three jobs, one a minute, of which one job has been deleted."""

LINES = """
TRUNCATE dl_job_logs;
INSERT INTO dl_jobs (job_id, queue, task, lock_key, status, attempt, run_id, started_at)
SELECT ('00000000-0000-7000-8000-00000000000' || n)::uuid, 'etl', 'task ' || n, 'key ' || n, 'running', 1,
       gen_random_uuid(), now()
  FROM generate_series(1, 2) n;
INSERT INTO dl_job_logs (job_id, attempt, ts, level, stream, line)
SELECT ('00000000-0000-7000-8000-00000000000' || 1 + n % 3)::uuid, 1, now() - (3000 - n) * interval '1 min',
       CASE WHEN n % 10 = 0 THEN 'ERROR' ELSE 'INFO' END, 'log', 'line ' || n
  FROM generate_series(1, 3000) n
 ORDER BY n;
"""
