-- Events without a row: a transactional message in the log, which the relay publishes as it does rows.
ALTER TABLE {schema}.tailpost_state
    ADD COLUMN IF NOT EXISTS wal_prefix TEXT,
    ADD COLUMN IF NOT EXISTS wal_seq    TEXT;

COMMENT ON COLUMN {schema}.tailpost_state.wal_prefix IS 'prefix of the log''s messages that the slot''s relay publishes; null while it takes none (relay.wal_messages)';
COMMENT ON COLUMN {schema}.tailpost_state.wal_seq IS 'sequence that numbers rows and such messages in the order in which they were written; null once the slot has no messages to bring';

-- Writes an event into the log alone, with the parameters of outbox_emit. It is published if the
-- transaction commits. It runs with its owner's rights: callers need none on the tables, and whoever
-- makes functions in this schema must not be called by it, hence the names in full.
CREATE OR REPLACE FUNCTION {schema}.outbox_emit_wal(
    aggregate_type TEXT,
    aggregate_id   TEXT,
    event_type     TEXT,
    payload        JSONB,
    event_version  INT DEFAULT 1,
    correlation_id UUID DEFAULT NULL,
    causation_id   UUID DEFAULT NULL,
    headers        JSONB DEFAULT NULL,
    id             UUID DEFAULT gen_random_uuid()
) RETURNS UUID
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $emit$
#variable_conflict use_variable
DECLARE
    state RECORD;
    event UUID := coalesce(id, pg_catalog.gen_random_uuid());
BEGIN
    IF aggregate_type IS NULL OR aggregate_id IS NULL OR event_type IS NULL OR payload IS NULL THEN
        RAISE not_null_violation USING MESSAGE =
            'aggregate_type, aggregate_id, event_type and payload must not be null';
    END IF;
    -- Before there is a slot that holds the message for a relay, it would be lost.
    SELECT wal_prefix, wal_seq INTO state FROM tailpost_state
    WHERE wal_prefix IS NOT NULL AND start_snapshot IS NOT NULL AND start_lsn IS NOT NULL
    LIMIT 1;
    IF NOT FOUND THEN
        RAISE object_not_in_prerequisite_state USING
            MESSAGE = 'no relay takes events that have no row',
            HINT = 'Set relay.wal_messages = true and run `tailpost setup`, or call outbox_emit.';
    END IF;
    PERFORM pg_catalog.pg_logical_emit_message(true, state.wal_prefix, pg_catalog.convert_to(pg_catalog.jsonb_build_object(
        'id', event,
        'aggregate_type', aggregate_type,
        'aggregate_id', aggregate_id,
        'event_type', event_type,
        'event_version', coalesce(event_version, 1),
        'occurred_at', pg_catalog.now(),
        'correlation_id', correlation_id,
        'causation_id', causation_id,
        'headers', headers,
        'seq', pg_catalog.nextval(state.wal_seq::pg_catalog.regclass),
        'payload', payload
    )::pg_catalog.text, 'UTF8'::pg_catalog.name));
    RETURN event;
END
$emit$;
