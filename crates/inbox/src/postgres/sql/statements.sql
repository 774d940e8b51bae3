-- What a worker runs on the tables of the inbox.
-- A test writes this: UPDATE_PAGES=1 cargo test statements_are_written_down

-- mark a connection
SELECT pg_advisory_lock_shared(hashtextextended($1::text, 1));

-- end connections
SELECT count(pg_terminate_backend(pid)) FROM pg_locks
WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND (classid::bigint << 32 | objid::bigint) = hashtextextended($1::text, 1);

-- find the role
SELECT token, owner, (r.expires_at <= clock_timestamp()
    OR pg_try_advisory_xact_lock(hashtextextended(r.owner, 1))), unended, handled_stream
FROM public.inbox_roles AS r WHERE consumer = $1 AND partition = $2;

-- look around
WITH joined AS (
    INSERT INTO public.inbox_workers AS w (consumer, owner, expires_at)
    SELECT $1, $2, clock_timestamp() + make_interval(secs => $3) WHERE $4
    ON CONFLICT (consumer, owner) DO UPDATE SET expires_at = EXCLUDED.expires_at
    RETURNING joined_at
), others AS MATERIALIZED (
    SELECT owner, joined_at, (r.expires_at <= clock_timestamp()
    OR pg_try_advisory_xact_lock(hashtextextended(r.owner, 1))) AS is_gone
    FROM public.inbox_workers AS r WHERE consumer = $1 AND owner <> $2
), gone AS (
    DELETE FROM public.inbox_workers AS w WHERE consumer = $1 AND owner IN (
        SELECT owner FROM public.inbox_workers WHERE consumer = $1 AND (owner = $2 AND NOT $4
            OR owner IN (SELECT owner FROM others WHERE is_gone))
        FOR UPDATE SKIP LOCKED) -- two that take each other for gone do not wait
)
SELECT count(*), count(*) FILTER (WHERE (joined_at, owner) < (SELECT joined_at, $2::text FROM joined)),
    ARRAY(SELECT p FROM generate_series(0, $5 - 1) AS p
        LEFT JOIN public.inbox_roles AS r ON r.consumer = $1 AND r.partition = p
        WHERE r.owner IS NULL OR (r.expires_at <= clock_timestamp()
    OR pg_try_advisory_xact_lock(hashtextextended(r.owner, 1))) ORDER BY p),
    count(*) FILTER (WHERE NOT EXISTS (SELECT FROM public.inbox_roles AS r
        WHERE r.consumer = $1 AND r.owner = others.owner AND r.state = 'paused'))
FROM others WHERE NOT is_gone;

-- leave
DELETE FROM public.inbox_workers WHERE consumer = $1 AND owner = $2;

-- take the role
INSERT INTO public.inbox_roles AS r (consumer, token, owner, expires_at, partition)
VALUES ($1, $2, $3, clock_timestamp() + make_interval(secs => $4), $6)
ON CONFLICT (consumer, partition) DO UPDATE SET token = EXCLUDED.token, owner = EXCLUDED.owner,
    acquired_at = clock_timestamp(), expires_at = EXCLUDED.expires_at,
    state = NULL, breaker = NULL, reason = NULL, next_probe_at = NULL,
    unended = array_remove(array_append(array_remove(r.unended, r.owner), r.owner), '')
WHERE r.token = $5 AND (r.expires_at <= clock_timestamp()
    OR pg_try_advisory_xact_lock(hashtextextended(r.owner, 1)));

