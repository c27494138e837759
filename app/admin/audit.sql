-- The audit: recorded by triggers and by record_audit.

-- name: record_audit
INSERT INTO dl_audit (action, actor, key_id, via, address, request_id, subject, subject_id)
VALUES (%(action)s::text, %(actor)s::text, %(key_id)s::text, %(via)s::text, %(address)s::text, %(request_id)s::text,
        %(subject)s::text, %(subject_id)s::text)
RETURNING audit_id;

-- name: audit_entries
-- Newest first; `before` is the last entry of the previous page.
SELECT audit_id, at, action, actor, key_id, via, address, request_id, subject, subject_id, before::text, after::text, db_user
  FROM dl_audit
 WHERE (%(before)s::bigint IS NULL OR audit_id < %(before)s::bigint)
   AND (%(after)s::bigint IS NULL OR audit_id > %(after)s::bigint)
   AND (%(action)s::text IS NULL OR action = %(action)s::text)
   AND (%(actor)s::text IS NULL OR actor = %(actor)s::text)
   AND (%(key_id)s::text IS NULL OR key_id = %(key_id)s::text)
   AND (%(subject)s::text IS NULL OR subject = %(subject)s::text)
   AND (%(subject_id)s::text IS NULL OR subject_id = %(subject_id)s::text)
   AND (%(request_id)s::text IS NULL OR request_id = %(request_id)s::text)
   AND (%(since)s::timestamptz IS NULL OR at >= %(since)s::timestamptz)
   AND (%(until)s::timestamptz IS NULL OR at < %(until)s::timestamptz)
 ORDER BY audit_id DESC
 LIMIT %(limit)s::int;

-- name: newest_audit_id
SELECT coalesce(max(audit_id), 0) FROM dl_audit;

-- name: prune_audit
SELECT dl_audit_prune(%(keep_sec)s::float8 * interval '1 second', %(limit)s::int);
