-- Jobs that wait for other jobs. All parents of a job are in its graph, so one lock, (1684828531, hashtext(graph_id)), orders
-- what their ends decide. It is taken last, when the transaction commits, and its holder waits for no row.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_graphs (
    graph_id        uuid        PRIMARY KEY DEFAULT dl_new_id(),
    name            text        NOT NULL DEFAULT '',
    on_failure      text        NOT NULL DEFAULT 'cancel' CHECK (on_failure IN ('cancel', 'continue')),
    idempotency_key text        UNIQUE,
    created_by      text,
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What a job waits for. `met` is NULL until the parent has ended.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_edges (
    child_id  uuid NOT NULL,
    parent_id uuid NOT NULL,
    wants     text NOT NULL DEFAULT 'succeeded' CHECK (wants IN ('succeeded', 'ended', 'failed')),
    met       bool,
    PRIMARY KEY (child_id, parent_id)
);
CREATE INDEX dl_edges_parent_idx ON dl_edges (parent_id);

-- Jobs of graphs that have ended and whose children are not decided yet. The transaction that ends a job decides them when it
-- commits; what it leaves, because a row was locked or there were too many, the maintenance leader does. A job that waits again
-- after a retry is here for its parents that have ended. Who writes the row of a job holds that job, or the lock of its graph.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_graph_work (
    job_id uuid PRIMARY KEY,
    xid    xid8 NOT NULL DEFAULT pg_current_xact_id()
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
CREATE INDEX dl_graph_work_xid_idx ON dl_graph_work (xid);

-- Whether a job that has not ended may read the result of this one: another one of its graph, or one of another graph that waited
-- for it.
CREATE OR REPLACE FUNCTION dl_is_result_needed(job uuid, graph uuid) RETURNS bool
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    RETURN graph IS NOT NULL
       AND (EXISTS (SELECT FROM dl_jobs j WHERE j.graph_id = graph AND j.status::text IN ('queued', 'running'))
            OR EXISTS (SELECT FROM dl_edges e JOIN dl_jobs c ON c.job_id = ANY (ARRAY[e.child_id])
                        WHERE e.parent_id = job AND c.status::text IN ('queued', 'running')));
END $$;

-- A job of a graph has ended, by any statement of any process: its children are decided when this commits. Or it is retried: it
-- waits again for the parents that have not all ended, and its children wait again for it, also those that had been skipped.
CREATE OR REPLACE FUNCTION dl_graph_job_changed(job dl_jobs) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    checked_before text := coalesce(current_setting('dl.events_checked', true), '');
BEGIN
    IF job.status NOT IN ('queued', 'running') THEN
        INSERT INTO dl_graph_work (job_id) VALUES (job.job_id) ON CONFLICT (job_id) DO NOTHING;
        RETURN;
    END IF;
    DELETE FROM dl_graph_work WHERE job_id = job.job_id;
    IF EXISTS (SELECT FROM dl_edges e WHERE e.child_id = job.job_id AND e.met IS NULL) THEN
        UPDATE dl_jobs SET wait_state = 'waiting', waits_on = NULL
         WHERE job_id = job.job_id AND status = 'queued' AND wait_state <> 'waiting';
        INSERT INTO dl_graph_work (job_id) SELECT job.job_id  -- decided again when this commits: a parent may end now
            ON CONFLICT (job_id) DO NOTHING;
    END IF;
    UPDATE dl_edges SET met = NULL WHERE parent_id = job.job_id;
    PERFORM set_config('dl.events_checked', 'yes', true);
    WITH again AS (
        UPDATE dl_jobs j
           SET status = 'queued', wait_state = 'waiting', skipped = NULL, error = NULL, finished_at = NULL, attempt = 0
          FROM dl_edges e
         WHERE e.parent_id = job.job_id AND j.job_id = ANY (ARRAY[e.child_id]) AND j.status = 'canceled' AND j.skipped
        RETURNING j.job_id, j.queue
    )
    INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
    SELECT job_id, queue, clock_timestamp(), 'requeue',
           jsonb_build_object('status', 'queued', 'attempt', 0, 'reason', 'retry')
      FROM again;
    PERFORM set_config('dl.events_checked', checked_before, true);
    UPDATE dl_jobs j
       SET wait_state = 'waiting', waits_on = NULL
      FROM dl_edges e
     WHERE e.parent_id = job.job_id AND j.job_id = ANY (ARRAY[e.child_id]) AND j.status = 'queued' AND j.wait_state <> 'waiting';
END $$;

-- The core's hook. By SQL: the API deletes finished jobs only. A job that waits for a deleted one can never run.
CREATE OR REPLACE FUNCTION dl_graph_jobs_deleted(job_ids uuid[], graph_ids uuid[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    IF job_ids IS NULL THEN
        DELETE FROM dl_edges;
        DELETE FROM dl_graphs;
        DELETE FROM dl_graph_work;
        RETURN;
    END IF;
    UPDATE dl_jobs c
       SET cancel_requested = true, error = 'not needed: a job that it waited for was deleted'
      FROM unnest(job_ids) AS d (job_id) JOIN dl_edges e ON e.parent_id = d.job_id AND e.met IS NULL
     WHERE c.job_id = ANY (ARRAY[e.child_id]) AND c.status = 'queued' AND c.wait_state = 'waiting';
    DELETE FROM dl_edges e USING unnest(job_ids) AS d (job_id) WHERE e.child_id = d.job_id;
    -- What is left are edges of jobs that still exist: they keep such a job from reading fewer results than it waited for.
    UPDATE dl_edges e SET met = false FROM unnest(job_ids) AS d (job_id) WHERE e.parent_id = d.job_id AND e.met IS NULL;
    DELETE FROM dl_graphs g USING unnest(graph_ids) AS d (graph_id)
     WHERE g.graph_id = d.graph_id AND NOT EXISTS (SELECT FROM dl_jobs j WHERE j.graph_id = g.graph_id);
END $$;

-- What the ends of these jobs decide, once their edges are met or not: the children that may run or are to be skipped, with the
-- reason. In a graph with on_failure 'cancel' a failure skips every queued job that has no edge for a failure or any end.
CREATE OR REPLACE FUNCTION dl_graph_verdicts(ended uuid[]) RETURNS TABLE (job_id uuid, skip bool, reason text)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH children AS MATERIALIZED (
        SELECT k.child_id,
               CASE WHEN j.need = 'any' THEN CASE WHEN bool_or(e.met) THEN false WHEN bool_and(e.met IS NOT NULL) THEN true END
                    ELSE CASE WHEN bool_or(NOT e.met) THEN true WHEN bool_and(e.met IS NOT NULL) THEN false END END AS skip
          FROM (SELECT DISTINCT d.child_id FROM unnest(ended) AS i (job_id) JOIN dl_edges d ON d.parent_id = i.job_id) k
               JOIN dl_jobs j ON j.job_id = ANY (ARRAY[k.child_id])
               JOIN dl_edges e ON e.child_id = k.child_id
         WHERE j.status::text = 'queued' AND j.wait_state::text = 'waiting'
         GROUP BY k.child_id, j.need
    ), failures AS MATERIALIZED (
        SELECT DISTINCT ON (j.graph_id) j.graph_id, j.job_id, coalesce(j.graph_key, j.task) AS label
          FROM unnest(ended) AS i (job_id)
               JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
               JOIN dl_graphs g ON g.graph_id = j.graph_id AND g.on_failure = 'cancel'
         WHERE j.status::text IN ('failed', 'lost')
         ORDER BY j.graph_id, j.finished_at
    )
    SELECT c.child_id AS job_id, c.skip,
           CASE WHEN c.skip THEN
           (SELECT format('not needed: %s (job %s) %s', coalesce(p.graph_key, p.task), p.job_id,
                          CASE p.status WHEN 'succeeded' THEN 'succeeded' WHEN 'lost' THEN 'was lost' WHEN 'failed' THEN 'failed'
                                        ELSE CASE WHEN p.skipped THEN 'was not needed' ELSE 'was canceled' END END)
              FROM dl_edges u JOIN dl_jobs p ON p.job_id = ANY (ARRAY[u.parent_id])
             WHERE u.child_id = c.child_id AND NOT u.met ORDER BY p.finished_at LIMIT 1) END AS reason
      FROM children c
     WHERE c.skip IS NOT NULL
    UNION ALL
    SELECT o.job_id, true, format('not needed: %s (job %s) failed, which cancels its graph', f.label, f.job_id)
      FROM failures f JOIN dl_jobs o ON o.graph_id = f.graph_id AND o.status = 'queued'
     WHERE NOT EXISTS (SELECT FROM dl_edges e WHERE e.child_id = o.job_id AND e.wants <> 'succeeded')
       AND o.job_id NOT IN (SELECT c.child_id FROM children c WHERE c.skip IS NOT NULL);
END $$;

-- Decides the children of jobs that have ended: ready, or skipped when they cannot run any more. Returns how many. It waits for
-- no row: who holds one may wait for the lock of a graph.
CREATE OR REPLACE FUNCTION dl_decide_children(ended uuid[]) RETURNS int
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    checked_before text := coalesce(current_setting('dl.events_checked', true), '');
    max_changes CONSTANT int := 2000;  -- in a transaction: others wait for the graph, and for the ends in this one
    budget   int := max_changes - coalesce(nullif(current_setting('dl.graph_changes', true), ''), '0')::int;
    parents  uuid[];  -- of jobs that wait again
    recorded uuid[];
    hashes   int[];
    decided  int;
    changed  int;
    skipped_ids uuid[];
    has_webhook bool;
BEGIN
    parents := ARRAY(SELECT e.parent_id
                       FROM unnest(ended) AS i (job_id)
                            JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id]) AND j.status::text = 'queued'
                            JOIN dl_edges e ON e.child_id = j.job_id);
    -- Of the jobs that have ended, and of those of other graphs that wait for their end.
    hashes := ARRAY(SELECT hashtext(j.graph_id::text)
                      FROM unnest(ended || parents) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                     WHERE j.graph_id IS NOT NULL
                     UNION
                    SELECT hashtext(j.graph_id::text)
                      FROM unnest(ended || parents) AS i (job_id)
                           JOIN dl_edges e ON e.parent_id = i.job_id AND e.wants = 'ended' AND e.met IS NULL
                           JOIN dl_jobs j ON j.job_id = ANY (ARRAY[e.child_id])
                     WHERE j.graph_id IS NOT NULL ORDER BY 1);
    IF coalesce(current_setting('dl.graph_changes', true), '') = '' THEN
        PERFORM pg_advisory_xact_lock(1684828531, hash) FROM unnest(hashes) hash;
    ELSIF NOT (SELECT bool_and(pg_try_advisory_xact_lock(1684828531, hash)) FROM unnest(hashes) hash) THEN
        -- Of what this transaction has skipped another graph waits. It holds locks already, so it waits for none.
        UPDATE dl_graph_work SET xid = '0' WHERE job_id = ANY (ended);
        PERFORM pg_notify('dl_control', 'graphs');
        RETURN 0;
    END IF;
    -- Without those that a retry has locked: they are open again.
    recorded := ARRAY(SELECT w.job_id FROM dl_graph_work w WHERE w.job_id = ANY (ended) FOR UPDATE SKIP LOCKED);
    ended := recorded || parents;
    -- In a snapshot taken under the lock: the ends that others committed while it was waited for are seen.
    WITH undecided AS MATERIALIZED (
        SELECT e.child_id, e.parent_id, p.status
          FROM unnest(ended) AS i (job_id)
               JOIN dl_jobs p ON p.job_id = ANY (ARRAY[i.job_id])
               JOIN dl_edges e ON e.parent_id = i.job_id AND e.met IS NULL
         WHERE p.status::text IN ('succeeded', 'failed', 'canceled', 'lost')  -- by job_id
           FOR NO KEY UPDATE OF e SKIP LOCKED
    )
    UPDATE dl_edges e
       SET met = CASE e.wants WHEN 'ended' THEN true WHEN 'succeeded' THEN p.status = 'succeeded'
                              ELSE p.status IN ('failed', 'lost') END
      FROM undecided p
     WHERE e.child_id = ANY (ARRAY[p.child_id]) AND e.parent_id = p.parent_id;
    PERFORM set_config('dl.events_checked', 'yes', true);
    WITH verdicts AS MATERIALIZED (SELECT * FROM dl_graph_verdicts(ended)), locked AS MATERIALIZED (
        SELECT j.job_id, v.skip, v.reason
          FROM verdicts v JOIN dl_jobs j ON j.job_id = ANY (ARRAY[v.job_id])
         WHERE j.status::text = 'queued' AND (v.skip OR j.wait_state::text = 'waiting')
         LIMIT greatest(budget, 0)
           FOR NO KEY UPDATE OF j SKIP LOCKED
    ), moved AS (
        UPDATE dl_jobs j
           SET status = CASE WHEN locked.skip THEN 'canceled' ELSE 'queued' END::dl_status,
               wait_state = CASE WHEN locked.skip OR j.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state,
               waits_on = NULL, unknown_task = false, skipped = CASE WHEN locked.skip THEN true END,
               error = CASE WHEN locked.skip THEN locked.reason ELSE j.error END,
               finished_at = CASE WHEN locked.skip THEN clock_timestamp() END
          FROM locked
         WHERE j.job_id = ANY (ARRAY[locked.job_id])
        RETURNING j.job_id, j.queue, j.status, j.attempt, j.error, j.webhook
    ), events AS (
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT job_id, queue, clock_timestamp(), CASE status WHEN 'canceled' THEN 'skipped' ELSE 'released' END,
               jsonb_strip_nulls(jsonb_build_object('status', status, 'attempt', attempt,
                                                    'error', CASE status WHEN 'canceled' THEN error END))
          FROM moved
    ), notified AS (
        SELECT count(dl_notify_queue(q.queue)) AS n FROM (SELECT DISTINCT queue FROM moved WHERE status = 'queued' ORDER BY queue) q
    )
    SELECT (SELECT count(*) FROM verdicts), count(*) + 0 * (SELECT n FROM notified),
           array_agg(job_id) FILTER (WHERE status = 'canceled'), bool_or(webhook IS NOT NULL)
      INTO decided, changed, skipped_ids, has_webhook
      FROM moved;
    PERFORM set_config('dl.events_checked', checked_before, true);
    IF skipped_ids IS NOT NULL THEN
        PERFORM dl_jobs_ended(skipped_ids, has_webhook);
    END IF;
    PERFORM set_config('dl.graph_changes', (max_changes - budget + changed)::text, true);
    IF changed = decided
       AND NOT EXISTS (SELECT FROM unnest(ended) AS i (job_id)
                              JOIN dl_edges e ON e.parent_id = i.job_id AND e.met IS NULL
                              JOIN dl_jobs p ON p.job_id = ANY (ARRAY[i.job_id])
                        WHERE p.status::text IN ('succeeded', 'failed', 'canceled', 'lost')) THEN
        DELETE FROM dl_graph_work WHERE job_id = ANY (recorded);
    ELSE
        UPDATE dl_graph_work SET xid = '0' WHERE job_id = ANY (recorded);
        PERFORM pg_notify('dl_control', 'graphs');
    END IF;
    RETURN changed;
END $$;

-- Decides what the ends of this transaction allow, when it commits; the first call does it for all of them.
CREATE OR REPLACE FUNCTION dl_graph_work_done() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    ended uuid[];
BEGIN
    IF (SELECT xid FROM dl_graph_work WHERE job_id = NEW.job_id) IS DISTINCT FROM pg_current_xact_id() THEN
        RETURN NULL;  -- a former call has decided it; the search below would pass all that it has deleted
    END IF;
    IF current_setting('dl.new_children', true) <> '' THEN
        RETURN NULL;  -- dl_edges_added waits for rows, and has this called again
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        UPDATE dl_graph_work SET xid = '0' WHERE xid = pg_current_xact_id();
        PERFORM pg_notify('dl_control', 'graphs');  -- an older snapshot would not see what others have decided
        RETURN NULL;
    END IF;
    SELECT array_agg(w.job_id) INTO ended FROM dl_graph_work w WHERE w.xid = pg_current_xact_id();
    IF ended IS NOT NULL THEN
        PERFORM dl_decide_children(ended);
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER dl_graph_work_done AFTER INSERT ON dl_graph_work
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dl_graph_work_done();

-- What is wrong with the parents of a request; NULL: nothing. For an account that may not read jobs, there are no parents: it
-- would learn their outcomes and results.
CREATE OR REPLACE FUNCTION dl_after_problem(after jsonb, need text) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    item    record;
    is_reader bool;  -- the caller, also inside a function with the rights of the owner
BEGIN
    IF after IS NULL THEN
        RETURN CASE WHEN need IS NOT NULL THEN 'is required when need is given' END;
    ELSIF jsonb_typeof(after) <> 'array' OR jsonb_array_length(after) NOT BETWEEN 1 AND 1000 THEN
        RETURN 'must be an array of 1 to 1000 parents, such as [{"job_id": "…", "on": "succeeded"}]';
    ELSIF need NOT IN ('all', 'any') THEN
        RETURN format('has the need %s, which is neither "all" nor "any"', to_jsonb(left(need, 100)));
    END IF;
    is_reader := has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user::text)::name, 'dl_jobs', 'SELECT');
    FOR item IN SELECT value AS parent, n - 1 AS position FROM jsonb_array_elements(after) WITH ORDINALITY AS a (value, n) LOOP
        IF jsonb_typeof(item.parent) <> 'object' OR item.parent - '{job_id,on}'::text[] <> '{}'
           OR coalesce(item.parent ->> 'job_id', '') !~ '^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$' THEN
            RETURN format('[%s] must be an object with the job_id of a parent, and on', item.position);
        ELSIF coalesce(item.parent ->> 'on', 'succeeded') NOT IN ('succeeded', 'ended', 'failed') THEN
            RETURN format('[%s].on must be "succeeded", "ended" or "failed"', item.position);
        ELSIF NOT is_reader OR NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = (item.parent ->> 'job_id')::uuid) THEN
            RETURN format('[%s].job_id: there is no job %s', item.position, item.parent ->> 'job_id');
        END IF;
    END LOOP;
    IF (SELECT count(DISTINCT j.graph_id) FROM jsonb_array_elements(after) a JOIN dl_jobs j ON j.job_id = (a ->> 'job_id')::uuid) > 1 THEN
        RETURN 'names jobs of several graphs; all parents of a job are in one';
    END IF;
    RETURN NULL;
