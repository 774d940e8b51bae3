-- psql -v ON_ERROR_STOP=1 -f producer.sql "$DATABASE_URL"
BEGIN;

INSERT INTO orders (id, state, total_cents) VALUES ('o-sql', 'placed', 4200);

-- event_version, occurred_at, correlation_id, causation_id and headers may follow.
INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, payload)
VALUES (gen_random_uuid(), 'order', 'o-sql', 'OrderPlaced', '{"total_cents": 4200}');

COMMIT;
