-- Which rows are published although they have no mark of their own (relay.mark = "watermark").

CREATE TABLE IF NOT EXISTS {schema}.tailpost_published (
    start_snapshot PG_SNAPSHOT NOT NULL,
    end_snapshot   PG_SNAPSHOT NOT NULL,
    begun_at       TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    moved_at       TIMESTAMPTZ NOT NULL DEFAULT NOW()
);

COMMENT ON TABLE {schema}.tailpost_published IS 'one row for each slot that was read without marking rows: those whose txid is not visible in the one snapshot, and visible in the other, are published';

-- The planner would take a table of which it knows nothing for one of many rows.
ANALYZE {schema}.tailpost_published;

-- As before, and knows of them. What an attempt before the successful one left is not shown for a
-- row that is published: nobody has removed it.
-- A view cannot change the types of its columns, and that of the version is the table's.
DO $migration$
DECLARE
    version TEXT;
BEGIN
    SELECT format_type(atttypid, atttypmod) INTO STRICT version FROM pg_attribute
    WHERE attrelid = $name${schema}.outbox_status$name$::regclass AND attname = 'event_version';
    EXECUTE replace($view$
CREATE OR REPLACE VIEW {schema}.outbox_status AS
SELECT
    {id} AS id,
    CASE
        WHEN published_at IS NOT NULL OR is_covered THEN 'PUBLISHED'
        WHEN publish_attempts > 0 THEN 'RETRYING'
        ELSE 'PENDING'
    END AS status,
    {aggregate_type}::TEXT AS aggregate_type, {aggregate_id}::TEXT AS aggregate_id,
    {event_type}::TEXT AS event_type, {event_version}::%version% AS event_version,
    {occurred_at}::TIMESTAMPTZ AS occurred_at,
    publish_attempts,
    CASE WHEN published_at IS NOT NULL OR NOT is_covered THEN publish_error END AS publish_error,
    CASE WHEN published_at IS NOT NULL OR NOT is_covered THEN next_attempt_at END AS next_attempt_at,
    published_at, stream, stream_seq, commit_lsn,
    NULL::TIMESTAMPTZ AS dead_at, NULL::TEXT AS reason, NULL::TIMESTAMPTZ AS discarded_at
FROM {table} AS event
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT FROM {schema}.tailpost_published AS published
        WHERE NOT pg_visible_in_snapshot(event.txid, published.start_snapshot)
          AND pg_visible_in_snapshot(event.txid, published.end_snapshot)
    ) AS is_covered
) AS covered
WHERE NOT EXISTS (SELECT FROM {schema}.outbox_dead_letter AS dead WHERE dead.id = event.{id})
UNION ALL
SELECT
    id,
    CASE WHEN discarded_at IS NULL THEN 'DEAD' ELSE 'DISCARDED' END,
    aggregate_type, aggregate_id, event_type, event_version, occurred_at,
    publish_attempts, publish_error, NULL,
    published_at, stream, stream_seq, commit_lsn,
    dead_at, reason, discarded_at
FROM {schema}.outbox_dead_letter
$view$, '%version%', version);
END
$migration$;