END $$;

-- Makes a job of this transaction wait for others. Their rows are locked when it commits, and only then.
CREATE OR REPLACE FUNCTION dl_set_parents(child uuid, after jsonb, need_text text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    graph uuid := (SELECT j.graph_id FROM jsonb_array_elements(after) a JOIN dl_jobs j ON j.job_id = (a ->> 'job_id')::uuid
                    WHERE j.graph_id IS NOT NULL LIMIT 1);
BEGIN
    IF graph IS NULL THEN
        INSERT INTO dl_graphs (on_failure) VALUES ('continue') RETURNING graph_id INTO graph;
    END IF;
    UPDATE dl_jobs SET wait_state = 'waiting', graph_id = graph, need = nullif(need_text, 'all') WHERE job_id = child;
    INSERT INTO dl_edges (child_id, parent_id, wants)
    SELECT child, (a ->> 'job_id')::uuid, coalesce(a ->> 'on', 'succeeded') FROM jsonb_array_elements(after) a
        ON CONFLICT DO NOTHING;
    PERFORM set_config('dl.new_children', concat_ws(',', nullif(current_setting('dl.new_children', true), ''), child), true);
END $$;

-- At the commit of new edges to jobs that existed before: locks all the parents, in one order; one that has ended decides
-- its edge at once, and the end of another finds the edge. What has ended in the same transaction is decided after that.
CREATE OR REPLACE FUNCTION dl_edges_added() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    children uuid[] := string_to_array(nullif(current_setting('dl.new_children', true), ''), ',')::uuid[];
    parent   record;
    child    record;
BEGIN
    IF children IS NULL THEN
        RETURN NULL;  -- done by the call for the first of them
    END IF;
    PERFORM set_config('dl.new_children', '', true);
    FOR parent IN
        SELECT j.job_id, j.status, j.graph_id FROM dl_jobs j
         WHERE j.job_id = ANY (ARRAY(SELECT e.parent_id FROM dl_edges e WHERE e.child_id = ANY (children)))
         ORDER BY j.job_id
           FOR NO KEY UPDATE
    LOOP
        FOR child IN SELECT DISTINCT c.graph_id FROM dl_edges e JOIN dl_jobs c ON c.job_id = ANY (ARRAY[e.child_id])
                      WHERE e.parent_id = parent.job_id AND e.child_id = ANY (children) LOOP
            IF parent.graph_id IS NULL THEN
                UPDATE dl_jobs SET graph_id = child.graph_id WHERE job_id = parent.job_id;
                parent.graph_id := child.graph_id;
            ELSIF parent.graph_id <> child.graph_id THEN
                -- Another transaction has given the parent a graph meanwhile: the child joins it.
                IF EXISTS (SELECT FROM dl_jobs o WHERE o.graph_id = child.graph_id AND o.job_id <> ALL (children)) THEN
                    RAISE serialization_failure USING MESSAGE = 'the parents have come into several graphs meanwhile; try again';
                END IF;
                UPDATE dl_jobs SET graph_id = parent.graph_id WHERE graph_id = child.graph_id;
                DELETE FROM dl_graphs WHERE graph_id = child.graph_id;
            END IF;
        END LOOP;
        IF parent.status NOT IN ('queued', 'running') THEN
            INSERT INTO dl_graph_work (job_id) VALUES (parent.job_id)
                ON CONFLICT (job_id) DO UPDATE SET xid = pg_current_xact_id();
        END IF;
    END LOOP;
    IF EXISTS (SELECT FROM dl_edges e WHERE e.child_id = ANY (children)
                 AND NOT EXISTS (SELECT FROM dl_jobs p WHERE p.job_id = ANY (ARRAY[e.parent_id]))) THEN
        RAISE foreign_key_violation USING MESSAGE = 'a job that this one waits for has been deleted';
    END IF;
    WITH ended AS (DELETE FROM dl_graph_work WHERE xid = pg_current_xact_id() RETURNING job_id)
    INSERT INTO dl_graph_work (job_id) SELECT job_id FROM ended;
    RETURN NULL;
END $$;

-- Makes a job whose run this transaction has released wait for the end of others; returns its status. The caller holds the
-- rows of all of them. Jobs without a graph come into its graph, but not into one that a failure cancels. Raises 22023 for a
-- job that does not exist, and for a circle.
CREATE OR REPLACE FUNCTION dl_wait_for_jobs(waiting_job uuid, run uuid, awaited uuid[]) RETURNS text
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    job       record;
    id        uuid;
    ancestors uuid[];
    circle    uuid[] := ARRAY[waiting_job];
    graph     uuid;
BEGIN
    SELECT j.status, j.graph_id, j.need INTO job
      FROM dl_jobs j WHERE j.job_id = waiting_job AND j.run_id = run AND j.xmin = pg_current_xact_id()::xid;
    IF job.status IS DISTINCT FROM 'queued' OR awaited = '{}' THEN
        RETURN job.status;
    END IF;
    FOREACH id IN ARRAY awaited LOOP
        IF NOT EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = id) THEN
            RAISE invalid_parameter_value USING MESSAGE = format('the job waits for job %s, which does not exist', id);
        END IF;
    END LOOP;

    -- A retry of a parent holds edges of its children: they are waited for before the locks of graphs.
    IF job.need = 'any' THEN
        PERFORM FROM dl_edges WHERE child_id = waiting_job ORDER BY parent_id FOR NO KEY UPDATE;
    END IF;
    -- One at a time in the whole queue: two that do not see each other could make a circle together.
    PERFORM pg_advisory_xact_lock(1684828531, hashtext('waits'));
    WITH RECURSIVE waits AS (
        SELECT unnest(awaited) AS job_id
        UNION
        SELECT e.parent_id
          FROM waits w
               JOIN dl_jobs j ON j.job_id = ANY (ARRAY[w.job_id]) AND j.status = 'queued' AND j.wait_state = 'waiting'
               JOIN dl_edges e ON e.child_id = w.job_id AND e.met IS NULL
    )
    SELECT array_agg(w.job_id) INTO ancestors FROM waits w;
    IF waiting_job = ANY (ancestors) THEN
        WHILE circle[1] <> ALL (awaited) LOOP
            circle := (SELECT e.child_id  -- of those that wait: a job that needed any parent keeps edges to the others
                         FROM dl_edges e
                              JOIN dl_jobs j ON j.job_id = ANY (ARRAY[e.child_id]) AND j.status = 'queued' AND j.wait_state = 'waiting'
                        WHERE e.parent_id = circle[1] AND e.met IS NULL AND e.child_id = ANY (ancestors) AND e.child_id <> ALL (circle)
                        LIMIT 1) || circle;
        END LOOP;
        RAISE invalid_parameter_value USING MESSAGE = 'the job would wait for itself: '
            || (SELECT string_agg(format('%s (job %s)', coalesce(j.graph_key, j.task), j.job_id), ' → ' ORDER BY c.n)
                  FROM unnest(waiting_job || circle) WITH ORDINALITY AS c (job_id, n) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[c.job_id]));
    END IF;

    -- Before edges are changed, which the holder of a graph's lock changes too.
    PERFORM pg_advisory_xact_lock(1684828531, hash)
       FROM (SELECT DISTINCT hashtext(j.graph_id::text) AS hash FROM dl_jobs j
              WHERE j.job_id = ANY (awaited || waiting_job) AND j.graph_id IS NOT NULL ORDER BY 1 OFFSET 0) ordered;
    PERFORM set_config('dl.graph_changes', '0', true);  -- for locks of other graphs this transaction does not wait when it commits
    IF EXISTS (SELECT FROM dl_jobs j WHERE j.job_id = ANY (awaited || waiting_job) AND j.graph_id IS NULL) THEN
        graph := (SELECT g.graph_id FROM dl_graphs g WHERE g.graph_id = job.graph_id AND g.on_failure = 'continue');
        IF graph IS NULL THEN
            INSERT INTO dl_graphs (on_failure) VALUES ('continue') RETURNING graph_id INTO graph;
        END IF;
        UPDATE dl_jobs j SET graph_id = graph WHERE j.job_id = ANY (awaited || waiting_job) AND j.graph_id IS NULL;
    END IF;
    IF job.need = 'any' THEN  -- what it waited for before does not count any more
        UPDATE dl_edges SET wants = 'ended', met = true WHERE child_id = waiting_job;
    END IF;
    UPDATE dl_jobs SET wait_state = 'waiting', need = NULL WHERE job_id = waiting_job;
    INSERT INTO dl_edges (child_id, parent_id, wants)
    SELECT DISTINCT waiting_job, i.job_id, 'ended' FROM unnest(awaited) AS i (job_id)
        ON CONFLICT (child_id, parent_id) DO UPDATE SET wants = 'ended', met = NULL;
    INSERT INTO dl_graph_work (job_id)
    SELECT j.job_id FROM dl_jobs j WHERE j.job_id = ANY (awaited) AND j.status NOT IN ('queued', 'running')
        ON CONFLICT (job_id) DO UPDATE SET xid = pg_current_xact_id();
    RETURN 'queued';
