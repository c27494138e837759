-- Schedules make jobs at nominal times. What applies is `declared` with `overrides` on top: the definition in code and what
-- people changed, or for a schedule of people the overrides alone.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_schedules (
    schedule_id     uuid        PRIMARY KEY DEFAULT dl_new_id(),
    name            text        NOT NULL UNIQUE CHECK (name <> '' AND octet_length(name) <= 200),
    source          text        NOT NULL CHECK (source IN ('code', 'people')),
    task            text        NOT NULL CHECK (task <> '' AND octet_length(task) <= 1000),
    declared        jsonb       NOT NULL DEFAULT '{}',
    overrides       jsonb       NOT NULL DEFAULT '{}',
    declared_at     timestamptz,        -- when the process started that declared it last: an older one changes nothing
    seen_at         timestamptz,        -- when a live worker last had it in its code
    orphaned_at     timestamptz,        -- no live worker has it in its code any more: it does not fire
    paused_at       timestamptz,
    paused_by       text,
    paused_reason   text,
    version         int         NOT NULL DEFAULT 1,  -- grows with each change of what applies
    last_at         timestamptz,        -- nominal times up to this one have their rows in dl_firings
    next_at         timestamptz,        -- the next nominal time; NULL: there is none
    error           text,               -- why its next time is unknown
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by      text,
    changed_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dl_schedules_next_idx ON dl_schedules (next_at) WHERE paused_at IS NULL AND orphaned_at IS NULL;

-- What became of each nominal time: one row, or one for a range of them that were skipped.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_firings (
    schedule_id uuid        NOT NULL REFERENCES dl_schedules ON DELETE CASCADE,
    fire_at     timestamptz NOT NULL,
    due_at      timestamptz NOT NULL,  -- with jitter
    outcome     text        NOT NULL CHECK (outcome IN ('made', 'exists', 'late_skipped', 'overlap_skipped', 'paused_skipped', 'refused')),
    until       timestamptz,           -- the last time of a range
    job_id      uuid,
    made_by     text        NOT NULL CHECK (made_by IN ('clock', 'person', 'dataset')),
    detail      text,
    made_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (schedule_id, fire_at)
);
CREATE INDEX dl_firings_made_idx ON dl_firings (made_at);
CREATE INDEX dl_firings_fire_idx ON dl_firings (fire_at);

-- Updates of datasets that schedules wait for, until these fire. Only inserted and deleted: a settlement waits for no firing.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_dataset_updates (
    update_id   bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule_id uuid        NOT NULL REFERENCES dl_schedules ON DELETE CASCADE,
    dataset     text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dl_dataset_updates_schedule_idx ON dl_dataset_updates (schedule_id, dataset);
CREATE INDEX dl_schedules_after_idx ON dl_schedules USING gin (coalesce(overrides -> 'after', declared -> 'after'))
    WHERE coalesce(overrides -> 'after', declared -> 'after') IS NOT NULL;

-- Fires schedules. Each object of the batch has a schedule as it was read (schedule_id, version, read_last_at), its new last_at,
-- next_at and, if a time has come, error, the updates of datasets that it answers, and firings: fire_at, due_at, outcome, until, detail, and with the outcome `due` the request of its job and
-- the overlap rule. A schedule that has changed or fired meanwhile is left out; a time that has a row is not fired again.
CREATE OR REPLACE FUNCTION dl_fire_schedules(batch jsonb)
    RETURNS TABLE (schedule_id uuid, fire_at timestamptz, outcome text, job_id uuid, detail text)
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    item     jsonb;
    firing   jsonb;
    id       uuid;
    kind     text;
    serving  uuid;
    has_job  bool;           -- an earlier firing of the schedule makes one
    requests jsonb[];        -- of the jobs to be made
    ids      uuid[];         -- their schedules
    times    timestamptz[];  -- and nominal times
BEGIN
    FOR item IN SELECT value FROM jsonb_array_elements(batch) ORDER BY value ->> 'schedule_id' LOOP
        id := (item ->> 'schedule_id')::uuid;
        UPDATE dl_schedules s
           SET last_at = (item ->> 'last_at')::timestamptz, next_at = (item ->> 'next_at')::timestamptz,
               error = CASE WHEN item ? 'error' THEN item ->> 'error' ELSE s.error END
         WHERE s.schedule_id = id AND s.version = (item ->> 'version')::int AND s.paused_at IS NULL AND s.orphaned_at IS NULL
           AND s.last_at IS NOT DISTINCT FROM (item ->> 'read_last_at')::timestamptz;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM dl_dataset_updates u
         WHERE u.update_id IN (SELECT value::bigint FROM jsonb_array_elements_text(item -> 'updates'));
        has_job := false;
        FOR firing IN SELECT value FROM jsonb_array_elements(item -> 'firings') WITH ORDINALITY ORDER BY ordinality LOOP
            kind := firing ->> 'outcome';
            serving := NULL;
            IF kind = 'due' AND firing ->> 'overlap' = 'skip' THEN
                IF has_job OR EXISTS (SELECT FROM dl_jobs j WHERE j.schedule_id = id AND j.status IN ('queued', 'running')) THEN
                    kind := 'overlap_skipped';
                END IF;
            ELSIF kind = 'due' AND firing ->> 'made_by' = 'dataset' AND firing ->> 'overlap' = 'queue' THEN
                -- A job that begins later than this sees what was updated before.
                SELECT j.job_id INTO serving FROM dl_jobs j
                 WHERE j.schedule_id = id AND j.status = 'queued' AND j.attempt = 0 LIMIT 1;
                IF FOUND THEN
                    kind := 'exists';
                END IF;
            END IF;
            INSERT INTO dl_firings (schedule_id, fire_at, due_at, outcome, until, job_id, made_by, detail)
            VALUES (id, (firing ->> 'fire_at')::timestamptz, (firing ->> 'due_at')::timestamptz,
                    CASE kind WHEN 'due' THEN 'made' ELSE kind END, (firing ->> 'until')::timestamptz, serving,
                    coalesce(firing ->> 'made_by', 'clock'), firing ->> 'detail')
                ON CONFLICT DO NOTHING;
            CONTINUE WHEN NOT FOUND;
            IF kind = 'due' THEN
                has_job := true;
                requests := requests || (firing -> 'job');
                ids := ids || id;
                times := times || (firing ->> 'fire_at')::timestamptz;
            ELSE
                RETURN QUERY SELECT id, (firing ->> 'fire_at')::timestamptz, kind, serving, firing ->> 'detail';
            END IF;
        END LOOP;
    END LOOP;

    IF requests IS NOT NULL THEN
        RETURN QUERY
        WITH answers AS MATERIALIZED (
            SELECT m.n, m.outcome, m.job_id, m.field, m.detail FROM dl_enqueue_many(to_jsonb(requests)) m
        )
        UPDATE dl_firings f
           SET outcome = CASE a.outcome WHEN 'created' THEN 'made' WHEN 'invalid' THEN 'refused' ELSE 'exists' END, job_id = a.job_id,
               detail = CASE a.outcome WHEN 'invalid' THEN concat_ws(' ', a.field, a.detail) ELSE f.detail END
          FROM answers a
         WHERE f.schedule_id = ids[a.n] AND f.fire_at = times[a.n]
        RETURNING f.schedule_id, f.fire_at, f.outcome, f.job_id, f.detail;
    END IF;
END $$;

CREATE OR REPLACE TRIGGER dl_schedules_audit
    AFTER INSERT OR DELETE OR UPDATE OF overrides, task, source, paused_at, paused_reason ON dl_schedules
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('schedule', 'name',
                                  'schedule_id,declared_at,seen_at,version,last_at,next_at,error,created_at,changed_by,changed_at',
                                  'declared,overrides');
