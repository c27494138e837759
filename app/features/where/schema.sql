-- The last answer of a worker process to the question where a run is. Old ones are deleted with the next answer.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE UNLOGGED TABLE dl_where (
    run_id      uuid        PRIMARY KEY,
    answer      text        NOT NULL CHECK (octet_length(answer) <= 65536),  -- JSON
    answered_at timestamptz NOT NULL
);

-- The account of an attempt: for what its time went. Written while it runs, from the age of ten seconds, and when it has ended.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_accounts (
    run_id         uuid        PRIMARY KEY,
    job_id         uuid        NOT NULL,
    task           text        NOT NULL,
    attempt        int         NOT NULL,
    written_at     timestamptz NOT NULL,
    ended_at       timestamptz,  -- NULL: it runs, or its worker process has died
    wall_sec       float8      NOT NULL,
    cpu_sec        float8,
    peak_memory_mb float8,       -- of an attempt with processes of its own, as the next one
    memory_gb_sec  float8,
    rows           bigint      NOT NULL,  -- that the toolkit has copied, as the next one
    bytes          bigint      NOT NULL,
    cost           float8,       -- by the price list of the settings
    account        text        NOT NULL CHECK (octet_length(account) <= 4096)  -- JSON
);
CREATE INDEX dl_accounts_idx_job ON dl_accounts (job_id);
CREATE INDEX dl_accounts_idx_task ON dl_accounts (task, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX dl_accounts_idx_open ON dl_accounts (run_id) WHERE ended_at IS NULL;

-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_account_days (
    day           date   NOT NULL,  -- in UTC
    task          text   NOT NULL,
    attempts      bigint NOT NULL,
    wall_sec      float8 NOT NULL,
    cpu_sec       float8 NOT NULL,
    memory_gb_sec float8 NOT NULL,
    rows          bigint NOT NULL,
    bytes         bigint NOT NULL,
    cost          float8 NOT NULL,
    PRIMARY KEY (day, task)
);
