-- How many jobs may run, and how many may start in a time. A job names limits in its column `limits`; `queue:NAME` and
-- `task:NAME` apply to all jobs of the queue or task. A name that ends in `:*` is the default of the names that begin so. A
-- name without a row has no limit.
--
-- What counts are the running rows: no counter has to be kept, and the statement that ends a run frees its place. Counting
-- and starting are under the limit's lock, (1684828529, hashtext(name)), which is taken after keys and rows. Its holder waits
-- for no row: it skips locked ones.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_limits (
    name        text        PRIMARY KEY CHECK (name <> '' AND octet_length(name) <= 200),
    concurrency int         CHECK (concurrency >= 0),  -- weight of the jobs that run; 0: none may start; NULL: any
    rate        int         CHECK (rate >= 1),         -- weight of the jobs that start in `per_sec`; NULL: any
    per_sec     float8      CHECK (per_sec > 0 AND per_sec <= 2678400),
    burst       int         CHECK (burst >= 1),        -- of these, how many may start at once; NULL: 1
    note        text,
    changed_by  text,
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT dl_limits_chk_rate CHECK ((rate IS NULL) = (per_sec IS NULL) AND (burst IS NULL OR rate IS NOT NULL))
);
-- Limits that count jobs which do not name them.
CREATE INDEX dl_limits_unnamed_idx ON dl_limits (name) WHERE starts_with(name, 'queue:') OR starts_with(name, 'task:');

