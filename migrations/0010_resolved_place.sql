-- How far a relay had got when it wrote that down, for its successor, which may find that the stream
-- has lost the messages that would tell.

ALTER TABLE {schema}.tailpost_state
    ADD COLUMN IF NOT EXISTS resolved_lsn        PG_LSN,
    ADD COLUMN IF NOT EXISTS resolved_ordinal    BIGINT,
    ADD COLUMN IF NOT EXISTS resolved_stream_seq BIGINT,
    ADD COLUMN IF NOT EXISTS resolved_at         TIMESTAMPTZ,
    ADD COLUMN IF NOT EXISTS resolved_rules      BIGINT;

COMMENT ON COLUMN {schema}.tailpost_state.resolved_lsn IS 'events of the log are published, parked or dropped if they committed before this';
COMMENT ON COLUMN {schema}.tailpost_state.resolved_ordinal IS 'and so many of the transaction that committed there';
COMMENT ON COLUMN {schema}.tailpost_state.resolved_stream_seq IS 'the stream''s sequence that the next event of the log was to follow; null if other messages may come in between';
COMMENT ON COLUMN {schema}.tailpost_state.resolved_at IS 'when that was written down';
COMMENT ON COLUMN {schema}.tailpost_state.resolved_rules IS 'stands for the configuration and the stream by which events took sequences then';
