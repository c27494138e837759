-- Graphs: jobs that wait for other jobs. See the tables and functions of schema.sql.

-- name: enqueue_graph
SELECT graph_id, created, key, job_id FROM dl_enqueue_graph(%(graph)s::jsonb);

-- name: fan_out
-- Creates jobs and a successor that waits for them, which is the last request: all, or none. One that exists waits already.
WITH made AS MATERIALIZED (
    SELECT n, outcome, job_id, field, detail FROM dl_enqueue_many(%(jobs)s::jsonb, true)
), parents AS MATERIALIZED (
    SELECT jsonb_agg(jsonb_build_object('job_id', job_id, 'on', %(on)s::text)) AS after
      FROM made
     WHERE n < (SELECT max(n) FROM made)
), successor AS MATERIALIZED (
    SELECT dl_set_parents(m.job_id, p.after, %(need)s::text)
      FROM made m, parents p
     WHERE m.n = (SELECT max(n) FROM made) AND m.outcome = 'created' AND p.after IS NOT NULL
)
SELECT outcome, job_id, field, detail FROM made WHERE (SELECT count(*) FROM successor) >= 0 ORDER BY n;

-- name: decide_left
-- prepared
-- Decides children that the ends of their parents have left, because a row was locked or there were too many. Returns how many
-- ends are left after that, and how many children were decided.
WITH work AS MATERIALIZED (
    SELECT array_agg(job_id) AS ended FROM (SELECT job_id FROM dl_graph_work LIMIT 500) w
), decided AS MATERIALIZED (
    SELECT dl_decide_children(work.ended) AS n FROM work WHERE work.ended IS NOT NULL AND pg_try_advisory_xact_lock(1684828527, 9)
)
SELECT coalesce((SELECT sum(n)::int FROM decided), 0) AS decided, (SELECT count(*)::int FROM dl_graph_work) AS before;

-- name: get_graph
SELECT graph_id, name, on_failure, created_by, created_at FROM dl_graphs WHERE graph_id = %(graph_id)s::uuid;

-- name: list_graphs
-- The newest graphs older than `before`, and with `open_too` older ones that have waiting or running jobs. Of each at most `max_jobs`
-- jobs are counted.
WITH newest AS MATERIALIZED (
    SELECT graph_id
      FROM dl_graphs
     WHERE (%(before)s::uuid IS NULL OR graph_id < %(before)s::uuid)
       AND (%(name)s::text IS NULL OR strpos(lower(name), lower(%(name)s::text)) > 0)
     ORDER BY graph_id DESC
     LIMIT %(limit)s::int
), active AS MATERIALIZED (
    (SELECT graph_id FROM dl_jobs WHERE %(open_too)s::bool AND status = 'running' AND graph_id IS NOT NULL LIMIT 1000)
    UNION
    (SELECT graph_id FROM dl_jobs WHERE %(open_too)s::bool AND status = 'queued' AND wait_state = 'waiting' LIMIT 1000)
), shown AS (
    SELECT g.*
      FROM dl_graphs g
     WHERE g.graph_id IN (SELECT graph_id FROM newest)
        OR g.graph_id IN (SELECT graph_id FROM active)
           AND (%(name)s::text IS NULL OR strpos(lower(g.name), lower(%(name)s::text)) > 0)
)
SELECT s.graph_id, s.name, s.on_failure, s.created_by, s.created_at, counts.*,
       CASE WHEN counts.ended < counts.jobs THEN CASE WHEN counts.running > 0 THEN 'running' ELSE 'waiting' END
            WHEN counts.failed > 0 THEN 'failed' WHEN counts.canceled > 0 THEN 'canceled' ELSE 'succeeded' END AS status
  FROM shown s
       CROSS JOIN LATERAL (
           SELECT count(*)::int AS jobs,
                  count(*) FILTER (WHERE status NOT IN ('queued', 'running'))::int AS ended,
                  count(*) FILTER (WHERE status = 'running')::int AS running,
                  count(*) FILTER (WHERE status IN ('failed', 'lost'))::int AS failed,
                  count(*) FILTER (WHERE status = 'canceled' AND skipped IS NOT TRUE)::int AS canceled,
                  count(*) FILTER (WHERE skipped)::int AS skipped,
                  min(started_at) AS started_at, max(finished_at) AS finished_at
             FROM (SELECT status, skipped, started_at, finished_at
                     FROM dl_jobs
                    WHERE graph_id = s.graph_id AND graph_id IS NOT NULL
                    LIMIT %(max_jobs)s::int) counted) counts
 ORDER BY (counts.ended < counts.jobs) DESC, s.graph_id DESC;

-- name: graph_jobs
SELECT job_id, coalesce(graph_key, task), queue, task, status::text, wait_state::text, coalesce(skipped, false), attempt, created_at,
       available_at, started_at, finished_at, left(error, 1000), need
  FROM dl_jobs
 WHERE graph_id = %(graph_id)s::uuid AND graph_id IS NOT NULL
 ORDER BY created_at, job_id
 LIMIT %(limit)s::int;

