-- What operators run on the tables of the inbox.
-- A test writes this: UPDATE_PAGES=1 cargo test statements_are_written_down

-- list letters
SELECT d.consumer, d.message_id, d.event_time, d.subject, d.stream, d.stream_seq,
d.attempts, d.cause, d.reason, d.dead_at, octet_length(d.payload) AS payload_bytes,
extract(epoch FROM clock_timestamp() - d.dead_at)::float8 AS age_seconds,
coalesce(m.status IN ('FAILED', 'PROCESSING'), FALSE) AS requeued,
m.status IS NOT NULL AS recorded, d.headers->'Aggregate-Type'->>0 AS aggregate_type,
d.headers->'Aggregate-Id'->>0 AS aggregate_id, d.headers->'Event-Type'->>0 AS event_type,
coalesce(d.headers->'Tailpost-Escaped'->>0, '') AS escaped FROM public.inbox_dead_letter d LEFT JOIN public.inbox_messages m ON m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time
     WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND coalesce(m.status, 'DEAD') IN ('DEAD', 'FAILED', 'PROCESSING')
         AND ($9::timestamptz IS NULL
             OR (d.dead_at, d.message_id, d.consumer) < ($9, $10, $11))
     ORDER BY d.dead_at DESC, d.message_id DESC, d.consumer DESC LIMIT $8;

-- list letters whole
SELECT d.consumer, d.message_id, d.event_time, d.subject, d.stream, d.stream_seq,
d.attempts, d.cause, d.reason, d.dead_at, octet_length(d.payload) AS payload_bytes,
extract(epoch FROM clock_timestamp() - d.dead_at)::float8 AS age_seconds,
coalesce(m.status IN ('FAILED', 'PROCESSING'), FALSE) AS requeued,
m.status IS NOT NULL AS recorded, d.headers->'Aggregate-Type'->>0 AS aggregate_type,
d.headers->'Aggregate-Id'->>0 AS aggregate_id, d.headers->'Event-Type'->>0 AS event_type,
coalesce(d.headers->'Tailpost-Escaped'->>0, '') AS escaped, d.headers, d.payload FROM public.inbox_dead_letter d LEFT JOIN public.inbox_messages m ON m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time
     WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND coalesce(m.status, 'DEAD') IN ('DEAD', 'FAILED', 'PROCESSING') ORDER BY d.dead_at, d.message_id LIMIT $8;

-- count letters
SELECT count(*), extract(epoch FROM clock_timestamp() - min(d.dead_at))::float8 FROM public.inbox_dead_letter d LEFT JOIN public.inbox_messages m ON m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time
     WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND coalesce(m.status, 'DEAD') IN ('DEAD', 'FAILED', 'PROCESSING');

-- count many letters
SELECT count(*), extract(epoch FROM clock_timestamp() - min(d.dead_at))::float8 FROM public.inbox_dead_letter d WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7);

-- group letters
WITH it AS (SELECT fingerprint, sum(letters)::bigint AS count, count(*) AS aggregates,
         sum(late)::bigint AS last_hour, min(first) AS first, max(last) AS last
     FROM (SELECT coalesce(substring(reason FROM '^[45][0-9]{2} '), '') ||
regexp_replace(regexp_replace(CASE WHEN reason ~ '-[0-9a-f]{4}-' THEN
regexp_replace(reason, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', '<id>', 'g')
ELSE reason END, '^[45][0-9]{2} ', ''), '[0-9]+', '<n>', 'g') AS fingerprint, aggregate, count(*) AS letters,
               count(*) FILTER (WHERE dead_at > now() - interval '1 hour') AS late,
               min(dead_at) AS first, max(dead_at) AS last
           FROM (SELECT reason, dead_at, (coalesce(d.headers->'Aggregate-Type'->>0 || ':'
    || (d.headers->'Aggregate-Id'->>0), d.message_id::text)) COLLATE "C" AS aggregate
                 FROM public.inbox_dead_letter d LEFT JOIN public.inbox_messages m ON m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time
     WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND coalesce(m.status, 'DEAD') IN ('DEAD', 'FAILED', 'PROCESSING') AND coalesce(m.status, 'DEAD') = 'DEAD' ORDER BY dead_at DESC LIMIT 10000) newest
           GROUP BY 1, 2) of_aggregate
     GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20) SELECT to_json(it) FROM it;

-- group many letters
WITH it AS (SELECT fingerprint, sum(letters)::bigint AS count, count(*) AS aggregates,
         sum(late)::bigint AS last_hour, min(first) AS first, max(last) AS last
     FROM (SELECT coalesce(substring(reason FROM '^[45][0-9]{2} '), '') ||
regexp_replace(regexp_replace(CASE WHEN reason ~ '-[0-9a-f]{4}-' THEN
regexp_replace(reason, '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', '<id>', 'g')
ELSE reason END, '^[45][0-9]{2} ', ''), '[0-9]+', '<n>', 'g') AS fingerprint, aggregate, count(*) AS letters,
               count(*) FILTER (WHERE dead_at > now() - interval '1 hour') AS late,
               min(dead_at) AS first, max(dead_at) AS last
           FROM (SELECT reason, dead_at, (coalesce(d.headers->'Aggregate-Type'->>0 || ':'
    || (d.headers->'Aggregate-Id'->>0), d.message_id::text)) COLLATE "C" AS aggregate
                 FROM public.inbox_dead_letter d WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) ORDER BY dead_at DESC LIMIT 10000) newest
           GROUP BY 1, 2) of_aggregate
     GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 20) SELECT to_json(it) FROM it;

