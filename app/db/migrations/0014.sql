-- Limits remember their jobs while it takes long to find them.

CREATE TABLE dl_limit_looks (
    name     text        NOT NULL,
    taken_at timestamptz NOT NULL,
    part     bigint      NOT NULL,
    job_ids  uuid[]      NOT NULL,
    is_whole bool        NOT NULL,
    PRIMARY KEY (name, taken_at, part)
);
