-- Values that jobs compared with their limits, such as the number of rows that they loaded. Kept 90 days.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_checks (
    check_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task          text        NOT NULL,
    name          text        NOT NULL CHECK (name <> '' AND octet_length(name) <= 200),
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id        uuid        NOT NULL,
    attempt       int         NOT NULL,
    partition_key text        NOT NULL,
    value         float8      NOT NULL,
    low           float8,                      -- the least and the greatest value that passes; NULL: any
    high          float8,
    median        float8,                      -- of the values before it, where they count
    outcome       text        NOT NULL CHECK (outcome IN ('passed', 'warned', 'failed')),
    detail        text
);
CREATE INDEX dl_checks_name_idx ON dl_checks (task, name, at);
CREATE INDEX dl_checks_job_idx ON dl_checks (job_id);
CREATE INDEX dl_checks_bad_idx ON dl_checks (at) WHERE outcome <> 'passed';

-- The updates and reads of datasets, by jobs that succeeded. Kept 90 days; the last
-- one of each dataset, kind and task is kept for ever.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_dataset_events (
    event_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    dataset       text        NOT NULL CHECK (dataset <> '' AND octet_length(dataset) <= 500),
    kind          text        NOT NULL CHECK (kind IN ('produced', 'consumed')),
    task          text        NOT NULL,
    at            timestamptz NOT NULL DEFAULT clock_timestamp(),
    job_id        uuid        NOT NULL,
    partition_key text        NOT NULL,
    rows          bigint,
    schema        jsonb
);
CREATE INDEX dl_dataset_events_dataset_idx ON dl_dataset_events (dataset, kind, task, at);
CREATE INDEX dl_dataset_events_job_idx ON dl_dataset_events (job_id);

-- Records what runs reported: their data checks, and, of those that succeeded, the datasets that they produced and consumed.
-- `job_ids` are the jobs that the caller's statement has settled or released; each report has the run_id. Called only if a
-- run has reported something, last in its statement: what follows from an update of a dataset belongs at the end, in the
-- order of the datasets' names. Takes no lock that others wait for.
CREATE OR REPLACE FUNCTION dl_record_reports(reports jsonb, job_ids uuid[]) RETURNS int
    LANGUAGE plpgsql VOLATILE STRICT SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    recorded int;
BEGIN
    INSERT INTO dl_checks (task, name, job_id, attempt, partition_key, value, low, high, median, outcome, detail)
    SELECT j.task, c.name, j.job_id, greatest(j.attempt, 1), j.partition_key, c.value, c.low, c.high, c.median, c.outcome, c.detail
      FROM jsonb_array_elements(reports) r
           JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid
           CROSS JOIN LATERAL jsonb_to_recordset(r -> 'checks')
                              AS c (name text, value float8, low float8, high float8, median float8, outcome text, detail text);

    UPDATE dl_jobs j
       SET warnings = w.count
      FROM (SELECT (r ->> 'run_id')::uuid AS run_id, count(*) FROM jsonb_array_elements(reports) r, jsonb_array_elements(r -> 'checks') c
             WHERE c ->> 'outcome' = 'warned' GROUP BY 1) w
     WHERE j.job_id = ANY (job_ids) AND j.run_id = w.run_id AND j.status = 'succeeded';

    INSERT INTO dl_dataset_events (dataset, kind, task, job_id, partition_key, rows, schema)
    SELECT d.dataset, d.kind, j.task, j.job_id, coalesce(d.partition, j.partition_key), d.rows, d.schema
      FROM jsonb_array_elements(reports) r
           JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid AND j.status = 'succeeded'
           CROSS JOIN LATERAL jsonb_to_recordset(r -> 'datasets')
                              AS d (kind text, dataset text, partition text, rows bigint, schema jsonb)
     ORDER BY d.dataset;
    GET DIAGNOSTICS recorded = ROW_COUNT;

    IF recorded > 0 THEN
        INSERT INTO dl_dataset_updates (schedule_id, dataset)
        SELECT s.schedule_id, p.dataset
          FROM (SELECT DISTINCT d ->> 'dataset' AS dataset
                  FROM jsonb_array_elements(reports) r
                       JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid AND j.status = 'succeeded'
                       CROSS JOIN LATERAL jsonb_array_elements(r -> 'datasets') d
                 WHERE d ->> 'kind' = 'produced') p
               JOIN dl_schedules s ON coalesce(s.overrides -> 'after', s.declared -> 'after') ? p.dataset
         -- One is enough, unless it is being answered: the job that answers it may begin before this transaction commits.
         WHERE NOT EXISTS (SELECT FROM dl_dataset_updates u WHERE u.schedule_id = s.schedule_id AND u.dataset = p.dataset
                              FOR SHARE SKIP LOCKED);
        IF FOUND THEN
            PERFORM pg_notify('dl_control', 'schedules');
        END IF;
        UPDATE dl_slices s
           SET rows = p.rows
          FROM (SELECT j.task, j.partition_key, j.job_id, sum((d ->> 'rows')::bigint)::bigint AS rows
                  FROM jsonb_array_elements(reports) r
                       JOIN dl_jobs j ON j.job_id = ANY (job_ids) AND j.run_id = (r ->> 'run_id')::uuid AND j.status = 'succeeded'
                                         AND j.live_key = 'slice:' || j.task || ':' || j.partition_key
                       CROSS JOIN LATERAL jsonb_array_elements(r -> 'datasets') d
                 WHERE d ->> 'kind' = 'produced'
                 GROUP BY j.job_id) p
         WHERE s.task = p.task AND s.partition_key = p.partition_key AND s.job_id = p.job_id AND p.rows IS NOT NULL;
    END IF;
    RETURN recorded;
END $$;

-- The last event of each kind and task of a dataset: one search in the index for each.
CREATE OR REPLACE FUNCTION dl_last_dataset_events(dataset_name text) RETURNS SETOF dl_dataset_events
    LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET enable_sort = off SET jit = off AS $$
    WITH RECURSIVE last AS (
        (SELECT e.* FROM dl_dataset_events e WHERE e.dataset = dataset_name ORDER BY e.kind DESC, e.task DESC, e.at DESC LIMIT 1)
        UNION ALL
        SELECT next.*
          FROM last CROSS JOIN LATERAL (
                   SELECT e.* FROM dl_dataset_events e
                    WHERE e.dataset = dataset_name AND (e.kind, e.task) < (last.kind, last.task)
                    ORDER BY e.kind DESC, e.task DESC, e.at DESC LIMIT 1) next
    )
    SELECT * FROM last LIMIT 1000
$$;