-- renew roles
WITH said AS (
    SELECT * FROM unnest($2::int[], $3::uuid[], $5::bigint[], $6::bigint[], $7::text[], $8::text[],
        $9::text[], $10::timestamptz[], $11::timestamptz[])
        AS s (partition, token, server, handled, state, breaker, reason, next_probe_at, stored_at)
), free AS MATERIALIZED (
    SELECT partition FROM public.inbox_roles AS r JOIN said AS s USING (partition, token)
    WHERE consumer = $1 FOR NO KEY UPDATE OF r SKIP LOCKED
), renewed AS (
    UPDATE public.inbox_roles AS r
    SET expires_at = clock_timestamp() + make_interval(secs => $4), state = s.state,
        breaker = s.breaker, reason = s.reason, next_probe_at = s.next_probe_at,
        unended = '{}', handled_to = CASE WHEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = s.server THEN s.handled ELSE r.handled_to END,
    handled_stored_at =
        CASE WHEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = s.server THEN s.stored_at ELSE r.handled_stored_at END
    FROM free JOIN said AS s USING (partition)
    WHERE r.consumer = $1 AND r.partition = s.partition AND r.token = s.token
    RETURNING r.partition
)
SELECT partition, partition IN (SELECT partition FROM renewed), (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint
FROM public.inbox_roles JOIN said USING (partition, token) WHERE consumer = $1;

-- release roles
UPDATE public.inbox_roles AS r SET handled_to = CASE WHEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = s.server THEN s.handled ELSE r.handled_to END,
    handled_stored_at =
        CASE WHEN (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = s.server THEN s.stored_at ELSE r.handled_stored_at END,
    expires_at = CASE WHEN $4 THEN clock_timestamp() ELSE '-infinity' END,
    owner = CASE WHEN $4 THEN '' ELSE owner END
FROM unnest($2::int[], $3::uuid[], $5::bigint[], $6::bigint[], $7::timestamptz[])
    AS s (partition, token, server, handled, stored_at)
WHERE r.consumer = $1 AND r.partition = s.partition AND r.token = s.token;

-- find what is handled
SELECT CASE WHEN handled_stream = $2 AND handled_created IS NOT DISTINCT FROM $3::timestamptz THEN handled_to END, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
    CASE WHEN handled_stream = $2 AND handled_created IS NOT DISTINCT FROM $3::timestamptz THEN seen_to END, seen_given, unread,
    CASE WHEN handled_stream = $2 AND handled_created IS NOT DISTINCT FROM $3::timestamptz THEN handled_stored_at END
FROM public.inbox_roles WHERE consumer = $1 AND partition = $4;

-- write down what is handled
UPDATE public.inbox_roles
SET handled_stream = $2, handled_created = $3, handled_to = $4, handled_stored_at = $7,
    seen_to = CASE WHEN handled_stream = $2 AND handled_created IS NOT DISTINCT FROM $3::timestamptz THEN seen_to END, unread = unread + $8::bigint,
    unread_since = CASE WHEN $8::bigint > 0 THEN '-infinity'::timestamptz ELSE unread_since END
WHERE consumer = $1 AND token = $5 AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $6 RETURNING 'up to ' || unread || ' messages ' || CASE WHEN unread_since = '-infinity'::timestamptz THEN
'are acknowledged and have no record here' ELSE 'left the stream unread' END ||
CASE WHEN 1 > 1 THEN ' in each of ' || 1 || ' partitions' ELSE '' END ||
', some of which may be of other subjects. ' || CASE WHEN unread_since = '-infinity'::timestamptz THEN
'The database is of an earlier state, or the durable consumer was made anew with a later '
'start, and `' || 'tailpost inbox rewind --to-sequence 1 '
'--consumer ' || consumer || '` has those handled that the stream has; or they were '
'handled elsewhere' ELSE
'No rewind brings them: `' || 'tailpost replay ' || coalesce('--since ' ||
to_char(unread_since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), '--all') ||
'` does' END || '. Once that is done: UPDATE public.inbox_roles SET unread = 0 WHERE consumer = ' ||
quote_literal(consumer) || ' AND unread <= ' || unread;

-- first that is not handled
SELECT min(i.seq)
FROM unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) AS i (message_id, event_time, seq)
WHERE i.event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
    FROM public.inbox_retention)
    AND NOT EXISTS (SELECT FROM public.inbox_messages AS m
        WHERE m.consumer = $1 AND m.message_id = i.message_id
            AND m.event_time = i.event_time
            AND m.status || '' IN ('PROCESSED', 'DEAD', 'REJECTED'))
    AND NOT EXISTS (SELECT FROM public.inbox_dead_letter AS d
        WHERE d.consumer = $1 AND d.message_id = i.message_id);

-- last in its place
SELECT max(m.stream_seq)
FROM unnest($2::uuid[], $3::timestamptz[], $4::bigint[]) AS i (message_id, event_time, seq)
JOIN public.inbox_messages AS m ON m.consumer = $1 AND m.message_id = i.message_id
    AND m.event_time = i.event_time AND m.stream_seq = i.seq;

-- write down what was seen
UPDATE public.inbox_roles SET seen_to = $3, seen_given = $4,
    seen_at = CASE WHEN $5 THEN clock_timestamp() - interval '1 hour' ELSE seen_at END,
    unread = unread + $6::bigint,
    unread_since = CASE WHEN $6::bigint > 0 AND unread = 0 THEN seen_at ELSE unread_since END
