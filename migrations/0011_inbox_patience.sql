-- Since when an event fails.

DO $do$
BEGIN
    -- An ALTER TABLE without effect waits for the transactions of handlers too.
    IF NOT EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = $name${schema}.inbox_messages$name$::regclass
                AND attname = 'tried_since') THEN
        ALTER TABLE {schema}.inbox_messages ADD COLUMN tried_since TIMESTAMPTZ;
    END IF;
END
$do$;

COMMENT ON COLUMN {schema}.inbox_messages.tried_since IS 'when an attempt failed first, since it was requeued if it was';
COMMENT ON COLUMN {schema}.inbox_dead_letter.cause IS 'dead: the handler said so; max_attempts: it kept failing; expired: it kept failing for too long; crashes: it killed the process; unreadable: not an event; forgotten: older than the inbox remembers; unrecordable: the database refuses its record; gone: it left the stream before it was handled';
