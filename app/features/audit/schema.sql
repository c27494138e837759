-- Who changed what, from where. No foreign keys: entries outlive what they are about.
-- rights of the service: SELECT, INSERT
CREATE TABLE dl_audit (
    audit_id   bigserial   PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    action     text        NOT NULL,
    actor      text        NOT NULL,
    key_id     text,
    via        text        NOT NULL,
    address    text,
    request_id text,
    subject    text        NOT NULL,
    subject_id text,
    before     jsonb,
    after      jsonb,
    db_user    text        NOT NULL DEFAULT session_user  -- an account that may write here may claim any actor
);
CREATE INDEX dl_audit_subject_idx ON dl_audit (subject_id, audit_id);
CREATE INDEX dl_audit_at_idx ON dl_audit USING brin (at);
-- All but triggers, which are the larger part.
CREATE INDEX dl_audit_changes_idx ON dl_audit (audit_id) WHERE subject <> 'job' OR before IS NOT NULL OR after IS NULL;

-- The actor of this transaction: dl.audit_context, if the account may write the audit itself; NULL if it sets none. Of any
-- other account, whatever it has set, the account: the triggers have the owner's rights, and would write any name
-- otherwise. The setting `role` is the caller's, also within a function with the owner's rights. Only triggers call it: they set
-- the search path.
CREATE OR REPLACE FUNCTION dl_audit_context(operation text) RETURNS jsonb
    LANGUAGE plpgsql STABLE AS $$
DECLARE
    caller text := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    IF has_table_privilege(session_user, 'dl_audit', 'INSERT') OR has_table_privilege(caller, 'dl_audit', 'INSERT') THEN
        RETURN nullif(current_setting('dl.audit_context', true), '')::jsonb;
    END IF;
    -- Any account can set dl.function, too: only the value that dl_enqueue sets is recorded.
    RETURN jsonb_build_object('action', CASE current_setting('dl.function', true) WHEN 'dl_enqueue' THEN 'dl_enqueue'
                                                                                   ELSE lower(operation) END,
                              'actor', session_user, 'via', 'sql');
END $$;

-- A value that is not shown: of an object, the keys that the other one lacks or has with another value.
CREATE OR REPLACE FUNCTION dl_audit_diff_keys(this jsonb, other jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN jsonb_typeof(this) IS DISTINCT FROM 'object' THEN CASE WHEN this IS NOT NULL THEN '"…"'::jsonb END
        ELSE (SELECT coalesce(jsonb_agg(key ORDER BY key), '[]')
                FROM jsonb_object_keys(this) key
               WHERE CASE jsonb_typeof(other) WHEN 'object' THEN (other -> key) IS DISTINCT FROM (this -> key) ELSE true END)
    END
$$;

-- Writes an audit entry for a changed row, in transactions that set dl.audit_context; all others, such as claims,
-- heartbeats and settlements, only read that setting. Arguments: the subject, the column that identifies it, columns that
-- do not count, columns whose values are not shown.
CREATE OR REPLACE FUNCTION dl_audit_row() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    actor   jsonb := dl_audit_context(TG_OP);
    ignored text[] := string_to_array(TG_ARGV[2], ',');
    hidden  text[] := string_to_array(TG_ARGV[3], ',');
    older   jsonb := CASE WHEN TG_OP = 'INSERT' THEN '{}' ELSE to_jsonb(OLD) - ignored END;
    newer   jsonb := CASE WHEN TG_OP = 'DELETE' THEN '{}' ELSE to_jsonb(NEW) - ignored END;
    before  jsonb;
    after   jsonb;
BEGIN
    SELECT jsonb_object_agg(key, CASE WHEN key <> ALL (hidden) THEN older -> key ELSE dl_audit_diff_keys(older -> key, newer -> key) END),
           jsonb_object_agg(key, CASE WHEN key <> ALL (hidden) THEN newer -> key ELSE dl_audit_diff_keys(newer -> key, older -> key) END)
      INTO before, after
      FROM jsonb_object_keys(older || newer) key
     WHERE (older -> key) IS DISTINCT FROM (newer -> key)
       AND coalesce(older -> key, 'null') IS DISTINCT FROM coalesce(newer -> key, 'null');
    IF after IS NOT NULL THEN
        INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id, before, after)
        VALUES (actor ->> 'action', actor ->> 'actor', actor ->> 'key_id', actor ->> 'via', actor ->> 'address',
                actor ->> 'request_id', TG_ARGV[0], coalesce(to_jsonb(NEW), to_jsonb(OLD)) ->> TG_ARGV[1],
                CASE WHEN TG_OP <> 'INSERT' THEN before END, CASE WHEN TG_OP <> 'DELETE' THEN after END);
    END IF;
    RETURN NULL;
