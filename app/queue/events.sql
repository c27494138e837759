-- The event stream.

-- name: event_head
-- The id of the newest event, and the transactions that may still write an older one: all that hold the lock that inserts
-- into the events' table take.
SELECT coalesce((SELECT max(event_id) FROM dl_job_events), 0),
       ARRAY(SELECT DISTINCT virtualtransaction
               FROM pg_locks
              WHERE locktype = 'relation' AND mode = 'RowExclusiveLock'
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND relation = to_regclass(quote_ident(%(schema)s::text) || '.dl_job_events'));

-- name: read_events
-- Events whose ids are in these ranges, the smallest first; each range is [low, high).
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('jit', 'off', true);

SELECT e.event_id, e.job_id, e.queue, e.ts, e.kind, coalesce(e.payload, '{}')::text
  FROM unnest(%(lows)s::bigint[], %(highs)s::bigint[]) AS r (low, high)
       CROSS JOIN LATERAL (SELECT * FROM dl_job_events
                            WHERE event_id >= r.low AND event_id < r.high
                            ORDER BY event_id
                            LIMIT %(limit)s::int) e
 ORDER BY e.event_id
 LIMIT %(limit)s::int;
