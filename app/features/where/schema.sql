-- The last answer of a worker process to the question where a run is. Old ones are deleted with the next answer.
CREATE UNLOGGED TABLE dl_where (
    run_id      uuid        PRIMARY KEY,
    answer      text        NOT NULL CHECK (octet_length(answer) <= 65536),  -- JSON
    answered_at timestamptz NOT NULL
);
