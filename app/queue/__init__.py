"""The life of a job in SQL: enqueue, claim, renew, settle, release, reap, cancel, retry; events and job logs."""