END $$;

CREATE CONSTRAINT TRIGGER dl_edges_added AFTER INSERT ON dl_edges
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (current_setting('dl.new_graph', true) IS DISTINCT FROM 'yes')
    EXECUTE FUNCTION dl_edges_added();

-- Raises 22023 for a graph that dl_enqueue_graph does not accept; returns the positions of its jobs by their keys.
CREATE OR REPLACE FUNCTION dl_check_graph(graph jsonb) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT AS $$
DECLARE
    items   jsonb := graph -> 'jobs';
    item    record;
    parent  record;
    numbers jsonb := '{}';
    edges   int := 0;
BEGIN
    IF jsonb_typeof(graph) IS DISTINCT FROM 'object' OR jsonb_typeof(items) IS DISTINCT FROM 'array' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'jobs must be an array', COLUMN = 'jobs';
    ELSIF jsonb_array_length(items) NOT BETWEEN 1 AND 10000 THEN
        RAISE invalid_parameter_value USING COLUMN = 'jobs',
              MESSAGE = format('jobs has %s jobs; a graph has 1 to 10000', jsonb_array_length(items));
    ELSIF graph - '{name,on_failure,idempotency_key,created_by,jobs}'::text[] <> '{}' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'graph has a field that is none of name, on_failure, idempotency_key and jobs',
              COLUMN = 'graph';
    ELSIF coalesce(graph ->> 'on_failure', 'cancel') NOT IN ('cancel', 'continue') THEN
        RAISE invalid_parameter_value USING MESSAGE = 'on_failure must be "cancel" or "continue"', COLUMN = 'on_failure';
    ELSIF octet_length(graph ->> 'idempotency_key') > 2000 OR octet_length(graph ->> 'name') > 1000 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'name or idempotency_key is too long', COLUMN = 'name';
    END IF;
    FOR item IN SELECT value AS job, n - 1 AS position FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n) ORDER BY n LOOP
        IF jsonb_typeof(item.job) <> 'object' OR jsonb_typeof(item.job -> 'key') IS DISTINCT FROM 'string'
           OR btrim(item.job ->> 'key') = '' OR octet_length(item.job ->> 'key') > 200 THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].key', item.position),
                  MESSAGE = format('jobs[%s].key must be a text of 1 to 200 bytes', item.position);
        ELSIF numbers ? (item.job ->> 'key') THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].key', item.position),
                  MESSAGE = format('jobs[%s].key is that of another job: %s', item.position, item.job -> 'key');
        ELSIF item.job ?| '{idempotency_key,live_key,debounce,throttle}' THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].idempotency_key', item.position),
                  MESSAGE = format('jobs[%s] has a key, debounce or throttle of its own; the graph may have an idempotency_key', item.position);
        ELSIF item.job ? 'after' AND (jsonb_typeof(item.job -> 'after') NOT IN ('array', 'null')
              OR jsonb_typeof(item.job -> 'after') = 'array' AND jsonb_array_length(item.job -> 'after') > 1000) THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].after', item.position),
                  MESSAGE = format('jobs[%s].after must be an array of at most 1000 parents', item.position);
        ELSIF coalesce(item.job ->> 'need', 'all') NOT IN ('all', 'any') THEN
            RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].need', item.position),
                  MESSAGE = format('jobs[%s].need must be "all" or "any"', item.position);
        END IF;
        FOR parent IN SELECT value AS edge, n - 1 AS position
                        FROM jsonb_array_elements(coalesce(nullif(item.job -> 'after', 'null'), '[]')) WITH ORDINALITY AS a (value, n) LOOP
            edges := edges + 1;
            IF jsonb_typeof(parent.edge) <> 'object' OR parent.edge - '{job,on}'::text[] <> '{}'
               OR coalesce(parent.edge ->> 'on', 'succeeded') NOT IN ('succeeded', 'ended', 'failed') THEN
                RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].after[%s]', item.position, parent.position),
                      MESSAGE = format('jobs[%s].after[%s] must be {"job": key, "on": "succeeded", "ended" or "failed"}',
                                       item.position, parent.position);
            ELSIF NOT numbers ? coalesce(parent.edge ->> 'job', '') THEN
                RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].after[%s].job', item.position, parent.position),
                      MESSAGE = format('jobs[%s].after[%s].job names %s, which is no job before it: parents come first',
                                       item.position, parent.position, parent.edge -> 'job');
            END IF;
        END LOOP;
        numbers := numbers || jsonb_build_object(item.job ->> 'key', item.position);
    END LOOP;
    IF edges > 50000 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('jobs has %s edges; a graph has at most 50000', edges), COLUMN = 'jobs';
    END IF;
    RETURN numbers;
