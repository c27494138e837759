-- The last statement before the commit of remote code into the queue's database: locks the offload and its job against all that
-- could take the work away. No row: it was stopped, replaced, is late, or its job has ended. Not the run is compared, because the work
-- outlives the run that submitted it.
SET LOCAL idle_in_transaction_session_timeout = '30s';  -- else a network that fails now leaves the job locked for two hours
SELECT 1
  FROM {schema}.dl_offloads o JOIN {schema}.dl_jobs j ON j.job_id = o.job_id
 WHERE o.name = %(offload)s::text AND o.fence_token = %(fence_token)s::text
   AND o.stop_requested_at IS NULL AND o.ended_at IS NULL
   AND coalesce(o.deadline_at > clock_timestamp(), true)  -- its engine may not answer, so that nothing can stop it
   AND j.status IN ('queued', 'running') AND NOT j.cancel_requested
   FOR SHARE;