WHERE consumer = $1 AND token = $2 AND (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint = $7
    AND ($6::bigint > 0 OR (seen_to, seen_given) IS DISTINCT FROM ($3, $4))
RETURNING 'up to ' || unread || ' messages ' || CASE WHEN unread_since = '-infinity'::timestamptz THEN
'are acknowledged and have no record here' ELSE 'left the stream unread' END ||
CASE WHEN 1 > 1 THEN ' in each of ' || 1 || ' partitions' ELSE '' END ||
', some of which may be of other subjects. ' || CASE WHEN unread_since = '-infinity'::timestamptz THEN
'The database is of an earlier state, or the durable consumer was made anew with a later '
'start, and `' || 'tailpost inbox rewind --to-sequence 1 '
'--consumer ' || consumer || '` has those handled that the stream has; or they were '
'handled elsewhere' ELSE
'No rewind brings them: `' || 'tailpost replay ' || coalesce('--since ' ||
to_char(unread_since AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), '--all') ||
'` does' END || '. Once that is done: UPDATE public.inbox_roles SET unread = 0 WHERE consumer = ' ||
quote_literal(consumer) || ' AND unread <= ' || unread, $6::bigint > 0 AND unread = $6;

-- note what left the stream
INSERT INTO public.inbox_control_audit (consumer, action, actor, via, why)
VALUES ($1, 'unread', session_user || ' (a worker)', 'inbox', $2);

-- record new events
INSERT INTO public.inbox_messages (consumer, message_id, event_time, subject, stream,
    stream_seq, status, attempts, finished_attempts, processed_at, lease_owner)
SELECT $1, message_id, event_time, subject, $6, stream_seq, 'PROCESSED', 1, 1,
    clock_timestamp(), $7
FROM unnest($2, $3, $4::text[], $5::bigint[])
    AS i (message_id, event_time, subject, stream_seq)
WHERE EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $8::uuid) AND event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
    FROM public.inbox_retention)
ORDER BY message_id -- so that two workers cannot wait for each other
ON CONFLICT (consumer, message_id, event_time) DO NOTHING
RETURNING message_id;

-- note outcomes
UPDATE public.inbox_messages AS m
SET outcome = i.outcome
FROM (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3, $4::text[])
    AS i (message_id, event_time, outcome) OFFSET 0) AS i
WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id
    AND m.event_time = i.event_time AND m.status = 'PROCESSED';

-- claim events
WITH input AS (
    SELECT * FROM unnest($2, $3, $4::text[], $5::bigint[])
        AS i (message_id, event_time, subject, stream_seq)
), claimed AS (
    INSERT INTO public.inbox_messages AS m (consumer, message_id, event_time, subject, stream,
        stream_seq, status, attempts, lease_owner, lease_token, claimed_at, expires_at)
    SELECT $1, message_id, event_time, subject, $6, stream_seq, 'PROCESSING', 1,
        $7, $8::uuid, clock_timestamp(), clock_timestamp() + make_interval(secs => $9)
    FROM input
    WHERE EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $10::uuid) AND (event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
    FROM public.inbox_retention) OR EXISTS (SELECT FROM public.inbox_messages AS r
        WHERE r.consumer = $1 AND r.message_id = input.message_id
            AND r.event_time = input.event_time OFFSET 0))
    ORDER BY message_id
    ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
        status = 'PROCESSING', attempts = m.attempts + 1,
        lease_owner = EXCLUDED.lease_owner, lease_token = EXCLUDED.lease_token,
        claimed_at = EXCLUDED.claimed_at, expires_at = EXCLUDED.expires_at,
        next_attempt_at = NULL
    WHERE m.status IN ('PROCESSING', 'FAILED')
        AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
        AND m.attempts - m.finished_attempts < 3
    RETURNING m.message_id, m.attempts, m.finished_attempts,
        clock_timestamp() - m.tried_since AS age
)
SELECT message_id, 'claimed', attempts, attempts - finished_attempts, 0::float8,
    extract(epoch FROM age)::float8
FROM claimed
UNION ALL
SELECT
    input.message_id,
    CASE
        WHEN m.status IN ('PROCESSED', 'DEAD', 'REJECTED') THEN 'resolved'
        WHEN NOT m.status IN ('PROCESSING', 'FAILED') THEN 'leased'
        WHEN NOT EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $10::uuid) THEN 'contended'
        WHEN m.attempts - m.finished_attempts >= 3 THEN 'crashed'
        WHEN m.next_attempt_at > clock_timestamp() THEN 'early'
        WHEN m.message_id IS NULL AND NOT input.event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
    FROM public.inbox_retention) THEN 'forgotten'
        ELSE 'contended'
    END,
    coalesce(m.attempts, 0),
    coalesce(m.attempts - m.finished_attempts, 0),
    coalesce(extract(epoch FROM CASE m.status WHEN 'PROCESSING' THEN m.expires_at
        ELSE m.next_attempt_at END - clock_timestamp()), 0)::float8,
    NULL