END $$;

-- Enqueue jobs that wait for one another, in the caller's own transaction: {"name", "on_failure", "idempotency_key", "jobs": […]}.
-- A job has the fields of dl_enqueue_many, a `key`, and `after`: [{"job": key, "on": "succeeded"}], which names jobs before it in
-- the array, so there is no circle. All are created, or none. A graph whose idempotency_key exists is returned as it is, if its
-- jobs have the same queues, tasks and args; else 23505.
CREATE OR REPLACE FUNCTION dl_enqueue_graph(graph jsonb)
    RETURNS TABLE (graph_id uuid, created bool, key text, job_id uuid)
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    id      uuid;
    items   jsonb := graph -> 'jobs';
    numbers jsonb;  -- key -> position
    ids     uuid[];
    refused record;
BEGIN
    numbers := dl_check_graph(graph);
    INSERT INTO dl_graphs (name, on_failure, idempotency_key, created_by)
    VALUES (coalesce(graph ->> 'name', ''), coalesce(graph ->> 'on_failure', 'cancel'), graph ->> 'idempotency_key',
            graph ->> 'created_by')
        ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING dl_graphs.graph_id INTO id;
    IF id IS NULL THEN
        IF EXISTS (SELECT FROM (SELECT j.graph_key AS key, coalesce(j.request_hash, dl_request_hash(j.queue, j.task, j.args)) AS hash
                                  FROM dl_graphs g JOIN dl_jobs j ON j.graph_id = g.graph_id AND j.graph_key IS NOT NULL
                                 WHERE g.idempotency_key = graph ->> 'idempotency_key') AS made
                          FULL JOIN (SELECT value ->> 'key' AS key, dl_request_hash(value ->> 'queue', value ->> 'task',
                                            coalesce(nullif(value -> 'args', 'null'), '{}')) AS hash
                                       FROM jsonb_array_elements(items)) AS requested USING (key)
                    WHERE made.hash IS DISTINCT FROM requested.hash) THEN
            RAISE unique_violation
                  USING MESSAGE = format('the key %L belongs to a graph with other jobs', graph ->> 'idempotency_key');
        END IF;
        RETURN QUERY SELECT g.graph_id, false, j.graph_key, j.job_id
                       FROM dl_graphs g JOIN dl_jobs j ON j.graph_id = g.graph_id
                      WHERE g.idempotency_key = graph ->> 'idempotency_key' ORDER BY j.created_at;
        RETURN;
    END IF;
    SELECT array_agg(m.job_id ORDER BY m.n) INTO ids
      FROM dl_enqueue_many((SELECT jsonb_agg(value - '{key,after,need}'::text[] ORDER BY n)
                              FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)), true) m
     WHERE m.outcome = 'created';
    IF coalesce(cardinality(ids), 0) < jsonb_array_length(items) THEN
        SELECT m.n - 1 AS position, m.field, m.detail INTO refused
          FROM dl_enqueue_many((SELECT jsonb_agg(value - '{key,after,need}'::text[] ORDER BY n)
                                  FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)), true) m
         WHERE m.outcome = 'invalid' ORDER BY m.n LIMIT 1;
        RAISE invalid_parameter_value USING COLUMN = format('jobs[%s].%s', refused.position, refused.field),
              MESSAGE = format('jobs[%s].%s %s', refused.position, refused.field, refused.detail);
    END IF;
    UPDATE dl_jobs j
       SET graph_id = id, graph_key = i.value ->> 'key', need = nullif(i.value ->> 'need', 'all'),
           wait_state = CASE WHEN jsonb_array_length(coalesce(nullif(i.value -> 'after', 'null'), '[]')) > 0 THEN 'waiting'
                             ELSE j.wait_state END
      FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)
     WHERE j.job_id = ANY (ARRAY[ids[i.n]]);
    PERFORM set_config('dl.new_graph', 'yes', true);
    INSERT INTO dl_edges (child_id, parent_id, wants)
    SELECT ids[i.n], ids[(numbers ->> (a.edge ->> 'job'))::int + 1], coalesce(a.edge ->> 'on', 'succeeded')
      FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n)
           CROSS JOIN LATERAL jsonb_array_elements(coalesce(nullif(i.value -> 'after', 'null'), '[]')) AS a (edge)
        ON CONFLICT DO NOTHING;
    PERFORM set_config('dl.new_graph', '', true);
    RETURN QUERY SELECT id, true, i.value ->> 'key', ids[i.n]
                   FROM jsonb_array_elements(items) WITH ORDINALITY AS i (value, n) ORDER BY i.n;
END $$;

REVOKE EXECUTE ON FUNCTION
    dl_graph_work_done, dl_edges_added, dl_enqueue_graph
  FROM PUBLIC;
