-- Events that are published once more, and the clusters that the table has been in.

CREATE TABLE IF NOT EXISTS {schema}.tailpost_replays (
    id             UUID PRIMARY KEY,
    slot           TEXT NOT NULL,
    status         TEXT NOT NULL DEFAULT 'asked'
                   CHECK (status IN ('asked', 'running', 'paused', 'cancelled', 'done')),
    source         TEXT NOT NULL CHECK (source IN ('table', 'stream', 'wal')),
    stream         TEXT NOT NULL,
    from_lsn       PG_LSN,
    to_lsn         PG_LSN,
    since          TIMESTAMPTZ,
    until          TIMESTAMPTZ,
    event_ids      UUID[],
    aggregate_type TEXT,
    aggregate_id   TEXT,
    event_type     TEXT,
    subject_prefix TEXT CHECK (length(subject_prefix) <= 200
                       AND subject_prefix ~ '^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$'),
    per_second     INT CHECK (per_second > 0),
    asked_by       TEXT NOT NULL,
    reason         TEXT NOT NULL,
    asked_at       TIMESTAMPTZ NOT NULL DEFAULT now(),
    decisions      JSONB NOT NULL DEFAULT '[]',
    events         BIGINT,
    first_place    BIGINT NOT NULL DEFAULT 1 CHECK (first_place > 0),
    last_place     BIGINT NOT NULL,
    place          BIGINT NOT NULL DEFAULT 0,
    published      BIGINT NOT NULL DEFAULT 0,
    stream_seq     BIGINT NOT NULL DEFAULT 0,
    started_at     TIMESTAMPTZ,
    noted_at       TIMESTAMPTZ,
    ended_at       TIMESTAMPTZ,
    log_from       PG_LSN,
    waits_for      TEXT,
    CHECK ((aggregate_type IS NULL) = (aggregate_id IS NULL)),
    CHECK (array_position(event_ids, NULL) IS NULL),
    CHECK (isfinite(since) AND isfinite(until))
);

-- What a replay from the table is to publish, in this order, and what it could not.
CREATE TABLE IF NOT EXISTS {schema}.tailpost_replay_events (
    replay     UUID NOT NULL,
    place      BIGINT NOT NULL,
    event      UUID NOT NULL,
    commit_lsn PG_LSN,
    ordinal    INT,
    problem    TEXT,
    PRIMARY KEY (replay, place)
);

-- When the log was where, so that the rewind slot keeps nothing that is too old.
CREATE TABLE IF NOT EXISTS {schema}.tailpost_rewind_marks (
    slot TEXT NOT NULL,
    lsn  PG_LSN NOT NULL,
    at   TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (slot, lsn)
);

-- A position in the log means something only in the cluster that wrote it.
CREATE TABLE IF NOT EXISTS {schema}.tailpost_epochs (
    system_identifier TEXT NOT NULL,
    timeline          INT NOT NULL,
    began_at          TIMESTAMPTZ NOT NULL DEFAULT now(),
    PRIMARY KEY (system_identifier, timeline)
);

COMMENT ON COLUMN {schema}.tailpost_replays.events IS 'how many were selected; null where only reading the stream tells';
COMMENT ON COLUMN {schema}.tailpost_replays.place IS 'everything up to here is done: a number of tailpost_replay_events, a sequence of the stream, or how many events of the log were meant';
COMMENT ON COLUMN {schema}.tailpost_replays.stream_seq IS 'no copy beyond place is in the stream up to here';
COMMENT ON COLUMN {schema}.tailpost_replays.decisions IS 'who paused, resumed or cancelled it, when, and why';
COMMENT ON COLUMN {schema}.tailpost_replays.log_from IS 'where the rewind slot was when it was asked for; place counts from there';
COMMENT ON COLUMN {schema}.tailpost_replays.waits_for IS 'why it does not get on now';

-- What became of the rewind slot, which keeps the log for replays.
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