-- page letters
SELECT d.dead_at, d.message_id, d.consumer FROM public.inbox_dead_letter d LEFT JOIN public.inbox_messages m ON m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time
     WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND coalesce(m.status, 'DEAD') IN ('DEAD', 'FAILED', 'PROCESSING') AND d.dead_at <= $8
         AND (d.dead_at, d.message_id, d.consumer) > ($9, $10, $11)
     ORDER BY d.dead_at, d.message_id, d.consumer LIMIT $12;

-- list decisions
WITH it AS (SELECT message_id, consumer, decided_at AS at, decision AS action, decided_by AS actor,
    reason AS why, failure AS reason, FALSE AS payload_replaced
FROM public.inbox_decisions WHERE message_id = ANY($1) ORDER BY id) SELECT to_json(it) FROM it;

-- list backlogs
WITH it AS (WITH begun AS (
         SELECT consumer,
             count(*) FILTER (WHERE status = 'PROCESSING') AS processing,
             count(*) FILTER (WHERE status = 'FAILED') AS failed,
             count(*) FILTER (WHERE attempts > 3) AS stubborn,
             extract(epoch FROM clock_timestamp() - min(event_time))::float8 AS oldest_seconds,
             (array_agg(last_error ORDER BY claimed_at DESC NULLS LAST)
                 FILTER (WHERE status = 'FAILED'))[1] AS last_error
         FROM public.inbox_messages WHERE status IN ('PROCESSING', 'FAILED') GROUP BY consumer
     ), dead AS (
         SELECT d.consumer, count(*) AS dead,
             extract(epoch FROM clock_timestamp() - min(d.dead_at))::float8 AS oldest_dead_letter_seconds
         FROM public.inbox_dead_letter d LEFT JOIN public.inbox_messages m ON m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time
         WHERE coalesce(m.status, 'DEAD') = 'DEAD' GROUP BY d.consumer
     )
     SELECT consumer, coalesce(processing, 0) AS processing, coalesce(failed, 0) AS failed,
         coalesce(stubborn, 0) AS stubborn, coalesce(dead, 0) AS dead, oldest_seconds,
         oldest_dead_letter_seconds, last_error
     FROM begun FULL JOIN dead USING (consumer) ORDER BY consumer) SELECT to_json(it) FROM it;

-- requeue letters
WITH done AS (
         UPDATE public.inbox_messages m SET status = 'FAILED', attempts = 0, finished_attempts = 0,
             next_attempt_at = clock_timestamp(), lease_token = NULL, expires_at = NULL,
             tried_since = NULL
         FROM public.inbox_dead_letter d
         WHERE m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time AND ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND ($10::timestamptz IS NULL OR d.dead_at = $10) AND m.status = 'DEAD'
             AND d.cause NOT IN ('unreadable', 'forgotten', 'gone')
         RETURNING d.*
     ), noted AS (
         INSERT INTO public.inbox_decisions (decision, decided_by, reason, consumer, message_id,
             event_time, subject, stream, stream_seq, attempts, cause, failure)
         SELECT 'requeue', session_user || ' (' || $8::text || ')', $9::text, consumer,
             message_id, event_time, subject, stream, stream_seq, attempts, cause, reason
         FROM done
     )
     SELECT consumer, message_id FROM done;

