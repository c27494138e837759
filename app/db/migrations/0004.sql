-- Tables, columns, types and functions get the names of schema.sql; retired idempotency keys go.
-- A key lives as long as its job. Processes of 0.2.0 send statements with the old names: all of them must be stopped.

SELECT pg_advisory_xact_lock(1684828527, 3);

-- Functions that are renamed or whose arguments are, with their triggers.
DROP FUNCTION IF EXISTS
    dl_act, dl_asked, dl_audit_outline, dl_audit_prune, dl_bucket, dl_drop_parts, dl_first_id, dl_job_events_of_jobs,
    dl_job_fits, dl_jobs_became_ready, dl_jobs_claimed_by_another, dl_jobs_moved_by_hand, dl_jobs_placed,
    dl_jobs_to_the_gate, dl_jobs_to_the_start, dl_key_hash, dl_lease_is_over, dl_make_parts, dl_move_on, dl_parts, dl_ring,
    dl_room, dl_tell, dl_tell_alerts, dl_text, dl_text_within, dl_will_look
    CASCADE;

DROP TABLE IF EXISTS dl_retired_keys, dl_alert_round;

ALTER TYPE dl_place RENAME TO dl_wait_state;
ALTER TYPE dl_wait_state RENAME VALUE 'timed' TO 'scheduled';
ALTER TYPE dl_wait_state RENAME VALUE 'parked' TO 'blocked';
ALTER TYPE dl_request RENAME TO dl_enqueue_request;
ALTER TYPE dl_enqueue_request RENAME ATTRIBUTE fault TO problem;

ALTER TABLE dl_jobs RENAME COLUMN place TO wait_state;
ALTER TABLE dl_jobs RENAME COLUMN stray TO unknown_task;
ALTER INDEX dl_jobs_timed_idx RENAME TO dl_jobs_scheduled_idx;
ALTER INDEX dl_jobs_parked_idx RENAME TO dl_jobs_blocked_idx;
ALTER INDEX dl_jobs_stray_idx RENAME TO dl_jobs_unknown_task_idx;
ALTER INDEX dl_jobs_ended_idx RENAME TO dl_jobs_finished_idx;
ALTER INDEX dl_jobs_ended_badly_idx RENAME TO dl_jobs_unsuccessful_idx;

ALTER TABLE dl_workers RENAME COLUMN doing TO running_attempts;

ALTER TABLE dl_watch RENAME TO dl_notify_state;
ALTER TABLE dl_notify_state RENAME COLUMN asleep TO needs_notification;
ALTER INDEX dl_watch_pkey RENAME TO dl_notify_state_pkey;

ALTER TABLE dl_bulk RENAME COLUMN looked TO scanned;
ALTER TABLE dl_bulk RENAME COLUMN seen_at TO cursor_at;
ALTER TABLE dl_bulk RENAME COLUMN seen_id TO cursor_id;
ALTER TABLE dl_bulk RENAME COLUMN tries TO failed_batches;
ALTER TABLE dl_bulk RENAME COLUMN asked_by TO requested_by;

ALTER TABLE dl_depths RENAME TO dl_queue_depths;
ALTER TABLE dl_queue_depths RENAME COLUMN timed TO scheduled;
ALTER TABLE dl_queue_depths RENAME COLUMN parked TO blocked;
ALTER INDEX dl_depths_pkey RENAME TO dl_queue_depths_pkey;

ALTER TABLE dl_last_runs RENAME TO dl_recent_runs;
ALTER INDEX dl_last_runs_pkey RENAME TO dl_recent_runs_pkey;

ALTER TABLE dl_rollups RENAME TO dl_statistics;
ALTER TABLE dl_statistics RENAME COLUMN span TO span_sec;
ALTER TABLE dl_statistics RENAME COLUMN at TO started_at;
ALTER TABLE dl_statistics RENAME COLUMN what TO measure;
ALTER TABLE dl_statistics RENAME COLUMN n TO count;
ALTER TABLE dl_statistics RENAME COLUMN sec TO total_sec;
ALTER INDEX dl_rollups_pkey RENAME TO dl_statistics_pkey;

ALTER TABLE dl_rollup_state RENAME TO dl_statistics_state;
ALTER TABLE dl_statistics_state RENAME COLUMN one TO singleton;
ALTER TABLE dl_statistics_state RENAME COLUMN safe TO safe_id;
ALTER TABLE dl_statistics_state RENAME COLUMN probe TO candidate_id;
ALTER TABLE dl_statistics_state RENAME COLUMN writers TO open_writers;
ALTER TABLE dl_statistics_state DROP COLUMN depths_at, DROP COLUMN pruned_at;
ALTER TABLE dl_statistics_state RENAME CONSTRAINT dl_rollup_state_one_check TO dl_statistics_state_singleton_check;
ALTER INDEX dl_rollup_state_pkey RENAME TO dl_statistics_state_pkey;

ALTER TABLE dl_webhooks RENAME COLUMN disabled_why TO disabled_reason;
ALTER TABLE dl_webhooks RENAME COLUMN rest_until TO paused_until;
UPDATE dl_webhooks SET events = array_replace(events, 'alert.over', 'alert.resolved') WHERE 'alert.over' = ANY (events);

ALTER TABLE dl_deliveries RENAME COLUMN tries TO attempts;
ALTER TABLE dl_deliveries RENAME COLUMN first_try TO earlier_attempts;
ALTER TABLE dl_deliveries RENAME CONSTRAINT dl_deliveries_chk_where TO dl_deliveries_chk_url;
ALTER TABLE dl_deliveries ALTER COLUMN state SET DEFAULT 'pending';
UPDATE dl_deliveries SET state = CASE state WHEN 'waiting' THEN 'pending' ELSE 'failed' END
 WHERE state IN ('waiting', 'given_up');

ALTER TABLE dl_delivery_tries RENAME TO dl_delivery_attempts;
ALTER TABLE dl_delivery_attempts RENAME COLUMN n TO number;
ALTER TABLE dl_delivery_attempts RENAME CONSTRAINT dl_delivery_tries_delivery_id_fkey TO dl_delivery_attempts_delivery_id_fkey;
ALTER INDEX dl_delivery_tries_pkey RENAME TO dl_delivery_attempts_pkey;

ALTER TABLE dl_alerts RENAME COLUMN began_at TO started_at;
ALTER INDEX dl_alerts_began_idx RENAME TO dl_alerts_started_idx;

ALTER TABLE dl_standstills RENAME TO dl_stalled_progress;
ALTER INDEX dl_standstills_pkey RENAME TO dl_stalled_progress_pkey;

ALTER TABLE dl_signing_secrets RENAME COLUMN made_at TO created_at;
