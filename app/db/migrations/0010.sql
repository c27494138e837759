-- A job that is due when it is inserted is ready by the column's default, without a trigger.

ALTER TABLE dl_jobs ALTER wait_state SET DEFAULT 'ready';
-- dl_notify_queue does this itself.
DROP FUNCTION IF EXISTS dl_claim_expected(text);