FROM input
LEFT JOIN LATERAL (
    SELECT * FROM public.inbox_messages AS r
    WHERE r.consumer = $1 AND r.message_id = input.message_id
        AND r.event_time = input.event_time
    OFFSET 0
) AS m ON TRUE
WHERE input.message_id NOT IN (SELECT message_id FROM claimed);

-- extend leases
WITH ours AS MATERIALIZED (
         SELECT m.message_id, m.event_time FROM public.inbox_messages AS m, (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3, $4::uuid[])
         AS i (message_id, event_time, token) OFFSET 0) AS i WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
AND m.lease_token = i.token AND m.status || '' = 'PROCESSING'
     ), free AS MATERIALIZED (
         SELECT i.consumers, m.message_id, m.event_time FROM public.inbox_messages AS m, (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3, $4::uuid[])
         AS i (message_id, event_time, token) OFFSET 0) AS i
         WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
AND m.lease_token = i.token AND m.status || '' = 'PROCESSING'
         FOR NO KEY UPDATE OF m SKIP LOCKED
     ), extended AS (
         UPDATE public.inbox_messages AS m SET expires_at = clock_timestamp() + make_interval(secs => $5)
         FROM free WHERE m.consumer = ANY (free.consumers) AND m.message_id = free.message_id
             AND m.event_time = free.event_time
         RETURNING m.message_id
     )
     SELECT message_id, message_id IN (SELECT message_id FROM extended) FROM ours;

-- end claims
UPDATE public.inbox_messages AS m
     SET status = i.status, lease_token = NULL,
         processed_at = CASE i.status WHEN 'PROCESSED' THEN clock_timestamp() END,
         outcome = CASE i.status WHEN 'PROCESSED' THEN i.word ELSE m.outcome END,
         last_error = CASE i.status WHEN 'FAILED' THEN i.word ELSE m.last_error END,
         next_attempt_at = CASE i.status WHEN 'FAILED'
             THEN clock_timestamp() + make_interval(secs => i.delay) END,
         tried_since = coalesce(m.tried_since, CASE WHEN i.status <> 'PROCESSED'
             AND i.word IS NOT NULL THEN clock_timestamp() END),
         attempts = m.attempts - (i.status = 'PROCESSING')::int,
         finished_attempts = m.finished_attempts + (i.status <> 'PROCESSING')::int,
         expires_at = CASE i.status WHEN 'PROCESSING' THEN clock_timestamp() END
     FROM (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3, $4::uuid[], $5::text[], $6::text[], $7::float8[])
         AS i (message_id, event_time, token, status, word, delay) OFFSET 0) AS i
     WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
AND m.lease_token = i.token AND m.status || '' = 'PROCESSING' RETURNING m.message_id;

-- end claims, some of which failed
WITH ended AS (
     UPDATE public.inbox_messages AS m
     SET status = i.status, lease_token = NULL,
         processed_at = CASE i.status WHEN 'PROCESSED' THEN clock_timestamp() END,
         outcome = CASE i.status WHEN 'PROCESSED' THEN i.word ELSE m.outcome END,
         last_error = CASE i.status WHEN 'FAILED' THEN i.word ELSE m.last_error END,
         next_attempt_at = CASE i.status WHEN 'FAILED'
             THEN clock_timestamp() + make_interval(secs => i.delay) END,
         tried_since = coalesce(m.tried_since, CASE WHEN i.status <> 'PROCESSED'
             AND i.word IS NOT NULL THEN clock_timestamp() END),
         attempts = m.attempts - (i.status = 'PROCESSING')::int,
         finished_attempts = m.finished_attempts + (i.status <> 'PROCESSING')::int,
         expires_at = CASE i.status WHEN 'PROCESSING' THEN clock_timestamp() END
     FROM (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3, $4::uuid[], $5::text[], $6::text[], $7::float8[], $8::smallint[], $9::int[])
         AS i (message_id, event_time, token, status, word, delay, code, took) OFFSET 0) AS i
     WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
