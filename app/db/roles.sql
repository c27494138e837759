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

-- The API and the workers may read and change rows, not the tables themselves. They verify API keys and cannot make one;
-- they write the audit and cannot change what is written.
{service_rights}
GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {service};

-- Functions: revoked from all, then granted by role. Those with the owner's rights go to the service only, except the two
-- that enqueue jobs. PUBLIC keeps what a plain INSERT needs. Trigger functions stay with the owner: triggers fire without a right to them,
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
           AND p.proname NOT IN ('dl_new_id', 'dl_is_tag_list')
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
