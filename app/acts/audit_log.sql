-- The audit: recorded by triggers and by record_audit.

-- name: record_audit
INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id)
VALUES (%(action)s::text, %(actor)s::text, %(key_id)s::text, %(via)s::text, %(address)s::text, %(request_id)s::text,
        %(subject)s::text, %(subject_id)s::text)
RETURNING audit_id;

-- define: entry_filter
       (%(before)s::bigint IS NULL OR audit_id < %(before)s::bigint)
       AND (%(after)s::bigint IS NULL OR audit_id > %(after)s::bigint)
       AND (%(action)s::text IS NULL OR action = %(action)s::text)
       AND (%(actor)s::text IS NULL OR actor = %(actor)s::text)
       AND (%(key_id)s::text IS NULL OR key_id = %(key_id)s::text)
       AND (%(subject)s::text IS NULL OR subject = %(subject)s::text)
       AND (%(subject_id)s::text IS NULL OR subject_id = %(subject_id)s::text)
       AND (%(request_id)s::text IS NULL OR request_id = %(request_id)s::text)
       AND (%(since)s::timestamptz IS NULL OR at >= %(since)s::timestamptz)
       AND (%(until)s::timestamptz IS NULL OR at < %(until)s::timestamptz)

-- name: audit_entries
-- Newest first; `before` is the last entry of the previous page.
SELECT audit_id, at, action, actor, key_id, via, address, request_id, subject, subject_id, before::text, after::text, db_user
  FROM dl_audit
 WHERE
       -- include: entry_filter
 ORDER BY audit_id DESC
 LIMIT %(limit)s::int;

-- name: folded_audit_entries
-- As audit_entries; the triggers of an actor, action and hour are one row with their number, those of a page at least. A page has
-- `limit` rows and ends before the newest entry of the next one, so that no entry is in two rows: the last column has the `before` of the
-- next page, NULL after the last one. It reads `max_scanned` entries at most.
WITH scanned AS MATERIALIZED (
    SELECT audit_id, at, actor, action, via,
           CASE WHEN subject = 'job' AND before IS NULL AND after IS NOT NULL THEN date_trunc('hour', at) END AS hour
      FROM dl_audit
     WHERE
       -- include: entry_filter
     ORDER BY audit_id DESC
     LIMIT %(max_scanned)s::int
), rows AS MATERIALIZED (
    SELECT max(audit_id) AS newest_id
      FROM scanned
     GROUP BY CASE WHEN hour IS NULL THEN audit_id END, actor, action, via, hour
     ORDER BY 1 DESC
     LIMIT %(limit)s::int + 1
), page_end AS (
    SELECT CASE WHEN (SELECT count(*) FROM rows) > %(limit)s::int THEN (SELECT min(newest_id) FROM rows)
                WHEN (SELECT count(*) FROM scanned) = %(max_scanned)s::int THEN (SELECT min(audit_id) - 1 FROM scanned) END AS id
), folded AS (
    SELECT max(s.audit_id) AS audit_id, count(*) AS count, min(s.at) AS first_at
      FROM scanned s, page_end e
     WHERE e.id IS NULL OR s.audit_id > e.id
     GROUP BY CASE WHEN s.hour IS NULL THEN s.audit_id END, s.actor, s.action, s.via, s.hour
)
SELECT s.audit_id, s.at, s.action, s.actor, s.key_id, s.via, CASE WHEN f.count = 1 THEN s.address END,
       CASE WHEN f.count = 1 THEN s.request_id END, s.subject, CASE WHEN f.count = 1 THEN s.subject_id END,
       CASE WHEN f.count = 1 THEN s.before::text END, CASE WHEN f.count = 1 THEN s.after::text END, s.db_user, f.count, f.first_at,
       (SELECT id + 1 FROM page_end) AS next
  FROM folded f JOIN dl_audit s USING (audit_id)
 ORDER BY f.audit_id DESC;

-- name: audit_changes
-- As audit_entries, without the triggers of jobs, along their own index.
SELECT audit_id, at, action, actor, key_id, via, address, request_id, subject, subject_id, before::text, after::text, db_user
  FROM dl_audit
 WHERE (subject <> 'job' OR before IS NOT NULL OR after IS NULL)
   AND
       -- include: entry_filter
 ORDER BY audit_id DESC
 LIMIT %(limit)s::int;

-- name: audit_values
-- The actors, actions and subjects of the newest entries, and of the newest changes.
WITH newest AS MATERIALIZED (
    (SELECT actor, action, subject FROM dl_audit ORDER BY audit_id DESC LIMIT %(max_scanned)s::int)
    UNION
    (SELECT actor, action, subject FROM dl_audit
      WHERE subject <> 'job' OR before IS NOT NULL OR after IS NULL
      ORDER BY audit_id DESC LIMIT %(max_scanned)s::int)
)
SELECT ARRAY(SELECT DISTINCT actor FROM newest ORDER BY actor LIMIT 200), ARRAY(SELECT DISTINCT action FROM newest ORDER BY action LIMIT 200),
       ARRAY(SELECT DISTINCT subject FROM newest ORDER BY subject LIMIT 200);

-- name: newest_audit_id
SELECT coalesce(max(audit_id), 0) FROM dl_audit;

-- name: prune_audit
SELECT dl_audit_prune(%(keep_sec)s::float8 * interval '1 second', %(limit)s::int);