-- reject letters
WITH closed AS (
         UPDATE public.inbox_messages m SET status = 'REJECTED', outcome = 'reject'
         FROM public.inbox_dead_letter d
         WHERE m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time AND ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND ($10::timestamptz IS NULL OR d.dead_at = $10) AND m.status = 'DEAD'
         RETURNING m.consumer, m.message_id
     ), done AS (
         DELETE FROM public.inbox_dead_letter d
         WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND ($10::timestamptz IS NULL OR d.dead_at = $10) AND (
             EXISTS (SELECT FROM closed s
                     WHERE s.consumer = d.consumer AND s.message_id = d.message_id)
             OR NOT EXISTS (SELECT FROM public.inbox_messages m WHERE m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time))
         RETURNING d.*
     ), noted AS (
         INSERT INTO public.inbox_decisions (decision, decided_by, reason, consumer, message_id,
             event_time, subject, stream, stream_seq, attempts, cause, failure)
         SELECT 'reject', session_user || ' (' || $8::text || ')', $9::text, consumer,
             message_id, event_time, subject, stream, stream_seq, attempts, cause, reason
         FROM done
     )
     SELECT consumer, message_id FROM done;

-- discard letters
WITH closed AS (
         UPDATE public.inbox_messages m SET status = 'DEAD', outcome = 'discard'
         FROM public.inbox_dead_letter d
         WHERE m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time AND ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND ($10::timestamptz IS NULL OR d.dead_at = $10) AND m.status = 'DEAD'
         RETURNING m.consumer, m.message_id
     ), done AS (
         DELETE FROM public.inbox_dead_letter d
         WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7) AND ($10::timestamptz IS NULL OR d.dead_at = $10) AND (
             EXISTS (SELECT FROM closed s
                     WHERE s.consumer = d.consumer AND s.message_id = d.message_id)
             OR NOT EXISTS (SELECT FROM public.inbox_messages m WHERE m.consumer = d.consumer AND m.message_id = d.message_id
AND m.event_time = d.event_time))
         RETURNING d.*
     ), noted AS (
         INSERT INTO public.inbox_decisions (decision, decided_by, reason, consumer, message_id,
             event_time, subject, stream, stream_seq, attempts, cause, failure)
         SELECT 'discard', session_user || ' (' || $8::text || ')', $9::text, consumer,
             message_id, event_time, subject, stream, stream_seq, attempts, cause, reason
         FROM done
     )
     SELECT consumer, message_id FROM done;

-- note a reading
WITH done AS (SELECT d.* FROM public.inbox_dead_letter d WHERE ($1::text IS NULL OR d.consumer = $1)
AND ($2::uuid[] IS NULL OR d.message_id = ANY($2))
AND ($3::text[] IS NULL
     OR (d.headers->'Aggregate-Type'->>0, d.headers->'Aggregate-Id'->>0)
         IN (SELECT * FROM unnest($3::text[], $4::text[])))
AND ($5::text IS NULL OR d.headers->'Event-Type'->>0 = $5)
AND ($6::text IS NULL OR position(lower($6) IN lower(d.cause || ': ' || d.reason)) > 0)
AND ($7::timestamptz IS NULL OR d.dead_at >= $7)), noted AS (
         INSERT INTO public.inbox_decisions (decision, decided_by, reason, consumer, message_id,
             event_time, subject, stream, stream_seq, attempts, cause, failure)
         SELECT 'read', session_user || ' (' || $8::text || ')', $9::text, consumer,
             message_id, event_time, subject, stream, stream_seq, attempts, cause, reason
         FROM done
     )
     SELECT consumer, message_id FROM done;

