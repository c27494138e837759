-- A claim and a settlement are functions, and few triggers of dl_jobs are left, whose functions call hooks. schema.sql creates
-- the others again.

DROP TRIGGER IF EXISTS dl_jobs_clear_worker_id ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_set_ready ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_manual_update ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_queued_ends ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_queued_ended ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_cancel_running ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_left_queue ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_check_limits ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_graph_ended ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_graph_requeued ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_graph_del ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_graph_trunc ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_failed ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_slice_inserted ON dl_jobs;
DROP TRIGGER IF EXISTS dl_jobs_slice_changed ON dl_jobs;
DROP FUNCTION IF EXISTS dl_jobs_clear_worker_id();
DROP FUNCTION IF EXISTS dl_jobs_set_ready();
DROP FUNCTION IF EXISTS dl_jobs_on_manual_update();
DROP FUNCTION IF EXISTS dl_jobs_end_queued();
DROP FUNCTION IF EXISTS dl_jobs_queued_ended();
DROP FUNCTION IF EXISTS dl_jobs_notify() CASCADE;
DROP FUNCTION IF EXISTS dl_jobs_left_queue();
DROP FUNCTION IF EXISTS dl_jobs_check_limits();
DROP FUNCTION IF EXISTS dl_jobs_graph_changed();
DROP FUNCTION IF EXISTS dl_jobs_graph_deleted();
DROP FUNCTION IF EXISTS dl_jobs_failed();
DROP FUNCTION IF EXISTS dl_jobs_record_slice();