END $$;

-- Of many jobs inserted by one statement there is one entry: each has its own event.
CREATE OR REPLACE FUNCTION dl_audit_jobs_inserted() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    actor jsonb := dl_audit_context(TG_OP);
BEGIN
    IF actor IS NULL THEN
        RETURN NULL;
    END IF;
    INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id, after)
    SELECT actor ->> 'action', actor ->> 'actor', actor ->> 'key_id', actor ->> 'via', actor ->> 'address',
           actor ->> 'request_id', 'job', job_id::text,
           jsonb_strip_nulls(jsonb_build_object(
               'queue', queue, 'task', task, 'lock_key', lock_key, 'priority', priority, 'available_at', available_at,
               'idempotency_key', idempotency_key, 'producer', producer))
      FROM inserted
     WHERE (SELECT count(*) FROM inserted) = 1;
    IF NOT FOUND THEN
        INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, after)
        SELECT actor ->> 'action', actor ->> 'actor', actor ->> 'key_id', actor ->> 'via', actor ->> 'address', actor ->> 'request_id',
               'job',
               jsonb_build_object('jobs', count(*), 'queues', jsonb_agg(DISTINCT queue), 'tasks', jsonb_agg(DISTINCT task))
          FROM inserted
        HAVING count(*) > 1;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE TRIGGER dl_jobs_audit_ins AFTER INSERT ON dl_jobs
    REFERENCING NEW TABLE AS inserted
    FOR EACH STATEMENT WHEN (current_setting('dl.audit_context', true) <> '' OR current_setting('dl.function', true) <> '')
    EXECUTE FUNCTION dl_audit_jobs_inserted();

CREATE OR REPLACE TRIGGER dl_jobs_audit AFTER UPDATE OR DELETE ON dl_jobs
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('job', 'job_id',
        'graph_id,graph_key,wait_state,waits_on,unknown_task,run_id,worker,worker_id,lease_expires_at,heartbeat_at,started_at,finished_at,crashes,request_hash,error_fingerprint',
        'args,progress,result,error,traceback,checkpoint,webhook');  -- a webhook's URL may have a token in it

CREATE OR REPLACE TRIGGER dl_queues_audit AFTER INSERT OR UPDATE OR DELETE ON dl_queues
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('queue', 'queue', 'changed_by,changed_at', '');

CREATE OR REPLACE TRIGGER dl_fair_weights_audit AFTER INSERT OR UPDATE OR DELETE ON dl_fair_weights
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('queue', 'queue', '', '');

CREATE OR REPLACE TRIGGER dl_workers_audit AFTER UPDATE OF draining ON dl_workers
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('worker', 'worker_id', 'seen_at,running_attempts,rss_bytes,listener', '');

-- Old entries are deleted by this function alone: a role that may call it cannot remove what it just did.
CREATE OR REPLACE FUNCTION dl_audit_prune(period interval, max_rows int) RETURNS bigint
    LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    WITH old AS (
        SELECT audit_id FROM dl_audit
         WHERE at < clock_timestamp() - greatest(period, interval '1 day')
         ORDER BY audit_id LIMIT max_rows
    ), deleted AS (
        DELETE FROM dl_audit a USING old WHERE a.audit_id = old.audit_id RETURNING 1
    )
    SELECT count(*) FROM deleted
$$;

REVOKE EXECUTE ON FUNCTION
    dl_audit_row, dl_audit_jobs_inserted, dl_audit_prune
  FROM PUBLIC;