AND m.lease_token = i.token AND m.status || '' = 'PROCESSING'
     RETURNING m.message_id, m.event_time, m.lease_owner AS worker, i.word AS reason, i.code,
         i.took, m.attempts + (i.status = 'PROCESSING')::int AS attempt
     ), noted AS (
         INSERT INTO public.inbox_attempts (consumer, message_id, event_time, attempt, code,
             took_ms, reason, worker)
         SELECT $1, message_id, event_time, attempt, code, took,
             left(regexp_replace(reason, '[[:cntrl:]]+', ' ', 'g'), 400), worker
         FROM ended WHERE took IS NOT NULL
     ), outdated AS (
         DELETE FROM public.inbox_attempts WHERE id = ANY (ARRAY(
             SELECT older.id FROM ended, LATERAL (
                 SELECT a.id FROM public.inbox_attempts AS a
                 WHERE a.consumer = $1 AND a.message_id = ended.message_id
                     AND a.event_time = ended.event_time
                 ORDER BY a.id DESC OFFSET 19) AS older
             WHERE ended.took IS NOT NULL))
     )
     SELECT message_id FROM ended;

-- find claims that have no end
SELECT m.message_id FROM public.inbox_messages AS m, (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2::uuid[], $3::timestamptz[], $4::uuid[])
         AS i (message_id, event_time, token) OFFSET 0) AS i WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
AND m.lease_token = i.token AND m.status || '' = 'PROCESSING';

-- park a claimed event
WITH dead AS (UPDATE public.inbox_messages AS m
     SET status = 'DEAD', last_error = $10, finished_attempts = m.finished_attempts + 1,
         lease_token = NULL, expires_at = NULL
     FROM (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3, ARRAY[$11]::uuid[])
         AS i (message_id, event_time, token) OFFSET 0) AS i
     WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
AND m.lease_token = i.token AND m.status || '' = 'PROCESSING' RETURNING m.attempts, m.lease_owner AS worker), letter AS (
     INSERT INTO public.inbox_dead_letter AS letter (consumer, message_id, event_time,
         subject, stream, stream_seq, headers, payload, attempts, cause, reason, raw_headers,
         stream_created_at)
     SELECT $1, ($2)[1], ($3)[1], $4::text, $5::text, $6::bigint, $7::text::jsonb, $8::bytea,
         dead.attempts, $9::text, $10::text, $12::bytea, $13::timestamptz
     FROM dead
     ON CONFLICT (consumer, message_id) DO UPDATE SET
         event_time = EXCLUDED.event_time, subject = EXCLUDED.subject,
         stream = EXCLUDED.stream, stream_seq = EXCLUDED.stream_seq,
         stream_created_at = EXCLUDED.stream_created_at, headers = EXCLUDED.headers,
         raw_headers = EXCLUDED.raw_headers, payload = EXCLUDED.payload,
         attempts = EXCLUDED.attempts, cause = EXCLUDED.cause, reason = EXCLUDED.reason,
         dead_at = EXCLUDED.dead_at
     RETURNING letter.message_id
     )
     SELECT message_id FROM letter
     UNION ALL
     SELECT ('no letter of ' || attempts)::uuid FROM dead WHERE NOT EXISTS (SELECT FROM letter);

-- park an event that failed
WITH dead AS (UPDATE public.inbox_messages AS m
     SET status = 'DEAD', last_error = $10, finished_attempts = m.finished_attempts + 1,
         lease_token = NULL, expires_at = NULL
     FROM (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3, ARRAY[$11]::uuid[])
         AS i (message_id, event_time, token) OFFSET 0) AS i
     WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id AND m.event_time = i.event_time
