-- Partitions of the outbox by day: which are being removed, how many were, and which transaction
-- moved an outbox below a partitioned table, with what publishes it.

CREATE TABLE IF NOT EXISTS {schema}.tailpost_detached (
    partition TEXT PRIMARY KEY,
    since     TIMESTAMPTZ,
    until     TIMESTAMPTZ NOT NULL,
    noted_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE {schema}.tailpost_detached IS 'partitions of the outbox that retention detaches: each is dropped, or attached again if a row of it is needed';

ALTER TABLE {schema}.tailpost_retention
    ADD COLUMN IF NOT EXISTS partitions_dropped BIGINT NOT NULL DEFAULT 0;

ALTER TABLE {schema}.tailpost_state
    ADD COLUMN IF NOT EXISTS partitioned_txid XID8;

COMMENT ON COLUMN {schema}.tailpost_state.partitioned_txid IS 'the transaction that made the outbox a partition of a new table: the publication is as old as before, although its entry is not';
