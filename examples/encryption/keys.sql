-- A key for each person, in a database of its own: a backup of the outbox must not bring a key back.
CREATE TABLE person_keys (
    person       text PRIMARY KEY,
    kid          text NOT NULL UNIQUE,
    jwk          jsonb,       -- NULL: destroyed
    destroyed_at timestamptz,
    CHECK ((jwk IS NULL) = (destroyed_at IS NOT NULL))
);
