-- Roles of the queue's schema and their rights. Printed by `dataloader migrate --roles`. The owner of the tables, with the
-- right to create roles, runs it once, and again after each `dataloader migrate`; it may be repeated.
--
-- These roles cannot log in. Grant each to the accounts that are to have it:
--     GRANT {service} TO the_account_of_the_service;
--
-- Not granted here: what single features want beyond that.
{feature_rights}
--
-- The owner of the tables is the account that ran `dataloader migrate`. Only the owner changes tables, and creates and
-- revokes API keys.

DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY[{service_text}, {reader_text}, {enqueuer_text}] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        END IF;
    END LOOP;
END $$;

GRANT USAGE ON SCHEMA {schema} TO {service}, {reader}, {enqueuer};
REVOKE CREATE ON SCHEMA {schema} FROM {service}, {reader}, {enqueuer}, PUBLIC;

-- The API and the workers may read and change rows, not the tables themselves.
DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT * FROM (VALUES
            ('dl_jobs',               'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_job_events',         'SELECT, INSERT'),
            ('dl_job_logs',           'SELECT, INSERT, DELETE'),
            ('dl_workers',            'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_schema',             'SELECT'),
            ('dl_queues',             'SELECT, INSERT, UPDATE'),
            ('dl_limits',             'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_limit_starts',       'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_graphs',             'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_edges',              'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_graph_work',         'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_breakers',           'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_schedules',          'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_firings',            'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_dataset_updates',    'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_backfills',          'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_slices',             'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_checks',             'SELECT, INSERT, DELETE'),
            ('dl_dataset_events',     'SELECT, INSERT, DELETE'),
            ('dl_offloads',           'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_lineage_state',      'SELECT, UPDATE'),
            ('dl_fair_weights',       'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_bulk',               'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_statistics',         'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_queue_depths',       'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_recent_runs',        'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_statistics_state',   'SELECT, UPDATE'),
            ('dl_webhooks',           'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_deliveries',         'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_delivery_attempts',  'SELECT, INSERT'),
            ('dl_alert_rules',        'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_alerts',             'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_stalled_progress',   'SELECT, INSERT, UPDATE, DELETE'),
            ('dl_notify_state',       'SELECT, INSERT, UPDATE, DELETE'),
            -- It verifies keys, and cannot make one; it writes the audit, and cannot change what is written.
            ('dl_api_keys',           'SELECT, UPDATE (last_used_at)'),
            ('dl_signing_secrets',    'SELECT, INSERT'),
            ('dl_audit',              'SELECT, INSERT')
        ) rights (name, privileges)
    LOOP
        EXECUTE format('REVOKE ALL ON {schema}.%I FROM {service}', granted.name);
        EXECUTE format('GRANT %s ON {schema}.%I TO {service}', granted.privileges, granted.name);
        IF granted.name NOT IN ('dl_api_keys', 'dl_signing_secrets', 'dl_webhooks') THEN
            EXECUTE format('GRANT SELECT ON {schema}.%I TO {reader}', granted.name);
        END IF;
    END LOOP;
END $$;

GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {service};

-- Functions: revoked from all, then granted by role. Those with the owner's rights go to the service only, except the two
-- that enqueue jobs. PUBLIC keeps dl_new_id. Trigger functions stay with the owner: triggers fire without a right to them,
-- and with one an account could fire them on a table of its own, such as the one that empties the events.
DO $$
DECLARE
    routine record;
BEGIN
    FOR routine IN
        SELECT p.oid::regprocedure AS signature, p.prosecdef AS is_definer, p.proname AS name,
               p.prorettype = 'pg_catalog.trigger'::regtype AS is_trigger
          FROM pg_proc p
         WHERE p.pronamespace = {schema_text}::regnamespace AND p.proname LIKE 'dl\_%' AND p.prokind = 'f'
           AND p.proname <> 'dl_new_id'
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC, {service}, {reader}', routine.signature);
        CONTINUE WHEN routine.is_trigger;
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {service}', routine.signature);
        IF NOT routine.is_definer THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {reader}', routine.signature);
        END IF;
        IF routine.name IN ('dl_enqueue', 'dl_enqueue_many', 'dl_enqueue_graph') THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO {enqueuer}', routine.signature);
        END IF;
    END LOOP;
END $$;
