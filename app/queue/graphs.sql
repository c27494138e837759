-- Graphs: jobs that wait for other jobs. See the tables and functions of schema.sql.

-- name: enqueue_graph
SELECT graph_id, created, key, job_id FROM dl_enqueue_graph(%(graph)s::jsonb);

-- name: decide_left
-- Decides children that the ends of their parents have left, because a row was locked or there were too many. Returns how many
-- ends are left after that, and how many children were decided.
WITH work AS MATERIALIZED (
    SELECT array_agg(job_id) AS ended FROM (SELECT job_id FROM dl_graph_work LIMIT 500) w
), decided AS MATERIALIZED (
    SELECT dl_decide_children(work.ended) AS n FROM work WHERE work.ended IS NOT NULL AND pg_try_advisory_xact_lock(1684828527, 9)
)
SELECT coalesce((SELECT sum(n)::int FROM decided), 0) AS decided, (SELECT count(*)::int FROM dl_graph_work) AS before;
