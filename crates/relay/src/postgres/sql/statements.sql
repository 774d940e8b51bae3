-- What a relay runs again and again on the outbox, with the default settings.
-- A test writes this: UPDATE_PAGES=1 cargo test statements_are_written_down

-- mark rows
UPDATE "public"."outbox_events" o
SET published_at = clock_timestamp(), stream_seq = u.seq, commit_lsn = u.lsn,
    stream = CASE WHEN u.seq IS NOT NULL THEN $4::text END,
    publish_error = CASE WHEN u.seq IS NULL THEN 'dropped by a route' END,
    next_attempt_at = NULL
FROM unnest($1::uuid[], $2::bigint[], $3::pg_lsn[]) AS u (id, seq, lsn)
WHERE o."id" = u.id AND o."id" = ANY($1) AND (published_at IS NULL)::int <> 0;

-- mark rows of the last day
UPDATE "public"."outbox_events" o
SET published_at = clock_timestamp(), stream_seq = u.seq, commit_lsn = u.lsn,
    stream = CASE WHEN u.seq IS NOT NULL THEN $4::text END,
    publish_error = CASE WHEN u.seq IS NULL THEN 'dropped by a route' END,
    next_attempt_at = NULL
FROM unnest($1::uuid[], $2::bigint[], $3::pg_lsn[]) AS u (id, seq, lsn)
WHERE o."id" = u.id AND o."id" = ANY($1) AND (published_at IS NULL)::int <> 0 AND o.inserted_at >= now() - interval '1 day' RETURNING o."id";

-- mark rows that are not locked
WITH resolved AS (
    SELECT id, stream_seq, commit_lsn,
        CASE WHEN false OR stream_seq IS NOT NULL THEN $4::text END AS stream
    FROM unnest($1::uuid[], $2::bigint[], $3::pg_lsn[]) AS u (id, stream_seq, commit_lsn)
), there AS MATERIALIZED (
    SELECT o."id" AS id FROM "public"."outbox_events" o WHERE o."id" = ANY($1) AND (published_at IS NULL)::int <> 0
), free AS MATERIALIZED (
    SELECT o."id" AS id FROM "public"."outbox_events" o WHERE o."id" = ANY($1) AND (published_at IS NULL)::int <> 0
    FOR NO KEY UPDATE SKIP LOCKED
), done AS (
    UPDATE "public"."outbox_events" o SET published_at = clock_timestamp(), stream_seq = u.stream_seq, commit_lsn = u.commit_lsn,
stream = u.stream, publish_error = CASE WHEN u.stream IS NULL THEN 'dropped by a route' END,
next_attempt_at = NULL FROM resolved u WHERE o."id" = u.id AND o."id" = ANY (ARRAY(SELECT id FROM free))
        AND (published_at IS NULL)::int <> 0
    RETURNING o."id" AS id, o.published_at IS NOT NULL AS is_taken
), marked AS (SELECT id FROM done WHERE is_taken), owed AS (
    INSERT INTO "public"."tailpost_owed" (id, stream, stream_seq, commit_lsn, reason)
    SELECT u.id, u.stream, u.stream_seq, u.commit_lsn,
        CASE WHEN u.id IN (SELECT id FROM free) THEN 'a trigger leaves the row as it is' END
    FROM resolved u
    WHERE u.id IN (SELECT id FROM there) AND u.id NOT IN (SELECT id FROM marked)
    ON CONFLICT (id) DO UPDATE SET owed_at = excluded.owed_at, reason = excluded.reason
    RETURNING id
)
SELECT id, false FROM marked UNION ALL SELECT id, true FROM owed;

-- the same, of those that the stream may lack
WITH resolved AS (
    SELECT id, stream_seq, commit_lsn,
        CASE WHEN true OR stream_seq IS NOT NULL THEN $4::text END AS stream
    FROM unnest($1::uuid[], $2::bigint[], $3::pg_lsn[]) AS u (id, stream_seq, commit_lsn)
), there AS MATERIALIZED (
    SELECT o."id" AS id FROM "public"."outbox_events" o WHERE o."id" = ANY($1) AND (published_at IS NULL)::int <> 0
), free AS MATERIALIZED (
    SELECT o."id" AS id FROM "public"."outbox_events" o WHERE o."id" = ANY($1) AND (published_at IS NULL)::int <> 0
    FOR NO KEY UPDATE SKIP LOCKED
), done AS (
    UPDATE "public"."outbox_events" o SET published_at = clock_timestamp(), stream_seq = u.stream_seq, commit_lsn = u.commit_lsn,
stream = u.stream, publish_error = CASE WHEN u.stream IS NULL THEN 'dropped by a route' END,
next_attempt_at = NULL FROM resolved u WHERE o."id" = u.id AND o."id" = ANY (ARRAY(SELECT id FROM free))
        AND (published_at IS NULL)::int <> 0
    RETURNING o."id" AS id, o.published_at IS NOT NULL AS is_taken
), marked AS (SELECT id FROM done WHERE is_taken), owed AS (
    INSERT INTO "public"."tailpost_owed" (id, stream, stream_seq, commit_lsn, reason)
    SELECT u.id, u.stream, u.stream_seq, u.commit_lsn,
        CASE WHEN u.id IN (SELECT id FROM free) THEN 'a trigger leaves the row as it is' END
    FROM resolved u
    WHERE u.id IN (SELECT id FROM there) AND u.id NOT IN (SELECT id FROM marked)
    ON CONFLICT (id) DO UPDATE SET owed_at = excluded.owed_at, reason = excluded.reason
    RETURNING id
)
SELECT id, false FROM marked UNION ALL SELECT id, true FROM owed;

