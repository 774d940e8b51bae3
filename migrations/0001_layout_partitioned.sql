-- The outbox of `tailpost setup --partitioned`, made before the first migration, which adds the rest.
-- The time of insertion is the relay's own column: what producers write elsewhere moves no row to
-- another partition, and makes none. There is no DEFAULT partition.
CREATE TABLE IF NOT EXISTS {table} (
    {id} UUID NOT NULL,
    {aggregate_type} TEXT NOT NULL,
    {aggregate_id} TEXT NOT NULL,
    {event_type} TEXT NOT NULL,
    {event_version} INT DEFAULT 1,
    {payload} JSONB NOT NULL,
    {occurred_at} TIMESTAMPTZ DEFAULT NOW(),
    {correlation_id} UUID,
    {causation_id} UUID,
    published_at TIMESTAMPTZ,
    publish_attempts INT DEFAULT 0,
    publish_error TEXT,
    inserted_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY ({id}, inserted_at)
) PARTITION BY RANGE (inserted_at);

COMMENT ON COLUMN {table}.inserted_at IS 'the day of it says which partition has the row; leave it to its default';
