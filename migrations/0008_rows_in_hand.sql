-- Rows that somebody else has locked when the relay is done with their events: published, or parked.
-- Nobody looks at such a row again but who makes up for it, once the lock is gone.
CREATE TABLE IF NOT EXISTS {schema}.tailpost_owed (
    id         UUID PRIMARY KEY,
    parked     BOOLEAN NOT NULL DEFAULT FALSE,
    stream     TEXT,
    stream_seq BIGINT,
    commit_lsn PG_LSN,
    owed_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE {schema}.tailpost_owed IS 'events that are published or parked, whose rows were locked and have yet to be marked or removed';
COMMENT ON COLUMN {schema}.tailpost_owed.parked IS 'the row is to be removed, because the event is a dead letter';

-- An index with the keys themselves refuses keys beyond 2,704 bytes, which the outbox takes.
DROP INDEX IF EXISTS {schema}.idx_outbox_dead_letter_blocks;
CREATE INDEX IF NOT EXISTS idx_outbox_dead_letter_blocked ON {schema}.outbox_dead_letter USING hash (aggregate_id)
    WHERE blocks AND discarded_at IS NULL;

-- When the whole table was last looked at, which is due once an hour whoever does it.
ALTER TABLE {schema}.tailpost_state
    ADD COLUMN IF NOT EXISTS scanned_at TIMESTAMPTZ,
    ADD COLUMN IF NOT EXISTS whole_swept_at TIMESTAMPTZ;

COMMENT ON COLUMN {schema}.tailpost_state.scanned_at IS 'when a scan had last looked at the whole table';
COMMENT ON COLUMN {schema}.tailpost_state.whole_swept_at IS 'when a sweep had last looked at the whole table';

-- What a dead letter keeps of values that its columns do not take: their text, as a JSON string, or
-- bytes that are no text, escaped. So every event can be parked.
CREATE OR REPLACE FUNCTION {schema}.tailpost_jsonb(kept TEXT) RETURNS JSONB
LANGUAGE plpgsql IMMUTABLE AS $kept$
BEGIN
    RETURN kept::JSONB;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN to_jsonb(kept);
END
$kept$;

CREATE OR REPLACE FUNCTION {schema}.tailpost_json(kept TEXT) RETURNS JSON
LANGUAGE plpgsql IMMUTABLE AS $kept$
BEGIN
    RETURN kept::JSON;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN to_json(kept);
END
$kept$;

CREATE OR REPLACE FUNCTION {schema}.tailpost_text(kept BYTEA) RETURNS TEXT
LANGUAGE plpgsql IMMUTABLE AS $kept$
BEGIN
    RETURN convert_from(kept, 'UTF8');
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN encode(kept, 'escape');
END
$kept$;
