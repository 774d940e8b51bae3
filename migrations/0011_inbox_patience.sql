-- Since when an event is tried that was requeued.

DO $do$
BEGIN
    -- An ALTER TABLE without effect waits for the transactions of handlers too.
    IF NOT EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = $name${schema}.inbox_messages$name$::regclass
                AND attname = 'requeued_at') THEN
        ALTER TABLE {schema}.inbox_messages ADD COLUMN requeued_at TIMESTAMPTZ;
    END IF;
END
$do$;

COMMENT ON COLUMN {schema}.inbox_messages.requeued_at IS 'since when it is tried again, if it was requeued; otherwise it is tried since received_at';
COMMENT ON COLUMN {schema}.inbox_dead_letter.cause IS 'dead: the handler said so; max_attempts: it kept failing; expired: it kept failing for too long; crashes: it killed the process; unreadable: not an event; forgotten: older than the inbox remembers; unrecordable: the database refuses its record; gone: it left the stream before it was handled';
