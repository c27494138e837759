-- Transactions in targets have a fence, and the queue's database gives out its numbers.

CREATE TABLE dl_fence_history (
    is_only  bool NOT NULL DEFAULT true PRIMARY KEY CHECK (is_only),
    timeline int  NOT NULL,
    server   text NOT NULL,
    epoch    int  NOT NULL
);

CREATE SEQUENCE dl_fence_number OWNED BY dl_fence_history.epoch;

CREATE TABLE dl_job_targets (
    job_id     uuid        NOT NULL,
    target     text        NOT NULL,
    run_id     uuid        NOT NULL,
    fence      bigint      NOT NULL,
    problem    text,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz,
    PRIMARY KEY (job_id, target)
);
CREATE INDEX dl_job_targets_kept_idx ON dl_job_targets (claimed_at, job_id, target) WHERE deleted_at IS NULL;

CREATE TABLE dl_task_targets (
    task   text PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    target text NOT NULL CHECK (target <> '' AND octet_length(target) <= 1000)
);

-- Worker processes answer where their runs are.

CREATE UNLOGGED TABLE dl_where (
    run_id      uuid        PRIMARY KEY,
    answer      text        NOT NULL CHECK (octet_length(answer) <= 65536),
    answered_at timestamptz NOT NULL
);

-- Webhooks send messages to chats and by e-mail.

ALTER TABLE dl_webhooks
    ADD COLUMN format text NOT NULL DEFAULT 'json' CHECK (format IN ('json', 'slack', 'teams', 'google_chat', 'email'));

-- Worker processes name the release of the code that they run.

ALTER TABLE dl_workers ADD COLUMN release text;
DROP FUNCTION IF EXISTS dl_claim(text, text[], int, int, text[], bool, bool, uuid[], text, uuid, bool, int);

-- For what the time of an attempt went, and totals by task and day.

CREATE TABLE dl_accounts (
    run_id         uuid        PRIMARY KEY,
    job_id         uuid        NOT NULL,
    task           text        NOT NULL,
    attempt        int         NOT NULL,
    written_at     timestamptz NOT NULL,
    ended_at       timestamptz,
    wall_sec       float8      NOT NULL,
    cpu_sec        float8,
    peak_memory_mb float8,
    memory_gb_sec  float8,
    rows           bigint      NOT NULL,
    bytes          bigint      NOT NULL,
    cost           float8,
    account        text        NOT NULL CHECK (octet_length(account) <= 4096)
);
CREATE INDEX dl_accounts_idx_job ON dl_accounts (job_id);
CREATE INDEX dl_accounts_idx_task ON dl_accounts (task, ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX dl_accounts_idx_open ON dl_accounts (run_id) WHERE ended_at IS NULL;

CREATE TABLE dl_account_days (
    day           date   NOT NULL,
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
