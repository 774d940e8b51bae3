-- Messages that left the stream before the consumer was given them.

DO $do$
BEGIN
    -- An ALTER TABLE without effect waits for the transactions of handlers too.
    IF (SELECT count(*) FROM pg_attribute
            WHERE attrelid = $name${schema}.inbox_roles$name$::regclass
                AND attname IN ('seen_to', 'seen_given', 'seen_at', 'unread', 'unread_since')) < 5 THEN
        ALTER TABLE {schema}.inbox_roles
            ADD COLUMN IF NOT EXISTS seen_to BIGINT,
            ADD COLUMN IF NOT EXISTS seen_given BIGINT,
            ADD COLUMN IF NOT EXISTS seen_at TIMESTAMPTZ,
            ADD COLUMN IF NOT EXISTS unread BIGINT NOT NULL DEFAULT 0,
            ADD COLUMN IF NOT EXISTS unread_since TIMESTAMPTZ;
    END IF;
END
$do$;

COMMENT ON COLUMN {schema}.inbox_roles.seen_to IS 'up to this sequence of the stream no message was missed, or it was told';
COMMENT ON COLUMN {schema}.inbox_roles.seen_given IS 'how many deliveries the consumer had had up to there';
COMMENT ON COLUMN {schema}.inbox_roles.seen_at IS 'everything behind it was stored later';
COMMENT ON COLUMN {schema}.inbox_roles.unread IS 'at most so many messages of the consumer left the stream unread; an operator who has brought them sets 0';
COMMENT ON COLUMN {schema}.inbox_roles.unread_since IS 'they were published since then; NULL: nobody knows';
COMMENT ON COLUMN {schema}.inbox_control_audit.action IS 'pause, resume or close_breaker; unread: a worker told of messages that left the stream unread';