-- When the next start of a rate would be due if all were evenly spaced (GCRA: theoretical arrival time).
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_limit_starts (
    name text        PRIMARY KEY,
    tat  timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The jobs of a limit while it takes long to find them: a transaction of hours keeps the index entries of all jobs that have run or
-- waited since it began. `part` 0 has those that counted in the limit, and the first that waited for it; the parts after it have those
-- that claims have locked since then. What a job is now, its row says. Written under the limit's lock; replaced after ten seconds.
-- rights of the service: SELECT, INSERT, DELETE
CREATE TABLE dl_limit_looks (
    name     text        NOT NULL,
    taken_at timestamptz NOT NULL,
    part     bigint      NOT NULL,
    job_ids  uuid[]      NOT NULL,
    is_whole bool        NOT NULL,  -- no other job waited
    PRIMARY KEY (name, taken_at, part)
);

-- A limit's name, and those whose row is its default: the longest first.
CREATE OR REPLACE FUNCTION dl_limit_names(limit_name text) RETURNS text[]
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ARRAY[limit_name]
           || ARRAY(SELECT array_to_string((string_to_array(limit_name, ':'))[:n], ':') || ':*'
                      FROM generate_series(cardinality(string_to_array(limit_name, ':')) - 1, 1, -1) AS n);

-- The names under which a job counts, and its weight in each.
CREATE OR REPLACE FUNCTION dl_job_limits(limits jsonb, queue text, task text) RETURNS TABLE (name text, weight int)
    LANGUAGE sql IMMUTABLE PARALLEL SAFE ROWS 3 AS $$
    SELECT key, value::int FROM jsonb_each_text(limits)
    UNION ALL
    VALUES ('queue:' || queue, 1), ('task:' || task, 1)
$$;

-- What is wrong with the limits of a request; NULL: nothing.
CREATE OR REPLACE FUNCTION dl_limits_problem(limits jsonb) RETURNS text
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
DECLARE
    requested record;
    setting   record;
BEGIN
    IF limits IS NULL THEN
        RETURN NULL;
    ELSIF jsonb_typeof(limits) <> 'object' OR (SELECT count(*) FROM jsonb_object_keys(limits)) > 4
          OR jsonb_path_exists(limits, '$.* ? (@.type() <> "number" || @ < 1 || @ > 1000000 || @.floor() <> @)') THEN
        RETURN 'must be an object of at most 4 names with whole numbers from 1 to 1000000, such as {"warehouse": 2}';
    END IF;
    FOR requested IN SELECT key, value::int AS weight FROM jsonb_each_text(limits) ORDER BY key LOOP
        IF requested.key = '' OR octet_length(requested.key) > 200 OR requested.key LIKE '%*' THEN
            RETURN format('has the name %s: names have 1 to 200 bytes and no * at the end',
                          to_jsonb(left(requested.key, 100)));
        ELSIF requested.key LIKE ANY ('{queue:%,task:%}') THEN
            RETURN format('names %s, which applies by itself to the jobs of that queue or task', to_jsonb(requested.key));
        END IF;
        SELECT l.name, l.concurrency, l.rate, coalesce(l.burst, 1) AS burst INTO setting
          FROM dl_limits l
         WHERE l.name = requested.key;
        IF NOT FOUND THEN  -- a default may apply
            SELECT l.name, l.concurrency, l.rate, coalesce(l.burst, 1) AS burst INTO setting
              FROM dl_limits l
             WHERE l.name = ANY (dl_limit_names(requested.key))
             ORDER BY length(l.name) DESC
             LIMIT 1;
        END IF;
        -- A limit of 0 is closed for a time: jobs may wait for it.
        IF setting.concurrency > 0 AND requested.weight > setting.concurrency THEN
            RETURN format('asks for %s of %s, which has %s', requested.weight, to_jsonb(requested.key), setting.concurrency);
        ELSIF setting.rate IS NOT NULL AND requested.weight > setting.burst THEN
            RETURN format('asks for %s starts of %s at once, which allows a burst of %s',
                          requested.weight, to_jsonb(requested.key), setting.burst);
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- The jobs of a limit by its last look, if that still counts: all that run and count in it are among them. Nothing, where it has none.
CREATE OR REPLACE FUNCTION dl_limit_look(limit_name text, last_at timestamptz, OUT taken_at timestamptz, OUT job_ids uuid[], OUT is_whole bool)
    LANGUAGE plpgsql VOLATILE STRICT SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    max_jobs int;  -- more take longer to look up, most of which have ended, than a new look takes
BEGIN
    IF last_at BETWEEN clock_timestamp() - interval '10 s' AND clock_timestamp()
       -- Before a limit or breaker counted, claims did not add the jobs that they started.
       AND NOT EXISTS (SELECT FROM dl_limits s WHERE s.name = ANY (dl_limit_names(limit_name)) AND s.changed_at >= last_at)
       AND NOT EXISTS (SELECT FROM dl_breakers b WHERE 'task:' || b.task = limit_name AND b.changed_at >= last_at) THEN
        SELECT array_agg(DISTINCT i.job_id), bool_and(l.is_whole), 100 + 2 * max(cardinality(l.job_ids)) FILTER (WHERE l.part = 0)
          INTO job_ids, is_whole, max_jobs
          FROM dl_limit_looks l CROSS JOIN unnest(l.job_ids) AS i (job_id)
         WHERE l.name = limit_name AND l.taken_at = last_at;
        taken_at := CASE WHEN cardinality(job_ids) <= max_jobs THEN last_at END;
    END IF;
END $$;

-- Looks for the jobs of a limit, whose lock the caller holds, and keeps what it finds if that takes long.
CREATE OR REPLACE FUNCTION dl_take_limit_look(limit_name text) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    began   timestamptz := clock_timestamp();
    running uuid[];
    waiting uuid[];
BEGIN
    running := ARRAY(SELECT r.job_id FROM dl_jobs r CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
                      WHERE r.status = 'running' AND c.name = limit_name);
    waiting := ARRAY(SELECT j.job_id FROM dl_jobs j
                      WHERE j.waits_on = limit_name AND j.status = 'queued'
                      ORDER BY j.queue, j.wait_state, j.priority, j.created_at, j.job_id
                      LIMIT 101);
    DELETE FROM dl_limit_looks d
     WHERE d.name = limit_name
       AND d.taken_at = (SELECT l.taken_at FROM dl_limit_looks l WHERE l.name = limit_name ORDER BY l.taken_at DESC LIMIT 1);
    IF clock_timestamp() - began > interval '5 ms' AND cardinality(running) <= 1000 THEN
        INSERT INTO dl_limit_looks (name, taken_at, part, job_ids, is_whole)
        VALUES (limit_name, began, 0, running || waiting[:100], cardinality(waiting) <= 100);
    END IF;
END $$;

-- The state of those of these limits that have a row, their own or a default, or a breaker that is not closed: what they allow,
-- and what is used.
CREATE OR REPLACE FUNCTION dl_limit_states(limit_names text[])
    RETURNS TABLE (name text, concurrency int, used int, spacing float8, burst int, tat float8)
    LANGUAGE plpgsql VOLATILE ROWS 4 SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT n.name, least(s.concurrency, b.concurrency) AS concurrency, s.rate, s.per_sec, coalesce(s.burst, 1) AS burst
          FROM unnest(limit_names) AS n (name)
               LEFT JOIN LATERAL (SELECT * FROM dl_limits l
                                   WHERE l.name = ANY (dl_limit_names(n.name))
                                   ORDER BY l.name = n.name DESC, length(l.name) DESC
                                   LIMIT 1) s ON true
               LEFT JOIN LATERAL (SELECT CASE state WHEN 'open' THEN 0 ELSE 1 END AS concurrency FROM dl_breakers
                                   WHERE 'task:' || task = n.name AND state <> 'closed') b ON true
         WHERE s.name IS NOT NULL OR b.concurrency IS NOT NULL
    ), looks AS MATERIALIZED (
        SELECT asked.name, l.job_ids
          FROM asked
               LEFT JOIN LATERAL (SELECT k.taken_at FROM dl_limit_looks k WHERE k.name = asked.name ORDER BY k.taken_at DESC LIMIT 1) last ON true
               LEFT JOIN LATERAL dl_limit_look(asked.name, last.taken_at) l ON l.taken_at IS NOT NULL
         WHERE asked.concurrency IS NOT NULL
    ), running AS MATERIALIZED (
        SELECT c.name, sum(c.weight)::int AS used
          FROM dl_jobs r
               CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
         WHERE r.status = 'running' AND c.name = ANY (ARRAY(SELECT looks.name FROM looks WHERE looks.job_ids IS NULL))
           AND EXISTS (SELECT FROM looks WHERE looks.job_ids IS NULL)
         GROUP BY c.name
        UNION ALL
        SELECT c.name, sum(c.weight)::int
          FROM looks
               CROSS JOIN unnest(looks.job_ids) AS i (job_id)
               JOIN dl_jobs r ON r.job_id = ANY (ARRAY[i.job_id]) AND r.status::text = 'running'
               CROSS JOIN LATERAL dl_job_limits(r.limits, r.queue, r.task) c
         WHERE c.name = looks.name
         GROUP BY c.name
    )
    SELECT a.name, a.concurrency, coalesce(r.used, 0), a.per_sec / a.rate, a.burst,
           date_part('epoch', (SELECT s.tat FROM dl_limit_starts s WHERE s.name = a.name))
      FROM asked a LEFT JOIN running r ON r.name = a.name;
