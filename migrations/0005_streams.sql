-- How far each stream was filled. A stream that ends before that has lost messages that it had
-- acknowledged: it came back from a copy, or from before a power cut.

CREATE TABLE IF NOT EXISTS {schema}.tailpost_streams (
    stream    TEXT PRIMARY KEY,
    created   TEXT NOT NULL,
    last_seq  BIGINT NOT NULL,
    lost_at   TIMESTAMPTZ,
    lost      BIGINT NOT NULL DEFAULT 0,
    lost_rows BIGINT NOT NULL DEFAULT 0,
    event_seq BIGINT,
    event_id  UUID
);

COMMENT ON COLUMN {schema}.tailpost_streams.created IS 'when the stream was created of which the row tells';
COMMENT ON COLUMN {schema}.tailpost_streams.last_seq IS 'the highest sequence that is known to have been stored; no row names a later one';
COMMENT ON COLUMN {schema}.tailpost_streams.lost_at IS 'when the stream was last found to end before last_seq';
COMMENT ON COLUMN {schema}.tailpost_streams.lost IS 'how many sequences it lacked then';
COMMENT ON COLUMN {schema}.tailpost_streams.lost_rows IS 'how many rows named one of these, and are published again';
COMMENT ON COLUMN {schema}.tailpost_streams.event_seq IS 'the highest sequence at which an event was stored, as far as that is known; a stream that has another message there lost its end and has grown again';
COMMENT ON COLUMN {schema}.tailpost_streams.event_id IS 'the event that was stored there';
