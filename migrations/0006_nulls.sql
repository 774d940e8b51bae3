-- A producer that writes every column writes NULL where it has nothing, and one that copies rows writes
-- the transaction that inserted the original. A row gets its time, if it has none, and its own
-- transaction when it is inserted, so that the log and the table agree. Numbers below 4 are no
-- transaction's: a relay writes them.
CREATE OR REPLACE FUNCTION {schema}.tailpost_fill() RETURNS TRIGGER
LANGUAGE plpgsql SET search_path = pg_catalog SET TimeZone = 'UTC' AS $fill$
BEGIN
    NEW.{occurred_at} := coalesce(NEW.{occurred_at}, now());
    IF NEW.txid IS NULL OR NEW.txid >= '4' THEN
        NEW.txid := pg_current_xact_id();
    END IF;
    RETURN NEW;
END
$fill$;

DO $trigger$
BEGIN
    -- What decides about a row's partition, or is generated, no trigger changes.
    IF NOT EXISTS (
        SELECT FROM pg_attribute LEFT JOIN pg_partitioned_table ON partrelid = attrelid
        WHERE attrelid = $name${table}$name$::regclass
          AND attname = (parse_ident($name${occurred_at}$name$))[1]
          AND (attgenerated <> '' OR attnum = ANY (partattrs))
    ) THEN
        CREATE OR REPLACE TRIGGER tailpost_fill BEFORE INSERT ON {table}
        FOR EACH ROW WHEN (
            NEW.{occurred_at} IS NULL OR NEW.txid IS NULL
            OR NEW.txid <> pg_current_xact_id() AND NEW.txid >= '4'
        )
        EXECUTE FUNCTION {schema}.tailpost_fill();
    END IF;
END
$trigger$;

-- Of rows from before, the version says which transaction inserted it, as in the relay's own statements.
CREATE OR REPLACE VIEW {schema}.outbox_status AS
SELECT
    {id} AS id,
    CASE
        WHEN published_at IS NOT NULL OR is_covered THEN 'PUBLISHED'
        WHEN publish_attempts > 0 THEN 'RETRYING'
        ELSE 'PENDING'
    END AS status,
    {aggregate_type}::TEXT AS aggregate_type, {aggregate_id}::TEXT AS aggregate_id,
    {event_type}::TEXT AS event_type, {event_version}::INT AS event_version,
    {occurred_at}::TIMESTAMPTZ AS occurred_at,
    publish_attempts,
    CASE WHEN published_at IS NOT NULL OR NOT is_covered THEN publish_error END AS publish_error,
    CASE WHEN published_at IS NOT NULL OR NOT is_covered THEN next_attempt_at END AS next_attempt_at,
    published_at, stream, stream_seq, commit_lsn,
    NULL::TIMESTAMPTZ AS dead_at, NULL::TEXT AS reason, NULL::TIMESTAMPTZ AS discarded_at
FROM {table} AS event
CROSS JOIN LATERAL (
    SELECT coalesce(event.txid, (greatest(upcoming - mod(upcoming - event.xmin::TEXT::NUMERIC
        + 4294967296, 4294967296), 0))::TEXT::XID8) AS txid
    FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::TEXT::NUMERIC AS upcoming) AS transactions
) AS inserted
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT FROM {schema}.tailpost_published AS published
        WHERE NOT pg_visible_in_snapshot(inserted.txid, published.start_snapshot)
          AND pg_visible_in_snapshot(inserted.txid, published.end_snapshot)
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
FROM {schema}.outbox_dead_letter;
