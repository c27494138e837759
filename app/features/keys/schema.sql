-- API keys. Only a digest of a key is stored, from which the key cannot be recovered.
-- rights of the service: SELECT, UPDATE (last_used_at); none of readers
CREATE TABLE dl_api_keys (
    key_id       text        PRIMARY KEY,
    name         text        NOT NULL,
    digest       bytea       NOT NULL,
    scopes       text[]      NOT NULL,
    tasks        text[],     -- NULL: may trigger all of them
    queues       text[],     -- likewise
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by   text        NOT NULL,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    CONSTRAINT dl_api_keys_chk_scopes
        CHECK (cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'trigger', 'operate', 'admin']),
    -- Another scope would bypass the limit.
    CONSTRAINT dl_api_keys_chk_limits
        CHECK (tasks IS NULL AND queues IS NULL OR scopes <@ ARRAY['read', 'trigger'])
);

-- Secrets that sign browser sessions, the same for all processes.
-- rights of the service: SELECT, INSERT; none of readers
CREATE TABLE dl_signing_secrets (
    purpose    text        PRIMARY KEY,
    secret     bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE OR REPLACE TRIGGER dl_api_keys_audit AFTER INSERT OR UPDATE OR DELETE ON dl_api_keys
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('key', 'key_id', 'key_id,created_at,last_used_at', 'digest');
