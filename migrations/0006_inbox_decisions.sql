-- Who decided what about an event of the inbox, and why. Payloads are left out: this is kept longer
-- than they may be.
CREATE TABLE IF NOT EXISTS {schema}.inbox_decisions (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    decided_at    TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    decision      TEXT NOT NULL CHECK (
                      decision IN ('requeue', 'reject', 'discard', 'mark_processed', 'purge')),
    decided_by    TEXT NOT NULL,
    reason        TEXT,
    consumer      TEXT NOT NULL,
    message_id    UUID NOT NULL,
    event_time    TIMESTAMPTZ NOT NULL,
    subject       TEXT,
    stream        TEXT,
    stream_seq    BIGINT,
    attempts      INT,
    cause         TEXT,
    failure       TEXT
);

CREATE INDEX IF NOT EXISTS idx_inbox_decisions_event ON {schema}.inbox_decisions (message_id);

COMMENT ON COLUMN {schema}.inbox_decisions.decided_by IS 'the role in the database, and who the client says it is';
COMMENT ON COLUMN {schema}.inbox_decisions.cause IS 'cause and failure: why it was a dead letter, if it was';
