-- API keys, and the secret that signs sessions.

-- name: create_api_key
INSERT INTO dl_api_keys (key_id, name, digest, scopes, tasks, queues, created_by, expires_at)
VALUES (%(key_id)s::text, %(name)s::text, %(digest)s::bytea, %(scopes)s::text[], %(tasks)s::text[], %(queues)s::text[],
        %(created_by)s::text, clock_timestamp() + %(ttl_sec)s::float8 * interval '1 second')
RETURNING key_id, name, scopes, tasks, queues, created_at, created_by, expires_at, last_used_at, revoked_at, 'valid';

-- name: api_keys
SELECT key_id, name, scopes, tasks, queues, created_at, created_by, expires_at, last_used_at, revoked_at,
       CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
            WHEN expires_at <= clock_timestamp() THEN 'expired'
            ELSE 'valid' END
  FROM dl_api_keys
 ORDER BY created_at DESC, key_id;

-- name: can_change_keys
-- Whether this account may create and revoke keys; that of roles.sql for the service may not.
SELECT has_table_privilege('dl_api_keys', 'INSERT') AND has_column_privilege('dl_api_keys', 'revoked_at', 'UPDATE');

-- name: revoke_api_key
-- By id in any state; by name only valid keys.
UPDATE dl_api_keys
   SET revoked_at = coalesce(revoked_at, clock_timestamp())
 WHERE key_id = %(id_or_name)s::text
    OR name = %(id_or_name)s::text AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
RETURNING key_id, name, scopes, tasks, queues, created_at, created_by, expires_at, last_used_at, revoked_at, 'revoked';

-- name: rotate_api_key
-- A key like another one, which is valid for `overlap_sec` from now on; a key that expires gets as long a life again.
WITH old AS MATERIALIZED (
    SELECT * FROM dl_api_keys
     WHERE key_id = %(old_id)s::text AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > clock_timestamp())
       FOR UPDATE
), ended AS (
    UPDATE dl_api_keys k
       SET expires_at = least(k.expires_at, clock_timestamp() + %(overlap_sec)s::float8 * interval '1 second'),
           revoked_at = CASE WHEN %(overlap_sec)s::float8 <= 0 THEN clock_timestamp() END
      FROM old WHERE k.key_id = old.key_id
    RETURNING k.expires_at
)
INSERT INTO dl_api_keys (key_id, name, digest, scopes, tasks, queues, created_by, expires_at)
SELECT %(key_id)s::text, name, %(digest)s::bytea, scopes, tasks, queues, %(created_by)s::text,
       clock_timestamp() + (expires_at - created_at)
  FROM old
RETURNING key_id, name, scopes, tasks, queues, created_at, created_by, expires_at, last_used_at, revoked_at, 'valid',
          (SELECT expires_at FROM ended);

-- name: active_api_keys
-- All valid keys, each with whether any key exists, also an expired one. At least one row is returned.
SELECT EXISTS (SELECT FROM dl_api_keys), k.key_id, k.name, k.digest, k.scopes, k.tasks, k.queues,
       date_part('epoch', k.expires_at) - date_part('epoch', clock_timestamp())
  FROM (SELECT) single
       LEFT JOIN dl_api_keys k
              ON k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > clock_timestamp());

-- name: record_key_use
-- Each process records a use at most once a minute; the condition holds this for all processes together.
UPDATE dl_api_keys
   SET last_used_at = clock_timestamp()
 WHERE key_id = ANY(%(key_ids)s::text[])
   AND (last_used_at IS NULL OR last_used_at < clock_timestamp() - interval '50 seconds');

-- name: signing_secret
-- The first caller stores its random secret; all callers get the stored one.
INSERT INTO dl_signing_secrets (purpose, secret)
VALUES ('session', %(new_secret)s::bytea)
    ON CONFLICT DO NOTHING;

SELECT secret FROM dl_signing_secrets WHERE purpose = 'session';