-- name: graph_edges
SELECT e.child_id, e.parent_id, e.wants, e.met
  FROM dl_jobs j JOIN dl_edges e ON e.child_id = j.job_id
 WHERE j.graph_id = %(graph_id)s::uuid AND j.graph_id IS NOT NULL
 ORDER BY 1, 2
 LIMIT %(limit)s::int;

-- name: job_parents
-- What a job waits for or waited for.
SELECT coalesce(CASE WHEN p.graph_id = c.graph_id THEN p.graph_key END, p.job_id::text), p.job_id, p.task, p.status::text, coalesce(p.skipped, false), e.wants, e.met,
       p.wait_state::text, p.started_at, dl_json_text(p.result, 8388608), p.error
  FROM dl_jobs c JOIN dl_edges e ON e.child_id = c.job_id JOIN dl_jobs p ON p.job_id = ANY (ARRAY[e.parent_id])
 WHERE c.job_id = %(job_id)s::uuid
 ORDER BY p.created_at, p.job_id;

-- name: deleted_parents
SELECT e.parent_id
  FROM dl_edges e
 WHERE e.child_id = %(job_id)s::uuid AND NOT EXISTS (SELECT FROM dl_jobs p WHERE p.job_id = ANY (ARRAY[e.parent_id]))
 ORDER BY e.parent_id;

-- name: job_children
-- What waits for a job, or waited for it.
SELECT coalesce(CASE WHEN c.graph_id = p.graph_id THEN c.graph_key END, c.job_id::text), c.job_id, c.task, c.status::text,
       coalesce(c.skipped, false), e.wants, e.met, c.wait_state::text
  FROM dl_jobs p JOIN dl_edges e ON e.parent_id = p.job_id JOIN dl_jobs c ON c.job_id = ANY (ARRAY[e.child_id])
 WHERE p.job_id = %(job_id)s::uuid
 ORDER BY c.created_at, c.job_id
 LIMIT %(limit)s::int;

-- name: retry_graph
-- failed | canceled | lost -> queued: all of a graph that did not succeed. A job with parents waits for them again. See dl_retry_jobs.
SELECT set_config('dl.retried', coalesce(cardinality(dl_retry_jobs(
    array_agg(j.job_id),
    waiting => array_agg(j.job_id) FILTER (WHERE EXISTS (SELECT FROM dl_edges e JOIN dl_jobs p ON p.job_id = ANY (ARRAY[e.parent_id])
                                                          WHERE e.child_id = j.job_id))
)), 0)::text, true)
  FROM dl_jobs j
 WHERE j.graph_id = %(graph_id)s::uuid AND j.graph_id IS NOT NULL AND j.status::text IN ('failed', 'canceled', 'lost');

WITH waiting AS MATERIALIZED (
    SELECT job_id
      FROM dl_jobs
     WHERE graph_id = %(graph_id)s::uuid AND graph_id IS NOT NULL AND status = 'queued' AND wait_state = 'waiting'
       FOR NO KEY UPDATE SKIP LOCKED  -- this transaction holds those that it has queued
)
INSERT INTO dl_graph_work (job_id) SELECT job_id FROM waiting
    ON CONFLICT (job_id) DO NOTHING;

SELECT current_setting('dl.retried')::int;

-- name: cancel_graph
-- As `cancel`, in one transaction.
SELECT dl_cancel_jobs(ARRAY(SELECT job_id FROM dl_jobs
                             WHERE graph_id = %(graph_id)s::uuid AND graph_id IS NOT NULL AND status::text IN ('queued', 'running')));

-- name: lock_awaited
-- Before one run is released until other jobs have ended, with the rules of app/queue/jobs.sql: their rows and its own, in one order. Not for long: an end waits.
SELECT pg_advisory_xact_lock(1684828526, hashtext(key)) FROM unnest(%(lock_keys)s::text[]) AS k (key);

SELECT set_config('lock_timeout', '2s', true);

SELECT FROM dl_jobs j WHERE j.job_id = ANY (%(awaited)s::uuid[] || %(job_ids)s::uuid[]) ORDER BY j.job_id FOR NO KEY UPDATE;

-- name: wait_for_jobs
SELECT r.run_id, w.status
  FROM unnest(%(job_ids)s::uuid[], %(run_ids)s::uuid[]) AS r (job_id, run_id)
       CROSS JOIN LATERAL dl_wait_for_jobs(r.job_id, r.run_id, %(awaited)s::uuid[]) AS w (status)
 WHERE w.status IS NOT NULL;

-- name: release_waiting = lock_awaited + release + wait_for_jobs

-- name: has_graph_work
SELECT EXISTS (SELECT FROM dl_graph_work);