AND m.lease_token = i.token AND m.status || '' = 'PROCESSING' RETURNING m.attempts, m.lease_owner AS worker), ended AS (
         SELECT ($2)[1] AS message_id, ($3)[1] AS event_time, attempts AS attempt,
             $14::smallint AS code, $15::int AS took, $10::text AS reason, worker
         FROM dead
     ), noted AS (
         INSERT INTO public.inbox_attempts (consumer, message_id, event_time, attempt, code,
             took_ms, reason, worker)
         SELECT $1, message_id, event_time, attempt, code, took,
             left(regexp_replace(reason, '[[:cntrl:]]+', ' ', 'g'), 400), worker
         FROM ended WHERE took IS NOT NULL
     ), outdated AS (
         DELETE FROM public.inbox_attempts WHERE id = ANY (ARRAY(
             SELECT older.id FROM ended, LATERAL (
                 SELECT a.id FROM public.inbox_attempts AS a
                 WHERE a.consumer = $1 AND a.message_id = ended.message_id
                     AND a.event_time = ended.event_time
                 ORDER BY a.id DESC OFFSET 19) AS older
             WHERE ended.took IS NOT NULL))
     ), letter AS (
     INSERT INTO public.inbox_dead_letter AS letter (consumer, message_id, event_time,
         subject, stream, stream_seq, headers, payload, attempts, cause, reason, raw_headers,
         stream_created_at)
     SELECT $1, ($2)[1], ($3)[1], $4::text, $5::text, $6::bigint, $7::text::jsonb, $8::bytea,
         dead.attempts, $9::text, $10::text, $12::bytea, $13::timestamptz
     FROM dead
     ON CONFLICT (consumer, message_id) DO UPDATE SET
         event_time = EXCLUDED.event_time, subject = EXCLUDED.subject,
         stream = EXCLUDED.stream, stream_seq = EXCLUDED.stream_seq,
         stream_created_at = EXCLUDED.stream_created_at, headers = EXCLUDED.headers,
         raw_headers = EXCLUDED.raw_headers, payload = EXCLUDED.payload,
         attempts = EXCLUDED.attempts, cause = EXCLUDED.cause, reason = EXCLUDED.reason,
         dead_at = EXCLUDED.dead_at
     RETURNING letter.message_id
     )
     SELECT message_id FROM letter
     UNION ALL
     SELECT ('no letter of ' || attempts)::uuid FROM dead WHERE NOT EXISTS (SELECT FROM letter);

-- park after crashes
WITH dead AS (UPDATE public.inbox_messages AS m
SET status = 'DEAD', last_error = $10, lease_token = NULL,
    expires_at = NULL, next_attempt_at = NULL
FROM (SELECT ARRAY[$1::text] AS consumers, i.* FROM unnest($2, $3)
    AS i (message_id, event_time) OFFSET 0) AS i
WHERE m.consumer = ANY (i.consumers) AND m.message_id = i.message_id
    AND m.event_time = i.event_time AND m.status IN ('PROCESSING', 'FAILED')
    AND m.attempts - m.finished_attempts >= 3
    AND EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $11::uuid)
RETURNING m.attempts), letter AS (
INSERT INTO public.inbox_dead_letter AS letter (consumer, message_id, event_time,
    subject, stream, stream_seq, headers, payload, attempts, cause, reason, raw_headers,
    stream_created_at)
SELECT $1, ($2)[1], ($3)[1], $4::text, $5::text, $6::bigint, $7::text::jsonb, $8::bytea,
    dead.attempts, $9::text, $10::text, $12::bytea, $13::timestamptz
FROM dead
ON CONFLICT (consumer, message_id) DO UPDATE SET
    event_time = EXCLUDED.event_time, subject = EXCLUDED.subject,
    stream = EXCLUDED.stream, stream_seq = EXCLUDED.stream_seq,
    stream_created_at = EXCLUDED.stream_created_at, headers = EXCLUDED.headers,
    raw_headers = EXCLUDED.raw_headers, payload = EXCLUDED.payload,
    attempts = EXCLUDED.attempts, cause = EXCLUDED.cause, reason = EXCLUDED.reason,
    dead_at = EXCLUDED.dead_at
RETURNING letter.message_id
)
SELECT message_id FROM letter
UNION ALL
SELECT ('no letter of ' || attempts)::uuid FROM dead WHERE NOT EXISTS (SELECT FROM letter);

-- park what is forgotten
WITH dead AS (SELECT 0 AS attempts WHERE EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $11::uuid)), letter AS (
INSERT INTO public.inbox_dead_letter AS letter (consumer, message_id, event_time,
    subject, stream, stream_seq, headers, payload, attempts, cause, reason, raw_headers,
    stream_created_at)
SELECT $1, ($2)[1], ($3)[1], $4::text, $5::text, $6::bigint, $7::text::jsonb, $8::bytea,
    dead.attempts, $9::text, $10::text, $12::bytea, $13::timestamptz
FROM dead
ON CONFLICT (consumer, message_id) DO UPDATE SET
    event_time = EXCLUDED.event_time, subject = EXCLUDED.subject,
    stream = EXCLUDED.stream, stream_seq = EXCLUDED.stream_seq,
    stream_created_at = EXCLUDED.stream_created_at, headers = EXCLUDED.headers,
    raw_headers = EXCLUDED.raw_headers, payload = EXCLUDED.payload,
    attempts = EXCLUDED.attempts, cause = EXCLUDED.cause, reason = EXCLUDED.reason,
    dead_at = EXCLUDED.dead_at
RETURNING letter.message_id
)
SELECT message_id FROM letter
UNION ALL
SELECT ('no letter of ' || attempts)::uuid FROM dead WHERE NOT EXISTS (SELECT FROM letter);

