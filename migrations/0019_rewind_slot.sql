-- What became of the rewind slot, what a replay of the log was promised, and replays to other streams.

CREATE TABLE IF NOT EXISTS {schema}.tailpost_rewind (
    slot         TEXT PRIMARY KEY,
    is_ours      BOOLEAN NOT NULL DEFAULT FALSE,
    made         BIGINT NOT NULL DEFAULT 0,
    made_at      TIMESTAMPTZ,
    made_because TEXT,
    losses       INT NOT NULL DEFAULT 0,
    lost_at      TIMESTAMPTZ,
    failure      TEXT,
    failed_at    TIMESTAMPTZ
);

COMMENT ON COLUMN {schema}.tailpost_rewind.is_ours IS 'whether the slot of that name is the relay''s to move and to drop';
COMMENT ON COLUMN {schema}.tailpost_rewind.made IS 'how often the slot was made';
COMMENT ON COLUMN {schema}.tailpost_rewind.losses IS 'how often in a row PostgreSQL gave the slot up within an hour';
COMMENT ON COLUMN {schema}.tailpost_rewind.failure IS 'why the slot cannot be kept now; null if it can';

INSERT INTO {schema}.tailpost_rewind (slot, is_ours)
SELECT DISTINCT slot, TRUE FROM {schema}.tailpost_rewind_marks
ON CONFLICT DO NOTHING;

ALTER TABLE {schema}.tailpost_replays ADD COLUMN IF NOT EXISTS log_from PG_LSN;
ALTER TABLE {schema}.tailpost_replays ADD COLUMN IF NOT EXISTS to_stream TEXT;
ALTER TABLE {schema}.tailpost_replays ADD COLUMN IF NOT EXISTS waits_for TEXT;

COMMENT ON COLUMN {schema}.tailpost_replays.log_from IS 'where the rewind slot was when it was asked for; place counts from there';
COMMENT ON COLUMN {schema}.tailpost_replays.to_stream IS 'where copies are stored; null is the stream itself';
COMMENT ON COLUMN {schema}.tailpost_replays.waits_for IS 'why it does not get on now';
