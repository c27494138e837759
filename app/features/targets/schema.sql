-- The fences of attempts in targets: numbers that grow with every claim of a job, also over a failover to a server that has lost
-- the last ones. See decision 127.
-- The history of this database, in the high bits of a fence. One row.
-- rights of the service: SELECT, INSERT, UPDATE
CREATE TABLE dl_fence_history (
    is_only  bool NOT NULL DEFAULT true PRIMARY KEY CHECK (is_only),
    timeline int  NOT NULL,  -- of the server when the last fence was drawn
    server   text NOT NULL,  -- the cluster and the database
    epoch    int  NOT NULL   -- grows with the timeline, and when the database was moved to another server
);

CREATE SEQUENCE dl_fence_number OWNED BY dl_fence_history.epoch;

-- In which targets the attempts of a job wrote, the last one that claimed its row there, and whether it could.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
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
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_task_targets (
    task   text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    target text NOT NULL CHECK (target <> '' AND octet_length(target) <= 1000)
);

-- Draws a fence for a run, and records its target. The caller commits only if the run still owns its job then: so a later
-- claim has a higher number. `former` is the fence of the job's last claim there, 0 if it had none. With a problem that is kept.
CREATE OR REPLACE FUNCTION dl_draw_fence(job uuid, run uuid, target_name text, problem_text text, OUT number bigint, OUT former bigint)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
DECLARE
    server_timeline int := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
    server_name     text := (SELECT concat_ws(' ', s.system_identifier, d.oid)
                               FROM pg_control_system() s, pg_database d WHERE d.datname = current_database());
    history         dl_fence_history;
BEGIN
    SELECT h.* INTO history FROM dl_fence_history h;
    IF (history.timeline, history.server) IS DISTINCT FROM (server_timeline, server_name) THEN
        INSERT INTO dl_fence_history AS h (timeline, server, epoch) VALUES (server_timeline, server_name, server_timeline)
            ON CONFLICT (is_only) DO UPDATE
               SET epoch = h.epoch + CASE WHEN h.server = server_name AND server_timeline >= h.timeline THEN server_timeline - h.timeline
                                          WHEN h.server <> server_name OR server_timeline < h.timeline THEN 1 ELSE 0 END,
                   timeline = server_timeline, server = server_name
            RETURNING h.* INTO history;
    END IF;
    number := (history.epoch::bigint << 40) + nextval('dl_fence_number');
    former := coalesce((SELECT t.fence FROM dl_job_targets t
                         WHERE t.job_id = job AND t.target = target_name AND t.problem IS NULL AND t.deleted_at IS NULL), 0);
    IF problem_text IS NULL OR former = 0 THEN
        INSERT INTO dl_job_targets AS t (job_id, target, run_id, fence, problem) VALUES (job, target_name, run, number, problem_text)
            ON CONFLICT (job_id, target) DO UPDATE
               SET run_id = run, fence = number, problem = problem_text, claimed_at = clock_timestamp(), deleted_at = NULL;
    END IF;
END $$;
