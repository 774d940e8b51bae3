-- Dead letters of messages whose bytes PostgreSQL cannot keep as text, and which stream they were in.

ALTER TABLE {schema}.inbox_dead_letter
    ADD COLUMN IF NOT EXISTS raw_headers BYTEA,
    ADD COLUMN IF NOT EXISTS stream_created_at TIMESTAMPTZ;

-- Later versions may have other causes.
ALTER TABLE {schema}.inbox_dead_letter DROP CONSTRAINT IF EXISTS inbox_dead_letter_cause_check;

COMMENT ON COLUMN {schema}.inbox_dead_letter.raw_headers IS 'the header block as it travelled, where headers cannot hold it';
COMMENT ON COLUMN {schema}.inbox_dead_letter.stream_created_at IS 'when the stream was created: one of the same name that was created later has other messages of the same sequences';
COMMENT ON COLUMN {schema}.inbox_dead_letter.cause IS 'dead: the handler said so; max_attempts: it kept failing; crashes: it killed the process; unreadable: not an event; forgotten: older than the inbox remembers; unrecordable: the database refuses its record; gone: it left the stream before it was handled';
