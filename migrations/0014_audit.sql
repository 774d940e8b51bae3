-- The audit is listed by time.

CREATE INDEX IF NOT EXISTS idx_outbox_dead_letter_audit_at ON {schema}.outbox_dead_letter_audit (at);