-- park anyhow
WITH dead AS (INSERT INTO public.inbox_messages AS m (consumer, message_id, event_time, subject,
    stream, stream_seq, status, last_error)
SELECT $1, message_id, event_time, $4, $5, $6, 'DEAD', $10
FROM unnest($2, $3) AS i (message_id, event_time)
WHERE EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $11::uuid)
ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET status = 'DEAD',
    last_error = $10, lease_token = NULL, expires_at = NULL, next_attempt_at = NULL
    WHERE m.status IN ('PROCESSING', 'FAILED')
RETURNING m.attempts), letter AS (
INSERT INTO public.inbox_dead_letter AS letter (consumer, message_id, event_time,
    subject, stream, stream_seq, headers, payload, attempts, cause, reason, raw_headers,
    stream_created_at)
SELECT $1, ($2)[1], ($3)[1], $4::text, $5::text, $6::bigint, $7::text::jsonb, $8::bytea,
    dead.attempts, $9::text, $10::text, $12::bytea, $13::timestamptz
FROM dead
ON CONFLICT (consumer, message_id) DO UPDATE SET
    event_time = EXCLUDED.event_time, subject = EXCLUDED.subject,
    stream = EXCLUDED.stream, stream_seq = EXCLUDED.stream_seq,
    stream_created_at = EXCLUDED.stream_created_at, headers = EXCLUDED.headers,
    raw_headers = EXCLUDED.raw_headers, payload = EXCLUDED.payload,
    attempts = EXCLUDED.attempts, cause = EXCLUDED.cause, reason = EXCLUDED.reason,
    dead_at = EXCLUDED.dead_at
RETURNING letter.message_id
)
SELECT message_id FROM letter
UNION ALL
SELECT ('no letter of ' || attempts)::uuid FROM dead WHERE NOT EXISTS (SELECT FROM letter);

-- find letters that are due
WITH due AS (
         SELECT d.message_id, d.stream_seq, row_number() OVER (
             PARTITION BY d.headers->'Aggregate-Type', d.headers->'Aggregate-Id'
             ORDER BY d.stream_created_at NULLS FIRST, d.stream_seq) AS turn
         FROM public.inbox_dead_letter d JOIN public.inbox_messages m ON m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time
         WHERE d.consumer = $1 AND d.stream = $2 AND d.subject ~ $5 AND (
             m.status = 'FAILED' AND coalesce(m.next_attempt_at <= clock_timestamp(), TRUE)
             OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp())
     )
     SELECT message_id, stream_seq, turn FROM due
     ORDER BY turn, stream_seq <= $4, stream_seq LIMIT $3;

-- find a letter
SELECT * FROM public.inbox_dead_letter WHERE consumer = $1 AND message_id = $2;

-- find events that nobody has
SELECT m.message_id, m.event_time, m.subject, m.stream_seq FROM public.inbox_messages m
     WHERE m.consumer = $1 AND m.stream = $2 AND m.stream_seq IS NOT NULL
         AND (m.status = 'FAILED' AND m.next_attempt_at < clock_timestamp() - make_interval(secs => $3::float8)
             OR m.status = 'PROCESSING' AND m.expires_at < clock_timestamp() - make_interval(secs => $3::float8))
         AND (m.event_time, m.message_id) > ($4::timestamptz, $5::uuid)
         AND m.subject ~ $7
         AND NOT EXISTS (SELECT FROM public.inbox_dead_letter d WHERE m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time)
     ORDER BY m.event_time, m.message_id LIMIT $6;

-- sweep letters
DELETE FROM public.inbox_dead_letter d USING public.inbox_messages m
     WHERE d.consumer = $1 AND m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time AND m.status IN ('PROCESSED', 'REJECTED');

-- forget attempts
WITH page AS MATERIALIZED (
    SELECT DISTINCT event_time, message_id, consumer FROM public.inbox_attempts
    WHERE event_time < $1
        AND (event_time, message_id, consumer)
            > (coalesce($2::timestamptz, '-infinity'), $3, $4)
    ORDER BY event_time, message_id, consumer LIMIT 1000
), gone AS (
    DELETE FROM public.inbox_attempts WHERE id = ANY (ARRAY(
        SELECT a.id FROM page JOIN public.inbox_attempts AS a
            USING (event_time, message_id, consumer)
        WHERE NOT EXISTS (
            SELECT FROM public.inbox_messages AS m
            WHERE m.consumer = page.consumer AND m.message_id = page.message_id
                AND m.event_time = page.event_time)
        FOR UPDATE OF a SKIP LOCKED))
)
SELECT event_time, message_id, consumer FROM page
ORDER BY event_time DESC, message_id DESC, consumer DESC LIMIT 1;

