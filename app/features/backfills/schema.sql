-- Backfills load slices of a task again or for the first time. Their jobs have the limit backfill:ID, which is their concurrency.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_backfills (
    backfill_id         uuid        PRIMARY KEY DEFAULT dl_new_id(),
    task                text        NOT NULL CHECK (task <> '' AND octet_length(task) <= 1000),
    queue               text        NOT NULL CHECK (queue <> '' AND octet_length(queue) <= 1000),
    slices              jsonb       NOT NULL,  -- a unit with its zone, first and last slice; a list; or a schedule with two times
    mode                text        NOT NULL CHECK (mode IN ('missing', 'failed', 'unfinished', 'all')),
    newest_first        bool        NOT NULL,
    concurrency         int         NOT NULL CHECK (concurrency >= 1),
    template            jsonb       NOT NULL,  -- of its jobs: args, lock_key, priority, …
    stop_after_failures int         CHECK (stop_after_failures >= 1),
    state               text        NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paused', 'canceled', 'done')),
    reason              text,       -- of the state
    cursor              text,       -- the last slice that was looked at; NULL: none
    total               int         NOT NULL,
    made                int         NOT NULL DEFAULT 0,  -- slices with a job, made for them or found
    adopted             int         NOT NULL DEFAULT 0,  -- of these, found: another job loaded the slice already
    skipped             int         NOT NULL DEFAULT 0,  -- slices that the mode leaves out
    note                text,
    created_by          text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    resumed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),  -- earlier failures do not stop it again
    changed_by          text,
    changed_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at            timestamptz
);
CREATE INDEX dl_backfills_open_idx ON dl_backfills (backfill_id) WHERE state IN ('open', 'paused');

-- The slices of tasks, such as days, that have been loaded or are to be: what the last job of each did. A job loads the slice
-- `partition_key` of its task if its live_key is slice:TASK:PARTITION_KEY, so that no two load one at a time.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_slices (
    task           text        NOT NULL,
    partition_key  text        NOT NULL COLLATE "C",
    interval_start timestamptz,
    interval_end   timestamptz,
    state          dl_status   NOT NULL,  -- of its last job
    job_id         uuid        NOT NULL,
    backfill_id    uuid,                  -- the backfill that asked for it last
    runs           int         NOT NULL DEFAULT 0,
    rows           bigint,                -- that the last successful job produced
    succeeded_at   timestamptz,
    succeeded_job  uuid,
    changed_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (task, partition_key)
) WITH (fillfactor = 80);
CREATE INDEX dl_slices_backfill_idx ON dl_slices (backfill_id, state) WHERE backfill_id IS NOT NULL;

-- Writes the limit of a backfill: its concurrency, or 0 while it is paused. When it has ended its jobs may still wait, for another
-- backfill has asked for their slices: the limit is deleted when none is left. The caller has changed the row of the backfill, and
-- so holds its lock: two changes leave the limit of the second one.
CREATE OR REPLACE FUNCTION dl_set_backfill_limit(id uuid) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    limit_name text := 'backfill:' || id;
BEGIN
    PERFORM dl_lock_limits(ARRAY[limit_name]);
    INSERT INTO dl_limits (name, concurrency, changed_by)
    SELECT limit_name, CASE state WHEN 'paused' THEN 0 ELSE concurrency END, changed_by FROM dl_backfills WHERE backfill_id = id
        ON CONFLICT (name) DO UPDATE
       SET concurrency = excluded.concurrency, rate = NULL, per_sec = NULL, burst = NULL, note = NULL, changed_by = excluded.changed_by,
           changed_at = clock_timestamp();
    PERFORM count(*) FROM dl_wake_limited(dl_waiting_limits(limit_name));
    PERFORM pg_notify('dl_control', 'limits');
END $$;

-- Makes jobs of a backfill whose cursor is still where it was read: the requests of slices up to `next_cursor`; `passed` slices were
-- left out. A slice that another job loads already is counted, not made twice. A cancel locks the same row: after its commit this
-- makes nothing. Returns no row if the backfill is not open any more, or its cursor has moved.
CREATE OR REPLACE FUNCTION dl_make_backfill(id uuid, read_cursor text, next_cursor text, requests jsonb, passed int)
    RETURNS TABLE (created int, adopted int, problem text)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM dl_backfills b
      WHERE b.backfill_id = id AND b.state = 'open' AND b.cursor IS NOT DISTINCT FROM read_cursor
        FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH answers AS (
        SELECT m.outcome, m.job_id, m.field, m.detail FROM dl_enqueue_many(requests) m
    ), taken AS (
        UPDATE dl_slices s SET backfill_id = id
          FROM answers a JOIN dl_jobs j ON j.job_id = a.job_id
         WHERE a.outcome = 'exists' AND s.task = j.task AND s.partition_key = j.partition_key
        RETURNING 1
    )
    SELECT count(*) FILTER (WHERE outcome = 'created'), count(*) FILTER (WHERE outcome = 'exists'),
           min(concat_ws(' ', field, detail)) FILTER (WHERE outcome NOT IN ('created', 'exists'))
      INTO created, dl_make_backfill.adopted, problem
      FROM answers;
    UPDATE dl_backfills b
       SET cursor = next_cursor, made = b.made + created + dl_make_backfill.adopted,
           adopted = b.adopted + dl_make_backfill.adopted, skipped = b.skipped + passed,
           state = CASE WHEN problem IS NULL THEN b.state ELSE 'paused' END, reason = coalesce(problem, b.reason)
     WHERE b.backfill_id = id;
    IF problem IS NOT NULL THEN
        PERFORM dl_set_backfill_limit(id);
    END IF;
    RETURN NEXT;
END $$;

-- The state of a slice is that of its last job, which has its live key.
CREATE OR REPLACE FUNCTION dl_record_slice(job dl_jobs) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    IF job.live_key NOT LIKE 'slice:%' OR job.live_key <> 'slice:' || job.task || ':' || job.partition_key THEN
        RETURN;
    END IF;
    INSERT INTO dl_slices AS s (task, partition_key, interval_start, interval_end, state, job_id, backfill_id, runs, succeeded_at,
                                succeeded_job)
    VALUES (job.task, job.partition_key, job.interval_start, job.interval_end, job.status, job.job_id, job.backfill_id,
            (job.status = 'running')::int, CASE job.status WHEN 'succeeded' THEN clock_timestamp() END,
            CASE job.status WHEN 'succeeded' THEN job.job_id END)
        ON CONFLICT (task, partition_key) DO UPDATE
       SET interval_start = coalesce(excluded.interval_start, s.interval_start),
           interval_end = coalesce(excluded.interval_end, s.interval_end),
           state = excluded.state, job_id = excluded.job_id, runs = s.runs + excluded.runs,
           backfill_id = CASE s.job_id WHEN excluded.job_id THEN s.backfill_id ELSE coalesce(excluded.backfill_id, s.backfill_id) END,
           succeeded_at = coalesce(excluded.succeeded_at, s.succeeded_at),
           succeeded_job = coalesce(excluded.succeeded_job, s.succeeded_job), changed_at = clock_timestamp()
     WHERE s.job_id = excluded.job_id OR excluded.state IN ('queued', 'running');
END $$;

-- The core's hook.
CREATE OR REPLACE FUNCTION dl_jobs_created(job_ids uuid[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    PERFORM dl_record_slice(j) FROM unnest(job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id]) WHERE j.live_key LIKE 'slice:%';
END $$;
