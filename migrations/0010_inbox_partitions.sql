-- Consumers whose events are divided among several workers. One that is not divided has the partition 0.

DO $do$
BEGIN
    -- An ALTER TABLE without effect waits for the transactions of handlers too.
    IF NOT EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = $name${schema}.inbox_roles$name$::regclass AND attname = 'partition') THEN
        ALTER TABLE {schema}.inbox_roles
            ADD COLUMN partition INT NOT NULL DEFAULT 0,
            DROP CONSTRAINT inbox_roles_pkey,
            ADD PRIMARY KEY (consumer, partition);
    END IF;
    -- Either may have been dropped and made again.
    IF NOT EXISTS (SELECT FROM pg_attribute
            WHERE attrelid = $name${schema}.inbox_rewinds$name$::regclass AND attname = 'partition') THEN
        ALTER TABLE {schema}.inbox_rewinds ADD COLUMN partition INT NOT NULL DEFAULT 0;
        DROP INDEX IF EXISTS {schema}.idx_inbox_rewinds_pending;
        CREATE UNIQUE INDEX idx_inbox_rewinds_pending ON {schema}.inbox_rewinds (consumer, partition)
            WHERE ended_at IS NULL;
    END IF;
END
$do$;

COMMENT ON COLUMN {schema}.inbox_roles.owner IS 'the worker; empty if it gave the role back with nothing under way';

-- Workers of such consumers, as each said it last. Which of them has what, inbox_roles says.
CREATE TABLE IF NOT EXISTS {schema}.inbox_workers (
    consumer   TEXT NOT NULL,
    owner      TEXT NOT NULL,
    joined_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    expires_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (consumer, owner)
) WITH (fillfactor = 50);
