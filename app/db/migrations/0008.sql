-- Alerts: rules are muted, firing alerts acknowledged.

ALTER TABLE dl_alert_rules
    ADD COLUMN muted_until timestamptz,
    ADD COLUMN muted_by text;
ALTER TABLE dl_alerts
    ADD COLUMN sent_at timestamptz DEFAULT clock_timestamp(),
    ADD COLUMN acknowledged_at timestamptz,
    ADD COLUMN acknowledged_by text;

-- Audit: changes are read without the triggers of jobs between them.

CREATE INDEX dl_audit_changes_idx ON dl_audit (audit_id) WHERE subject <> 'job' OR before IS NOT NULL OR after IS NULL;

-- Job logs: how many lines a note says were left out.

ALTER TABLE dl_job_logs ADD COLUMN dropped int;

-- Jobs: all jobs of a lock key are found, of whatever age.

CREATE INDEX dl_jobs_lock_key_idx ON dl_jobs (lock_key, job_id);