-- watermark
UPDATE "public"."tailpost_state" SET watermark_snapshot = $2::text::pg_snapshot,
    watermark_lsn = $3, watermark_at = now(), updated_at = now(),
    swept_snapshot = $4::text::pg_snapshot, swept_lsn = $5
WHERE slot = $1
RETURNING pg_current_xact_id()::text;

-- unmarked rows
SELECT o."id", false, pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $3::text::pg_snapshot),
    coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8) >= pg_snapshot_xmax($3::text::pg_snapshot)
FROM "public"."outbox_events" o
WHERE o.published_at IS NULL AND NOT pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $1::text::pg_snapshot)
  AND pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $2::text::pg_snapshot)
  AND true AND NOT EXISTS (SELECT FROM "public"."tailpost_published" p WHERE NOT pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), p.start_snapshot)
AND pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), p.end_snapshot)) AND o."id" IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."tailpost_owed" w WHERE w.id = o."id" OFFSET 0);

-- unmarked rows since the last sweep
SELECT o."id", false, pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $3::text::pg_snapshot),
    coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8) >= pg_snapshot_xmax($3::text::pg_snapshot)
FROM "public"."outbox_events" o
WHERE o.published_at IS NULL AND NOT pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $1::text::pg_snapshot)
  AND pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $2::text::pg_snapshot)
  AND true AND NOT EXISTS (SELECT FROM "public"."tailpost_published" p WHERE NOT pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), p.start_snapshot)
AND pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), p.end_snapshot)) AND o."id" IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."tailpost_owed" w WHERE w.id = o."id" OFFSET 0) AND o.txid >= pg_snapshot_xmin($3::text::pg_snapshot) ORDER BY o.txid;

-- sweep dead letters
WITH there AS MATERIALIZED (SELECT o."id" AS id FROM "public"."outbox_events" o
WHERE o."id" = ANY (ARRAY(SELECT d.id FROM "public"."outbox_dead_letter" d)) AND (published_at IS NULL)::int <> 0
    AND NOT pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $1::text::pg_snapshot)
  AND pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $2::text::pg_snapshot)
  AND true AND o."id" IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."tailpost_owed" w WHERE w.id = o."id" OFFSET 0)), free AS MATERIALIZED (
        SELECT o."id" AS id FROM "public"."outbox_events" o
        WHERE o."id" = ANY (ARRAY(SELECT id FROM there)) AND (published_at IS NULL)::int <> 0
        FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM "public"."outbox_events" o WHERE o."id" = ANY (ARRAY(SELECT id FROM free))
        RETURNING o."id" AS id
    )
    INSERT INTO "public"."tailpost_owed" (id, parked, reason)
    SELECT DISTINCT id, true,
        CASE WHEN id = ANY (ARRAY(SELECT id FROM free)) THEN 'a trigger leaves the row as it is' END
    FROM there WHERE id <> ALL (ARRAY(SELECT id FROM gone)) ON CONFLICT (id) DO NOTHING;

-- leave dead letters' rows to be removed one by one
INSERT INTO "public"."tailpost_owed" (id, parked) SELECT DISTINCT id, true FROM (SELECT o."id" AS id FROM "public"."outbox_events" o
WHERE o."id" = ANY (ARRAY(SELECT d.id FROM "public"."outbox_dead_letter" d)) AND (published_at IS NULL)::int <> 0
    AND NOT pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $1::text::pg_snapshot)
  AND pg_visible_in_snapshot(coalesce(o.txid, (greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - mod(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - o.xmin::text::numeric
+ 4294967296, 4294967296), 0))::text::xid8), $2::text::pg_snapshot)
  AND true AND o."id" IS NOT NULL AND NOT EXISTS (SELECT FROM "public"."tailpost_owed" w WHERE w.id = o."id" OFFSET 0)) there
    ON CONFLICT (id) DO NOTHING;