-- mark processed
WITH marked AS (
    INSERT INTO public.inbox_messages AS m (consumer, message_id, event_time, subject, status,
        processed_at, outcome)
    VALUES ($1::text, $2::uuid, $3::timestamptz, '', 'PROCESSED', clock_timestamp(),
        'marked_processed')
    ON CONFLICT (consumer, message_id, event_time) DO UPDATE SET
        status = 'PROCESSED', processed_at = clock_timestamp(),
        outcome = 'marked_processed', lease_token = NULL, expires_at = NULL,
        next_attempt_at = NULL
    WHERE m.status IN ('FAILED', 'DEAD', 'REJECTED')
        OR m.status = 'PROCESSING' AND m.expires_at <= clock_timestamp()
    RETURNING m.*
), letter AS (
    DELETE FROM public.inbox_dead_letter d USING marked
    WHERE d.consumer = $1 AND d.message_id = $2
    RETURNING d.cause, d.reason
), noted AS (
    INSERT INTO public.inbox_decisions (decision, decided_by, reason, consumer, message_id,
        event_time, subject, stream, stream_seq, attempts, cause, failure)
    SELECT 'mark_processed', session_user || ' (' || $4::text || ')', $5::text, $1, $2,
        event_time, subject, stream, stream_seq, attempts, letter.cause,
        coalesce(letter.reason, last_error)
    FROM marked LEFT JOIN letter ON TRUE
)
SELECT CASE
    WHEN EXISTS (SELECT FROM marked) THEN 'marked'
    WHEN EXISTS (SELECT FROM public.inbox_messages WHERE consumer = $1 AND message_id = $2
        AND event_time = $3 AND status = 'PROCESSED') THEN 'processed'
    ELSE 'leased'
END;

-- try an event now
WITH due AS (
    UPDATE public.inbox_messages SET next_attempt_at = clock_timestamp()
    WHERE consumer = $1::text AND message_id = $2::uuid AND status = 'FAILED'
    RETURNING *
)
INSERT INTO public.inbox_decisions (decision, decided_by, reason, consumer, message_id,
    event_time, subject, stream, stream_seq, attempts, failure)
SELECT 'try_now', session_user || ' (' || $3::text || ')', $4::text, consumer, message_id,
    event_time, subject, stream, stream_seq, attempts, last_error
FROM due RETURNING id;

-- list what fails
WITH it AS (SELECT consumer, message_id AS event_id, attempts, last_error, next_attempt_at
FROM (
    SELECT *, row_number() OVER (PARTITION BY consumer ORDER BY event_time, message_id)
        AS place
    FROM public.inbox_messages
    WHERE status IN ('PROCESSING', 'FAILED') AND last_error IS NOT NULL
        AND attempts > (status = 'PROCESSING')::int
) AS failing
WHERE place <= $1 ORDER BY consumer, place) SELECT to_json(it) FROM it;

-- name the database
SELECT concat_ws('/', extract(epoch FROM pg_postmaster_start_time()), current_database(),
$1::text);

-- look up events
SELECT message_id, 'DEAD' AS status, attempts, cause || ': ' || reason AS error, 0 AS rank
FROM public.inbox_dead_letter WHERE consumer = $1 AND message_id = ANY($2)
UNION ALL
SELECT message_id, status, attempts, last_error, CASE status WHEN 'PROCESSED' THEN 2 ELSE 1 END
FROM public.inbox_messages WHERE consumer = $1 AND message_id = ANY($2)
ORDER BY rank;

-- explain: records
WITH it AS (SELECT m.consumer, m.status, m.attempts, m.finished_attempts, m.received_at, m.claimed_at,
    m.processed_at, m.next_attempt_at, m.lease_owner AS worker, m.outcome, m.last_error,
    json_build_object('stream', m.stream, 'seq', m.stream_seq) AS place
FROM public.inbox_roles r
JOIN public.inbox_messages m ON m.consumer = r.consumer AND m.message_id = $1
WHERE r.partition = 0
ORDER BY m.consumer, m.event_time) SELECT to_json(it) FROM it;

-- explain: attempts
WITH it AS (SELECT a.message_id, a.consumer, a.failed_at, a.attempt, a.code, a.took_ms, a.reason,
    a.worker
FROM public.inbox_roles r
JOIN public.inbox_messages m ON m.consumer = r.consumer AND m.message_id = ANY($1)
JOIN public.inbox_attempts a ON a.event_time = m.event_time
    AND a.message_id = m.message_id AND a.consumer = m.consumer
WHERE r.partition = 0
ORDER BY a.consumer, a.id) SELECT to_json(it) FROM it;

