-- Functions: the ends of jobs call one function, which features replace.

-- schema.sql creates the others again, and the triggers that were dropped with theirs.
DROP FUNCTION IF EXISTS dl_wake_after(jsonb);
DROP FUNCTION IF EXISTS dl_apply_limits(uuid[], text[]);
DROP FUNCTION IF EXISTS dl_count_outcomes(jsonb);  -- it returns an array of text
DROP FUNCTION IF EXISTS dl_jobs_graph_ended() CASCADE;
DROP FUNCTION IF EXISTS dl_jobs_graph_requeued() CASCADE;
DROP FUNCTION IF EXISTS dl_is_final(dl_status) CASCADE;
DROP FUNCTION IF EXISTS dl_weight_in(text, jsonb);
DROP FUNCTION IF EXISTS dl_jobs_on_requeue() CASCADE;
DROP FUNCTION IF EXISTS dl_jobs_cancel_running() CASCADE;