END $$;

-- The limits after a name that jobs wait for, at most so many, by a loose scan of their index.
CREATE OR REPLACE FUNCTION dl_awaited_limits(max_names int, after text DEFAULT '') RETURNS SETOF text
    LANGUAGE sql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
    WITH RECURSIVE names AS (
        (SELECT waits_on AS name FROM dl_jobs
          WHERE status = 'queued' AND waits_on IS NOT NULL AND waits_on > after ORDER BY waits_on LIMIT 1)
        UNION ALL
        SELECT (SELECT j.waits_on FROM dl_jobs j
                 WHERE j.status = 'queued' AND j.waits_on IS NOT NULL AND j.waits_on > n.name ORDER BY j.waits_on LIMIT 1)
          FROM names n
         WHERE n.name IS NOT NULL
    )
    SELECT name FROM names WHERE name IS NOT NULL LIMIT max_names
$$;

-- Takes the locks of these limits, in the order of their hashes, until the transaction ends.
CREATE OR REPLACE FUNCTION dl_lock_limits(limit_names text[]) RETURNS void
    LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1684828529, hash)
       FROM (SELECT DISTINCT hashtext(n) AS hash FROM unnest(limit_names) n ORDER BY 1 OFFSET 0) ordered;
END $$;

-- A limit that a job names may have no row: then it counts nothing.
CREATE OR REPLACE FUNCTION dl_uses_limits() RETURNS bool
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT AS $$
BEGIN
    RETURN EXISTS (SELECT FROM dl_limits) OR EXISTS (SELECT FROM dl_breakers WHERE state <> 'closed');
