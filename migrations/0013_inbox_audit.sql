-- The audit is listed by time.

CREATE INDEX IF NOT EXISTS idx_inbox_decisions_decided_at ON {schema}.inbox_decisions (decided_at);

CREATE INDEX IF NOT EXISTS idx_inbox_control_audit_at ON {schema}.inbox_control_audit (at);