-- find what is wanted
SELECT consumer, paused_at, paused_by, reason, breaker_closings
FROM public.inbox_controls WHERE consumer = $1;

-- find what is tried at once
SELECT ARRAY(SELECT message_id FROM public.inbox_decisions
WHERE decided_at > least($2::timestamptz, statement_timestamp()) - interval '5 s'
    AND consumer = $1 AND decision IN ('mark_processed', 'try_now')),
statement_timestamp();

-- find a rewind
WITH it AS (SELECT id, stream, stream_created_at, from_seq AS from_sequence,
until_seq AS until_sequence, again, aggregate_type, aggregate_id, event_type,
requested_at, requested_by, begun_at, removed_to, removed,
ended_at, outcome FROM public.inbox_rewinds
     WHERE consumer = $1 AND partition = $2 AND ended_at IS NULL AND has_table_privilege('public.inbox_rewinds', 'UPDATE')) SELECT to_json(it) FROM it;

-- request a rewind
WITH it AS (INSERT INTO public.inbox_rewinds (consumer, stream, stream_created_at, from_seq, until_seq, again,
         aggregate_type, aggregate_id, event_type, requested_at, requested_by, reason, removed_to,
         partition)
     SELECT $1, $2, $3, $4::bigint, i.until, $6, $9, $10, $11, now(),
         session_user || ' (' || $7::text || ')', $8, $4::bigint - 1, i.partition
     FROM unnest($5::bigint[], $12::int[]) AS i (until, partition)
     ON CONFLICT (consumer, partition) WHERE ended_at IS NULL DO NOTHING
     RETURNING id, stream, stream_created_at, from_seq AS from_sequence,
until_seq AS until_sequence, again, aggregate_type, aggregate_id, event_type,
requested_at, requested_by, begun_at, removed_to, removed,
ended_at, outcome) SELECT to_json(it) FROM it;

-- begin a rewind
UPDATE public.inbox_rewinds SET begun_at = coalesce(begun_at, clock_timestamp()),
    reset_seq = coalesce(least(reset_seq, $3::bigint), 1)
WHERE id = $2 AND ended_at IS NULL AND EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $4::uuid) RETURNING reset_seq;

-- remove records
WITH rewind AS MATERIALIZED (
    SELECT id, requested_by, reason FROM public.inbox_rewinds
    WHERE id = $4 AND ended_at IS NULL AND removed_to = $5 AND EXISTS (SELECT FROM public.inbox_roles AS r
    WHERE r.consumer = $1 AND r.token = $7::uuid)
    FOR UPDATE
), done AS (
    DELETE FROM public.inbox_messages AS m
    USING unnest($2::uuid[], $3::timestamptz[]) AS i (message_id, event_time), rewind
    WHERE m.consumer = $1 AND m.message_id = i.message_id
        AND m.event_time = i.event_time AND m.status || '' = 'PROCESSED'
        AND m.event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
    FROM public.inbox_retention)
    RETURNING m.*
), attempts AS (
    DELETE FROM public.inbox_attempts AS a USING done
    WHERE a.consumer = done.consumer AND a.message_id = done.message_id
        AND a.event_time = done.event_time
), noted AS (
    INSERT INTO public.inbox_decisions (decision, decided_by, reason, consumer, message_id,
        event_time, subject, stream, stream_seq, attempts)
    SELECT 'rewind', rewind.requested_by, rewind.reason, consumer, message_id,
        event_time, subject, stream, stream_seq, attempts
    FROM done, rewind
), unhandled AS (
    UPDATE public.inbox_roles SET handled_to = $5, handled_stored_at = NULL
    FROM rewind WHERE consumer = $1 AND token = $7::uuid AND handled_to > $5
)
UPDATE public.inbox_rewinds AS r
SET removed_to = $6, removed = r.removed + (SELECT count(*) FROM done)
FROM rewind WHERE r.id = rewind.id RETURNING r.removed;

-- end a rewind
UPDATE public.inbox_rewinds SET ended_at = clock_timestamp(), outcome = $2
WHERE id = $1 AND ended_at IS NULL RETURNING id;
