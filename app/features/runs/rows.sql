-- What tasks and schedules did by day. A range begins and ends at midnights of a zone.

-- name: ended_by_day
-- Jobs that ended, of the hours of these days: a zone that is off by half an hour has days that begin with its first whole hour.
SELECT task, (started_at AT TIME ZONE %(zone)s::text)::date AS day,
       sum(count) FILTER (WHERE measure = 'succeeded')::bigint,
       sum(count) FILTER (WHERE measure = 'failed')::bigint,
       sum(count) FILTER (WHERE measure = 'lost')::bigint,
       sum(count) FILTER (WHERE measure = 'canceled')::bigint
  FROM dl_statistics
 WHERE span_sec = 3600 AND started_at >= %(first)s::timestamptz AND started_at < %(last)s::timestamptz
   AND measure IN ('succeeded', 'failed', 'lost', 'canceled')
 GROUP BY 1, 2;

-- name: skipped_firings
-- Times of schedules that made no job; a row may stand for a range of them.
SELECT schedule_id, fire_at, until, outcome
  FROM dl_firings
 WHERE fire_at >= %(first)s::timestamptz - interval '90 days' AND fire_at < %(last)s::timestamptz
   AND coalesce(until, fire_at) >= %(first)s::timestamptz AND outcome NOT IN ('made', 'exists')
 ORDER BY fire_at DESC
 LIMIT %(limit)s::int;

-- name: open_by_day
-- Jobs of schedules that have not ended, by the day of their time.
SELECT task, (logical_at AT TIME ZONE %(zone)s::text)::date AS day, count(*)
  FROM (SELECT task, logical_at FROM dl_jobs
         WHERE schedule_id IS NOT NULL AND status IN ('queued', 'running')
           AND logical_at >= %(first)s::timestamptz AND logical_at < %(last)s::timestamptz
         LIMIT %(limit)s::int) open
 GROUP BY 1, 2;