END $$;

-- Of jobs that a claim has locked, in the order of their claim, those that may not start now: they become limited, each by the
-- first of its limits that is full. Starts of rates are recorded for the others. A job that was woken for another limit
-- hands that on to the next one.
-- Locks `woken_names` too, which the claim then wakes: all locks of a transaction are taken at once, in one order.
CREATE OR REPLACE FUNCTION dl_apply_limits(job_ids uuid[], woken_names text[], names_limits bool) RETURNS SETOF uuid
    LANGUAGE plpgsql VOLATILE ROWS 1 SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    names  text[];
    states jsonb;
    next_states jsonb;  -- if the job starts
    job    record;
    counts record;
    state  jsonb;
    full_limit text;
    limited     uuid[] := '{}';
    full_limits text[] := '{}';  -- of each of them
    due    float8;
    now_at float8;
    woken_for text[] := '{}';
    began  timestamptz;
BEGIN
    IF job_ids IS NULL
       OR NOT (names_limits AND EXISTS (SELECT FROM dl_limits))
          AND NOT EXISTS (SELECT FROM dl_limits l WHERE starts_with(l.name, 'queue:') OR starts_with(l.name, 'task:'))
          AND NOT EXISTS (SELECT FROM dl_breakers b WHERE b.state <> 'closed') THEN
        RETURN;
    END IF;
    WITH jobs AS MATERIALIZED (
        SELECT DISTINCT j.limits, j.queue, j.task, j.waits_on
          FROM unnest(job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
    )
    SELECT (SELECT array_agg(DISTINCT c.name)
              FROM jobs CROSS JOIN LATERAL dl_job_limits(jobs.limits, jobs.queue, jobs.task) c
             WHERE EXISTS (SELECT FROM dl_limits l WHERE l.name = ANY (dl_limit_names(c.name)))
                OR EXISTS (SELECT FROM dl_breakers b WHERE 'task:' || b.task = c.name AND b.state <> 'closed')),
           woken_names || (SELECT array_agg(DISTINCT jobs.waits_on) FROM jobs WHERE jobs.waits_on IS NOT NULL)
      INTO names, woken_names;
    IF names IS NULL THEN
        RETURN;
    END IF;
    PERFORM dl_lock_limits(names || woken_names);
    began := clock_timestamp();
    -- In a snapshot taken under the locks: what others committed while they were waited for is counted.
    SELECT coalesce(jsonb_object_agg(s.name, to_jsonb(s)), '{}') INTO states FROM dl_limit_states(names) s;
    IF clock_timestamp() - began > interval '5 ms' THEN
        PERFORM dl_take_limit_look(key) FROM jsonb_object_keys(states) AS key
          WHERE (dl_limit_look(key, (SELECT max(l.taken_at) FROM dl_limit_looks l WHERE l.name = key))).taken_at IS NULL;
    END IF;
    INSERT INTO dl_limit_looks (name, taken_at, part, job_ids, is_whole)
    SELECT key, last.taken_at, last.part + 1, counted.ids, true
      FROM jsonb_object_keys(states) AS key
           CROSS JOIN LATERAL (SELECT l.taken_at, l.part FROM dl_limit_looks l WHERE l.name = key
                                ORDER BY l.taken_at DESC, l.part DESC LIMIT 1) last
           CROSS JOIN LATERAL (SELECT array_agg(j.job_id) AS ids
                                 FROM unnest(job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                                      CROSS JOIN LATERAL dl_job_limits(j.limits, j.queue, j.task) c
                                WHERE c.name = key) counted
     WHERE last.taken_at > clock_timestamp() - interval '1 min'  -- longer than it counts: a clock may go back
       AND counted.ids IS NOT NULL;
    now_at := date_part('epoch', clock_timestamp());
    FOR job IN
        SELECT j.job_id, j.queue, j.task, j.limits, j.attempt, j.waits_on
          FROM unnest(job_ids) WITH ORDINALITY AS i (job_id, n) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
         ORDER BY i.n
    LOOP
        full_limit := NULL;
        next_states := states;
        FOR counts IN SELECT c.name, sum(c.weight)::int AS weight FROM dl_job_limits(job.limits, job.queue, job.task) c
                       WHERE states ? c.name GROUP BY c.name ORDER BY c.name LOOP
            state := states -> counts.name;
            due := greatest((state ->> 'tat')::float8, now_at) + (state ->> 'spacing')::float8 * counts.weight;
            IF (state ->> 'used')::int + counts.weight > (state ->> 'concurrency')::int
               OR due - now_at > (state ->> 'burst')::int * (state ->> 'spacing')::float8 * 1.000001 THEN
                full_limit := counts.name;
                EXIT;
            END IF;
            next_states := jsonb_set(next_states, ARRAY[counts.name], state || jsonb_build_object(
                'used', (state ->> 'used')::int + counts.weight, 'tat', due, 'is_started', due IS NOT NULL));
        END LOOP;
        IF full_limit IS NULL THEN
            states := next_states;
        ELSE
            IF job.waits_on <> full_limit THEN
                woken_for := woken_for || job.waits_on;
            END IF;
            limited := limited || job.job_id;
            full_limits := full_limits || full_limit;
        END IF;
    END LOOP;
    IF limited <> '{}' THEN
        WITH changed AS (
            UPDATE dl_jobs j SET wait_state = 'limited', waits_on = l.full_limit
              FROM unnest(limited, full_limits) AS l (job_id, full_limit)
             WHERE j.job_id = ANY (ARRAY[l.job_id])
            RETURNING j.job_id, j.queue, j.attempt, j.waits_on
        )
        INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
        SELECT job_id, queue, clock_timestamp(), 'limited', jsonb_build_object('status', 'queued', 'attempt', attempt, 'waits_on', waits_on)
          FROM changed;
        IF EXISTS (SELECT FROM unnest(full_limits) AS l (name) WHERE states -> l.name ->> 'spacing' IS NOT NULL) THEN
            PERFORM pg_notify('dl_control', 'limits');  -- the maintenance leader wakes them when their time comes
        END IF;
        RETURN QUERY SELECT unnest(limited);
    END IF;
    INSERT INTO dl_limit_starts AS s (name, tat)
    SELECT key, to_timestamp((value ->> 'tat')::float8) FROM jsonb_each(states) WHERE (value ->> 'is_started')::bool
        ON CONFLICT ON CONSTRAINT dl_limit_starts_pkey DO UPDATE SET tat = excluded.tat;
    IF woken_for <> '{}' THEN
        PERFORM dl_wake_limited(woken_for);
    END IF;
END $$;

-- Wakes jobs that wait for these limits, as many as may start now, the best of each queue first, and notifies the queues.
-- A woken job is ready and keeps `waits_on`: until it starts it is counted as woken, and no other one in its place.
-- A job that does not fit waits, and so do those behind it. At most 500 of a queue are woken. dl.made_ready has their ids.
CREATE OR REPLACE FUNCTION dl_wake_limited(limit_names text[]) RETURNS SETOF uuid
    LANGUAGE plpgsql VOLATILE STRICT ROWS 1 SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
DECLARE
    checked_before text := coalesce(current_setting('dl.events_checked', true), '');
    limit_name text;
    queue_name text;
    state      record;
    room       float8;
    look       record;
    began      timestamptz;
    fitting    uuid[];
    woken      record;
BEGIN
    PERFORM dl_lock_limits(limit_names);
    FOR limit_name IN SELECT DISTINCT n FROM unnest(limit_names) n ORDER BY n LOOP
        began := clock_timestamp();
        SELECT * INTO look FROM dl_limit_look(limit_name, (SELECT max(l.taken_at) FROM dl_limit_looks l WHERE l.name = limit_name));
        IF NOT look.is_whole AND NOT EXISTS (
               SELECT FROM unnest(look.job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                WHERE j.waits_on = limit_name AND j.status::text = 'queued' AND j.wait_state::text = 'limited') THEN
            PERFORM dl_take_limit_look(limit_name);
            SELECT * INTO look FROM dl_limit_look(limit_name, (SELECT max(l.taken_at) FROM dl_limit_looks l WHERE l.name = limit_name));
        END IF;
        IF look.taken_at IS NULL THEN
            queue_name := (SELECT j.queue FROM dl_jobs j
                            WHERE j.waits_on = limit_name AND j.status = 'queued' AND j.wait_state = 'limited' ORDER BY j.queue LIMIT 1);
        END IF;
        IF look.taken_at IS NOT NULL OR queue_name IS NOT NULL THEN
            SELECT * INTO state FROM dl_limit_states(ARRAY[limit_name]);
            room := least(coalesce(state.concurrency - state.used, 1e9),
                          coalesce(floor(state.burst + 0.000001
                                         - greatest(state.tat - date_part('epoch', clock_timestamp()), 0) / state.spacing), 1e9));
        END IF;
        WHILE (look.taken_at IS NOT NULL OR queue_name IS NOT NULL) AND room > 0 LOOP
            PERFORM set_config('dl.events_checked', 'yes', true);
            IF look.taken_at IS NOT NULL THEN
                fitting := ARRAY(
                    SELECT t.job_id
                      FROM (SELECT j.job_id, j.wait_state, sum(coalesce((j.limits ->> limit_name)::int, 1)) OVER (
                                       ORDER BY j.wait_state, j.queue, j.priority, j.created_at, j.job_id) AS total  -- ready ones first
                              FROM unnest(look.job_ids) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                             WHERE j.waits_on = limit_name AND j.status::text = 'queued' AND j.wait_state::text IN ('ready', 'limited')) t
                     WHERE t.wait_state = 'limited' AND t.total <= room);
            ELSE
                WITH heads AS MATERIALIZED (
                    SELECT j.job_id, j.priority, j.created_at, coalesce((j.limits ->> limit_name)::int, 1) AS weight
                      FROM dl_jobs j
                     WHERE j.waits_on = limit_name AND j.queue = queue_name AND j.status = 'queued' AND j.wait_state = 'limited'
                     ORDER BY j.priority, j.created_at, j.job_id
                     LIMIT least(room, 500)::int
                       FOR NO KEY UPDATE SKIP LOCKED
                )
                SELECT array_agg(job_id) INTO fitting
                  FROM (SELECT job_id, sum(weight) OVER (ORDER BY priority, created_at, job_id) AS total FROM heads) h
                 WHERE total <= room - (SELECT coalesce(sum(coalesce((w.limits ->> limit_name)::int, 1)), 0)
                                          FROM dl_jobs w
                                         WHERE w.waits_on = limit_name AND w.queue = queue_name AND w.status = 'queued'
                                           AND w.wait_state BETWEEN 'ready' AND 'ready');  -- so that no plan walks the ready jobs
            END IF;
            WITH limited AS MATERIALIZED (
                SELECT j.job_id
                  FROM unnest(fitting) AS i (job_id) JOIN dl_jobs j ON j.job_id = ANY (ARRAY[i.job_id])
                 WHERE j.status::text = 'queued' AND j.wait_state::text = 'limited' AND j.waits_on = limit_name
                   FOR NO KEY UPDATE OF j SKIP LOCKED
            ), changed AS (
                UPDATE dl_jobs j
                   SET wait_state = CASE WHEN j.available_at > clock_timestamp() THEN 'scheduled' ELSE 'ready' END::dl_wait_state,
                       waits_on = CASE WHEN j.available_at <= clock_timestamp() THEN limit_name END
                  FROM limited
                 WHERE j.job_id = ANY (ARRAY[limited.job_id])
                RETURNING j.job_id, j.queue, j.attempt,
                          set_config('dl.made_ready', concat_ws(' ', current_setting('dl.made_ready', true), j.job_id), true)
            ), events AS (
                INSERT INTO dl_job_events (job_id, queue, ts, kind, payload)
                SELECT job_id, queue, clock_timestamp(), 'released',
                       jsonb_build_object('status', 'queued', 'attempt', attempt, 'limit', limit_name)
                  FROM changed
            )
            SELECT array_agg(job_id) AS ids, array_agg(DISTINCT queue) AS queues INTO woken FROM changed;
            PERFORM set_config('dl.events_checked', checked_before, true);
            IF woken.ids IS NOT NULL THEN
                PERFORM dl_notify_queue(q) FROM unnest(woken.queues) AS q;
                RETURN QUERY SELECT unnest(woken.ids);
            END IF;
            EXIT WHEN look.taken_at IS NOT NULL;
            queue_name := (SELECT j.queue FROM dl_jobs j
                            WHERE j.waits_on = limit_name AND j.queue > queue_name AND j.status = 'queued' AND j.wait_state = 'limited'
                            ORDER BY j.queue LIMIT 1);
        END LOOP;
        IF look.taken_at IS NULL AND clock_timestamp() - began > interval '5 ms' THEN
            PERFORM dl_take_limit_look(limit_name);
        END IF;
    END LOOP;
END $$;

-- The limits that jobs wait for and that this row sets: its own name, or with a default all names that begin so.
CREATE OR REPLACE FUNCTION dl_waiting_limits(row_name text) RETURNS text[]
    LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$
BEGIN
    IF row_name NOT LIKE '%:*' THEN
        RETURN ARRAY[row_name];
    END IF;
    RETURN ARRAY(
        WITH RECURSIVE names AS (
            (SELECT waits_on AS name FROM dl_jobs
              WHERE status = 'queued' AND waits_on IS NOT NULL AND waits_on >= left(row_name, -1) ORDER BY waits_on LIMIT 1)
            UNION ALL
            SELECT (SELECT j.waits_on FROM dl_jobs j
                     WHERE j.status = 'queued' AND j.waits_on IS NOT NULL AND j.waits_on > n.name ORDER BY j.waits_on LIMIT 1)
              FROM names n
             WHERE starts_with(n.name, left(row_name, -1))
        )
        SELECT name FROM names WHERE starts_with(name, left(row_name, -1)));
END $$;

CREATE OR REPLACE TRIGGER dl_limits_audit AFTER INSERT OR UPDATE OR DELETE ON dl_limits
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('limit', 'name', 'changed_by,changed_at', '');

-- ── Circuit breakers ─────────────────────────────────────────────────────────────────────────────────────────────────

-- Tasks that stop when too many of their attempts in a row end with an error, or that a person has paused. While a breaker
-- is open the limit task:NAME counts as 0, so no job of the task starts; half-open it counts as 1: the next attempt decides.
-- rights of the service: SELECT, INSERT, UPDATE, DELETE
CREATE TABLE dl_breakers (
    task          text        PRIMARY KEY CHECK (task <> '' AND octet_length(task) <= 1000),
    failures      int         CHECK (failures >= 1),    -- attempts in a row that open it; NULL: only a person does
    window_sec    int         CHECK (window_sec >= 1),  -- a row of failures ends this long after its last one; NULL: never
    resume_sec    int         NOT NULL DEFAULT 300 CHECK (resume_sec >= 1),  -- from opening to the first probe
    state         text        NOT NULL DEFAULT 'closed' CHECK (state IN ('closed', 'open', 'half_open')),
    failed_in_row int         NOT NULL DEFAULT 0,
    failed_at     timestamptz,
    opened_at     timestamptz,
    pause_sec     int,                                  -- of this opening: doubled by each probe that fails
    probe_at      timestamptz,                          -- when it becomes half-open; NULL: when a person closes it
    reason        text,
    is_declared   bool        NOT NULL DEFAULT false,   -- by the task; false once a person has changed the numbers
    changed_by    text,                                 -- who opened or closed it last; NULL: the attempts did
    changed_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Counts how attempts ended, in their order, for tasks with a breaker: opens it, closes it, or opens it again for twice as long (up
-- to an hour). Each outcome is an object with the task, the status (succeeded, or else it failed) and the error. A breaker's row
-- is locked after the jobs' rows and before the locks of limits. Returns the limits of the tasks whose breaker closed, for
-- dl_jobs_ended: all locks of limits of a transaction are taken at once.
CREATE OR REPLACE FUNCTION dl_count_outcomes(outcomes jsonb) RETURNS text[]
    LANGUAGE plpgsql VOLATILE STRICT SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    breaker dl_breakers;
    outcome jsonb;
    before  text;
    closed  text[] := '{}';
BEGIN
    FOR breaker IN
        SELECT b.* FROM dl_breakers b
         WHERE b.task IN (SELECT o ->> 'task' FROM jsonb_array_elements(outcomes) o)
           AND (b.state = 'half_open'
                OR b.state = 'closed' AND b.failures IS NOT NULL
                   AND (b.failed_in_row > 0 OR EXISTS (SELECT FROM jsonb_array_elements(outcomes) o
                                                        WHERE o ->> 'task' = b.task AND o ->> 'status' <> 'succeeded')))
         ORDER BY b.task
           FOR NO KEY UPDATE
    LOOP
        before := breaker.state;
        FOR outcome IN SELECT o FROM jsonb_array_elements(outcomes) o WHERE o ->> 'task' = breaker.task LOOP
            IF outcome ->> 'status' = 'succeeded' THEN
                breaker.failed_in_row := 0;
                IF breaker.state = 'half_open' THEN
                    breaker.state := 'closed';
                    breaker.reason := NULL;
                END IF;
            ELSIF breaker.state <> 'open' THEN
                IF breaker.failed_at < clock_timestamp() - make_interval(secs => breaker.window_sec) THEN
                    breaker.failed_in_row := 0;
                END IF;
                breaker.failed_in_row := breaker.failed_in_row + 1;
                breaker.failed_at := clock_timestamp();
                IF breaker.state = 'half_open' OR breaker.failed_in_row >= breaker.failures THEN
                    breaker.pause_sec := CASE breaker.state WHEN 'half_open'
                                              THEN greatest(least(2 * coalesce(breaker.pause_sec, breaker.resume_sec), 3600), breaker.resume_sec)
                                              ELSE breaker.resume_sec END;
                    breaker.opened_at := CASE breaker.state WHEN 'half_open' THEN coalesce(breaker.opened_at, clock_timestamp())
                                                            ELSE clock_timestamp() END;
                    breaker.state := 'open';
                    breaker.probe_at := clock_timestamp() + make_interval(secs => breaker.pause_sec);
                    breaker.reason := format('%s failed in a row; the last: %s',
                                             CASE breaker.failed_in_row WHEN 1 THEN '1 attempt' ELSE breaker.failed_in_row || ' attempts' END,
                                             coalesce(split_part(outcome ->> 'error', E'\n', 1), ''));
                END IF;
            END IF;
        END LOOP;
        UPDATE dl_breakers b
           SET state = breaker.state, failed_in_row = breaker.failed_in_row, failed_at = breaker.failed_at,
               opened_at = CASE breaker.state WHEN 'closed' THEN NULL ELSE breaker.opened_at END, pause_sec = breaker.pause_sec,
               probe_at = CASE breaker.state WHEN 'open' THEN breaker.probe_at END, reason = breaker.reason,
               changed_by = CASE breaker.state WHEN before THEN b.changed_by END,
               changed_at = CASE breaker.state WHEN before THEN b.changed_at ELSE clock_timestamp() END
         WHERE b.task = breaker.task;
        IF breaker.state <> before THEN
            PERFORM pg_notify('dl_control', 'limits');
            IF breaker.state = 'closed' THEN
                closed := closed || ('task:' || breaker.task);
            END IF;
        END IF;
    END LOOP;
    RETURN closed;
END $$;

CREATE OR REPLACE TRIGGER dl_breakers_audit AFTER INSERT OR UPDATE OR DELETE ON dl_breakers
    FOR EACH ROW WHEN (current_setting('dl.audit_context', true) <> '')
    EXECUTE FUNCTION dl_audit_row('breaker', 'task', 'changed_by,changed_at,failed_at', '');
