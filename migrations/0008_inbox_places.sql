-- Up to where everything of a consumer is handled, and which of its former workers may be at work.

DO $do$
BEGIN
    -- An ALTER TABLE without effect waits for the transactions of handlers too.
    IF (SELECT count(*) FROM pg_attribute
            WHERE attrelid = $name${schema}.inbox_roles$name$::regclass
                AND attname IN ('unended', 'handled_to', 'handled_stream', 'handled_created',
                    'handled_stored_at')) < 5 THEN
        ALTER TABLE {schema}.inbox_roles
            ADD COLUMN IF NOT EXISTS unended TEXT[] NOT NULL DEFAULT ARRAY[]::TEXT[],
            ADD COLUMN IF NOT EXISTS handled_to BIGINT,
            ADD COLUMN IF NOT EXISTS handled_stream TEXT,
            ADD COLUMN IF NOT EXISTS handled_created TIMESTAMPTZ,
            ADD COLUMN IF NOT EXISTS handled_stored_at TIMESTAMPTZ;
    END IF;
END
$do$;

COMMENT ON COLUMN {schema}.inbox_roles.unended IS 'workers that had the role before, whose connections may not have been ended';
COMMENT ON COLUMN {schema}.inbox_roles.handled_to IS 'up to this sequence of the stream every event has its end in this database; acknowledgements may be a little ahead';
COMMENT ON COLUMN {schema}.inbox_roles.handled_created IS 'when the stream was created that handled_to is of';
COMMENT ON COLUMN {schema}.inbox_roles.handled_stored_at IS 'when the stream stored the message at handled_to: a stream with another message there came back without its last ones; NULL: nobody knows';
