-- The fences of attempts in targets: numbers that grow with every claim of a job, also over a failover to a server that has lost
-- the last ones. See decision 127.
-- The history of this database, in the high bits of a fence. One row.
CREATE TABLE dl_fence_history (
    is_only  bool NOT NULL DEFAULT true PRIMARY KEY CHECK (is_only),
    timeline int  NOT NULL,  -- of the server when the last fence was drawn
    epoch    int  NOT NULL   -- grows with the timeline, and when it has fallen: the database was moved to a new server
);

CREATE SEQUENCE dl_fence_number OWNED BY dl_fence_history.epoch;

-- In which targets the attempts of a job wrote, the last one that claimed its row there, and whether it could.
CREATE TABLE dl_job_targets (
    job_id     uuid        NOT NULL,
    target     text        NOT NULL,
    run_id     uuid        NOT NULL,
    fence      bigint      NOT NULL,
    problem    text,                  -- why its transactions there have no fence
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz,           -- of the row in the target
    PRIMARY KEY (job_id, target)
);
CREATE INDEX dl_job_targets_kept_idx ON dl_job_targets (claimed_at, job_id, target) WHERE deleted_at IS NULL;

-- The targets that tasks name. Workers write what their tasks declare: processes that load no tasks want to know.
CREATE TABLE dl_task_targets (
    task   text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    target text NOT NULL CHECK (target <> '' AND octet_length(target) <= 1000)
);

-- Draws a fence for a run, and records its target. The caller commits only if the run still owns its job then: so a later
-- claim has a higher number.
CREATE OR REPLACE FUNCTION dl_draw_fence(job uuid, run uuid, target_name text, problem_text text) RETURNS bigint
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    server_timeline int := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
    history         dl_fence_history;
    drawn           bigint;
BEGIN
    SELECT h.* INTO history FROM dl_fence_history h;
    IF history.timeline IS DISTINCT FROM server_timeline THEN
        INSERT INTO dl_fence_history AS h (timeline, epoch) VALUES (server_timeline, server_timeline)
            ON CONFLICT (is_only) DO UPDATE
               SET epoch = h.epoch + CASE WHEN server_timeline >= h.timeline THEN server_timeline - h.timeline ELSE 1 END,
                   timeline = server_timeline
            RETURNING h.* INTO history;
    END IF;
    drawn := (history.epoch::bigint << 40) + nextval('dl_fence_number');
    INSERT INTO dl_job_targets AS t (job_id, target, run_id, fence, problem) VALUES (job, target_name, run, drawn, problem_text)
        ON CONFLICT (job_id, target) DO UPDATE
           SET run_id = run, fence = drawn, problem = problem_text, claimed_at = clock_timestamp(), deleted_at = NULL;
    RETURN drawn;
END $$;