-- attempts that failed, by answer
WITH it AS (SELECT code, count(*) AS count, max(failed_at) AS last_at,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY took_ms) AS took_ms
FROM (SELECT * FROM public.inbox_attempts ORDER BY id DESC LIMIT 10000) AS newest
WHERE consumer = $1 AND failed_at > clock_timestamp() - interval '15 min'
GROUP BY code ORDER BY count DESC, code) SELECT to_json(it) FROM it;

-- explain: letters
WITH it AS (SELECT d.consumer, d.cause, d.reason, d.dead_at,
    json_build_object('stream', d.stream, 'seq', d.stream_seq) AS place
FROM public.inbox_roles r
JOIN public.inbox_dead_letter d ON d.consumer = r.consumer AND d.message_id = $1
WHERE r.partition = 0
ORDER BY d.consumer) SELECT to_json(it) FROM it;

-- consumers
SELECT consumer FROM public.inbox_roles WHERE partition = 0 ORDER BY consumer;

-- pause a consumer
WITH changed AS (INSERT INTO public.inbox_controls AS c (consumer, paused_at, paused_by, reason)
VALUES ($1, clock_timestamp(), $2, $4)
ON CONFLICT (consumer) DO UPDATE SET paused_at = EXCLUDED.paused_at,
    paused_by = EXCLUDED.paused_by, reason = EXCLUDED.reason
WHERE c.paused_at IS NULL
RETURNING consumer)
INSERT INTO public.inbox_control_audit (consumer, action, actor, via, why)
SELECT consumer, 'pause', session_user || ' (' || $2::text || ')', $3, $4 FROM changed
RETURNING id;

-- resume a consumer
WITH changed AS (UPDATE public.inbox_controls SET paused_at = NULL, paused_by = NULL, reason = NULL
WHERE consumer = $1 AND paused_at IS NOT NULL
RETURNING consumer)
INSERT INTO public.inbox_control_audit (consumer, action, actor, via, why)
SELECT consumer, 'resume', session_user || ' (' || $2::text || ')', $3, $4 FROM changed
RETURNING id;

-- close a breaker
WITH changed AS (INSERT INTO public.inbox_controls AS c (consumer, breaker_closings) VALUES ($1, 1)
ON CONFLICT (consumer) DO UPDATE SET breaker_closings = c.breaker_closings + 1
RETURNING consumer)
INSERT INTO public.inbox_control_audit (consumer, action, actor, via, why)
SELECT consumer, 'close_breaker', session_user || ' (' || $2::text || ')', $3, $4 FROM changed
RETURNING id;

-- list who wanted what
WITH it AS (SELECT at, action, actor, via, why, FALSE AS payload_replaced
FROM public.inbox_control_audit WHERE consumer = $1 ORDER BY id DESC LIMIT $2) SELECT to_json(it) FROM it;

-- plan a rewind
SELECT CASE
    WHEN m.status = 'PROCESSED' AND NOT i.meant THEN 'others'
    WHEN m.status = 'PROCESSED' AND i.event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
    FROM public.inbox_retention) THEN 'processed'
    WHEN m.status = 'PROCESSED' THEN 'kept'
    WHEN m.status IN ('DEAD', 'REJECTED') THEN lower(m.status)
    WHEN m.status IS NOT NULL THEN 'unfinished'
    WHEN i.event_time >= (SELECT coalesce(max(forgotten_before), '-infinity')
    FROM public.inbox_retention) THEN 'new'
    ELSE 'forgotten'
END, count(*)
FROM unnest($2::uuid[], $3::timestamptz[], $4::bool[])
    AS i (message_id, event_time, meant)
LEFT JOIN public.inbox_messages AS m ON m.consumer = $1 AND m.message_id = i.message_id
    AND m.event_time = i.event_time
GROUP BY 1;

-- find the pending rewind
WITH it AS (SELECT min(id) AS id, min(stream) AS stream,
min(stream_created_at) AS stream_created_at, min(from_seq) AS from_sequence,
max(until_seq) AS until_sequence, bool_or(again) AS again,
min(aggregate_type) AS aggregate_type, min(aggregate_id) AS aggregate_id,
min(event_type) AS event_type, min(requested_at) AS requested_at,
min(requested_by) AS requested_by, min(begun_at) AS begun_at, min(removed_to) AS removed_to,
sum(removed)::bigint AS removed,
CASE WHEN bool_and(ended_at IS NOT NULL) THEN max(ended_at) END AS ended_at,
CASE WHEN bool_and(ended_at IS NOT NULL)
    THEN coalesce(max(outcome) FILTER (WHERE outcome <> 'rewound'), 'rewound') END AS outcome FROM public.inbox_rewinds WHERE consumer = $1 AND partition < $2 AND ended_at IS NULL HAVING count(*) > 0) SELECT to_json(it) FROM it;