-- what is published to
WITH own AS (
    SELECT slot, start_snapshot FROM "public"."tailpost_state"
    WHERE slot = $1 AND start_snapshot::text = $2::text
      AND (watermark_lsn IS NULL OR watermark_lsn <= $4)
    FOR UPDATE
), moved AS (
    UPDATE "public"."tailpost_published" p SET end_snapshot = $3::text::pg_snapshot, moved_at = now()
    FROM own WHERE p.start_snapshot::text = $2::text RETURNING p.moved_at
), begun AS (
    INSERT INTO "public"."tailpost_published" (start_snapshot, end_snapshot)
    SELECT start_snapshot, $3::text::pg_snapshot FROM own
    WHERE NOT EXISTS (SELECT FROM moved)
)
UPDATE "public"."tailpost_state" s SET watermark_snapshot = $3::text::pg_snapshot, watermark_lsn = $4,
    watermark_at = now(), updated_at = now(),
    swept_snapshot = $3::text::pg_snapshot, swept_lsn = $4
FROM own WHERE s.slot = own.slot
RETURNING pg_current_xact_id()::text;

-- note the end of the stream
WITH durable AS (SELECT set_config('synchronous_commit', 'local', true)) UPDATE "public"."tailpost_streams" SET last_seq = greatest(last_seq, $2, $4),
    event_seq = greatest(event_seq, $4::bigint),
    event_id = CASE WHEN coalesce(event_seq, 0) < $4 THEN $5::uuid ELSE event_id END
FROM durable
WHERE stream = $1 AND (last_seq < $2 OR coalesce(event_seq, 0) < $4)
    AND created = coalesce($3, created);

-- park an event
WITH ours AS MATERIALIZED (
    SELECT $17::int IS NULL OR EXISTS (
        SELECT FROM pg_replication_slots WHERE slot_name = $16::text AND active_pid = $17
    ) AS is_ours
), free AS MATERIALIZED (
    SELECT "id" AS id, publish_attempts FROM "public"."outbox_events"
    WHERE "id" = $1 AND (published_at IS NULL)::int <> 0 AND ($19 OR txid IS DISTINCT FROM '2'::xid8)
        AND (SELECT is_ours FROM ours) AND $18
    FOR UPDATE SKIP LOCKED
), left_there AS MATERIALIZED (
    SELECT FROM "public"."outbox_events" WHERE "id" = $1 AND (published_at IS NULL)::int <> 0 AND ($19 OR txid IS DISTINCT FROM '2'::xid8) AND $18
), wanted AS MATERIALIZED (
    SELECT FROM ours WHERE is_ours AND (true AND EXISTS (SELECT FROM free)
        OR EXISTS (SELECT FROM left_there)
            AND NOT EXISTS (SELECT FROM "public"."tailpost_owed" WHERE id = $1)
        OR NOT EXISTS (SELECT FROM "public"."outbox_events" WHERE "id" = $1))
), parked AS (
    INSERT INTO "public"."outbox_dead_letter" (id, aggregate_type, aggregate_id, event_type, event_version,
        payload, occurred_at, correlation_id, causation_id, headers, reason, publish_error,
        publish_attempts, seq, blocks, blocked_by)
    SELECT $1, $2, $3, $4, $5, "public".tailpost_jsonb(coalesce("public".tailpost_text(nullif($6::bytea, '')), 'null')), $7, $8, $9, "public".tailpost_jsonb($10::text), $11, $11,
        greatest($12, (SELECT max(publish_attempts) FROM free)), $13, $14, $15
    FROM wanted
    ON CONFLICT (id) DO NOTHING RETURNING id
), letter AS MATERIALIZED (
    SELECT id FROM parked UNION ALL SELECT id FROM "public"."outbox_dead_letter" WHERE id = $1
), gone AS (
    DELETE FROM "public"."outbox_events" WHERE "id" = ANY (ARRAY(SELECT id FROM free)) AND (published_at IS NULL)::int <> 0
        AND EXISTS (SELECT FROM letter)
    RETURNING "id"
), owed AS (
    INSERT INTO "public"."tailpost_owed" (id, parked, reason)
    SELECT $1, true, CASE WHEN EXISTS (SELECT FROM free) THEN 'a trigger leaves the row as it is' END
    FROM ours
    WHERE is_ours AND EXISTS (SELECT FROM letter) AND NOT EXISTS (SELECT FROM gone)
        AND EXISTS (SELECT FROM left_there)
    ON CONFLICT (id) DO NOTHING RETURNING id
)
SELECT EXISTS (SELECT FROM gone), EXISTS (SELECT FROM owed), (SELECT is_ours FROM ours),
    EXISTS (SELECT FROM letter) OR NOT EXISTS (SELECT FROM wanted);