-- find a rewind
WITH it AS (SELECT min(id) AS id, min(stream) AS stream,
min(stream_created_at) AS stream_created_at, min(from_seq) AS from_sequence,
max(until_seq) AS until_sequence, bool_or(again) AS again,
min(aggregate_type) AS aggregate_type, min(aggregate_id) AS aggregate_id,
min(event_type) AS event_type, min(requested_at) AS requested_at,
min(requested_by) AS requested_by, min(begun_at) AS begun_at, min(removed_to) AS removed_to,
sum(removed)::bigint AS removed,
CASE WHEN bool_and(ended_at IS NOT NULL) THEN max(ended_at) END AS ended_at,
CASE WHEN bool_and(ended_at IS NOT NULL)
    THEN coalesce(max(outcome) FILTER (WHERE outcome <> 'rewound'), 'rewound') END AS outcome FROM public.inbox_rewinds WHERE (consumer, requested_at) =
         (SELECT consumer, requested_at FROM public.inbox_rewinds WHERE id = $1) HAVING count(*) > 0) SELECT to_json(it) FROM it;

-- list rewinds
WITH it AS (SELECT min(id) AS id, min(stream) AS stream,
min(stream_created_at) AS stream_created_at, min(from_seq) AS from_sequence,
max(until_seq) AS until_sequence, bool_or(again) AS again,
min(aggregate_type) AS aggregate_type, min(aggregate_id) AS aggregate_id,
min(event_type) AS event_type, min(requested_at) AS requested_at,
min(requested_by) AS requested_by, min(begun_at) AS begun_at, min(removed_to) AS removed_to,
sum(removed)::bigint AS removed,
CASE WHEN bool_and(ended_at IS NOT NULL) THEN max(ended_at) END AS ended_at,
CASE WHEN bool_and(ended_at IS NOT NULL)
    THEN coalesce(max(outcome) FILTER (WHERE outcome <> 'rewound'), 'rewound') END AS outcome, consumer, min(reason) AS why FROM public.inbox_rewinds
     WHERE $1::text IS NULL OR consumer = $1
     GROUP BY consumer, requested_at ORDER BY requested_at DESC LIMIT $2) SELECT to_json(it) FROM it;

-- cancel a rewind
WITH cancelled AS (
         UPDATE public.inbox_rewinds AS it SET ended_at = clock_timestamp(), outcome = 'cancelled'
         WHERE consumer = $1 AND ended_at IS NULL AND NOT EXISTS (
             SELECT FROM public.inbox_rewinds AS begun WHERE begun.consumer = $1
                 AND begun.requested_at = it.requested_at AND begun.begun_at IS NOT NULL)
         RETURNING *
     ), noted AS (
         INSERT INTO public.inbox_control_audit (consumer, action, actor, via, why)
         SELECT DISTINCT consumer, 'cancel_rewind', $2, $3, $4 FROM cancelled
     ), it AS (SELECT min(id) AS id, min(stream) AS stream,
min(stream_created_at) AS stream_created_at, min(from_seq) AS from_sequence,
max(until_seq) AS until_sequence, bool_or(again) AS again,
min(aggregate_type) AS aggregate_type, min(aggregate_id) AS aggregate_id,
min(event_type) AS event_type, min(requested_at) AS requested_at,
min(requested_by) AS requested_by, min(begun_at) AS begun_at, min(removed_to) AS removed_to,
sum(removed)::bigint AS removed,
CASE WHEN bool_and(ended_at IS NOT NULL) THEN max(ended_at) END AS ended_at,
CASE WHEN bool_and(ended_at IS NOT NULL)
    THEN coalesce(max(outcome) FILTER (WHERE outcome <> 'rewound'), 'rewound') END AS outcome FROM cancelled HAVING count(*) > 0) SELECT to_json(it) FROM it;
