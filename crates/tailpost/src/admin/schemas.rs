//! What requests and answers look like, as JSON Schema.

use serde_json::{Map, Value, json};

use super::api::{LIMIT, LIMIT_MAX};

pub(super) fn text() -> Value {
    json!({ "type": "string" })
}

pub(super) fn uuid() -> Value {
    json!({ "type": "string", "format": "uuid" })
}

pub(super) fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

pub(super) fn flag() -> Value {
    json!({ "type": "boolean" })
}

pub(super) fn count() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX })
}

pub(super) fn number() -> Value {
    json!({ "type": "number" })
}

pub(super) fn one_of(words: &[&str]) -> Value {
    json!({ "type": "string", "enum": words })
}

/// An aggregate, written `type:id`.
pub(super) fn aggregate() -> Value {
    json!({ "type": "string", "pattern": "^[^:]+:[\\s\\S]+$", "examples": ["order:o-17"] })
}

pub(super) fn limit() -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": LIMIT_MAX, "default": LIMIT })
}

pub(super) fn list(of: Value) -> Value {
    json!({ "type": "array", "items": of })
}

pub(super) fn or_null(schema: Value) -> Value {
    json!({ "anyOf": [schema, { "type": "null" }] })
}

pub(super) fn named(component: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{component}") })
}

/// An answer, with what it always has.
pub(super) fn answer<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let version = ("schema_version", json!({ "type": "integer" }));
    object(fields.into_iter().chain([version]), [])
}

/// What it has, and what it may have.
pub(super) fn object<'a>(
    required: impl IntoIterator<Item = (&'a str, Value)>,
    optional: impl IntoIterator<Item = (&'a str, Value)>,
) -> Value {
    let mut properties: Map<String, Value> = Map::new();
    let mut names = Vec::new();
    for (name, schema) in required {
        names.push(name);
        properties.insert(name.to_owned(), schema);
    }
    for (name, schema) in optional {
        properties.insert(name.to_owned(), schema);
    }
    json!({ "type": "object", "required": names, "properties": properties })
}

/// A request, which has nothing else.
pub(super) fn request<'a>(
    required: impl IntoIterator<Item = (&'a str, Value)>,
    optional: impl IntoIterator<Item = (&'a str, Value)>,
) -> Value {
    let mut schema = object(required, optional);
    schema["additionalProperties"] = false.into();
    schema
}

/// What something is done for.
pub(super) fn reason() -> Value {
    json!({ "type": "string", "pattern": "\\S" })
}

/// Who changes something, and what for.
pub(super) fn change() -> [(&'static str, Value); 2] {
    [("by", or_null(text())), ("why", or_null(reason()))]
}

/// The same, where a reason is needed.
pub(super) fn final_change() -> Value {
    request([("why", reason())], [("by", or_null(text()))])
}

/// What an `Overview` has besides the dead letters.
pub(super) fn overview(letter: Value) -> Value {
    let group = object(
        [
            ("fingerprint", text()),
            ("count", count()),
            ("aggregates", count()),
            ("first", time()),
            ("last", time()),
        ],
        [],
    );
    let fields = [
        ("total", count()),
        ("oldest_seconds", or_null(number())),
        ("groups", list(group)),
        ("dead_letters", list(letter)),
    ];
    let version = [("schema_version", json!({ "type": "integer" }))];
    object(fields.into_iter().chain(version), [("next", next())])
}

/// The cursor of the next page, if there is one.
pub(super) fn next() -> Value {
    or_null(text())
}

/// What is referred to by name.
pub(super) fn components() -> Value {
    let audit = object(
        [("at", time()), ("action", text()), ("actor", text())],
        [("via", or_null(text())), ("why", or_null(text())), ("reason", or_null(text()))],
    );
    let detail = object(
        [("id", uuid()), ("state", text()), ("history", list(named("AuditEntry")))],
        [("dead_letter", or_null(json!({ "type": "object" }))), ("stream", or_null(text()))],
    );
    let problem = object(
        [("title", text()), ("status", json!({ "type": "integer" })), ("detail", text())],
        [("hint", or_null(text()))],
    );
    let outbox_letter = object(
        [
            ("id", uuid()),
            ("aggregate_type", text()),
            ("aggregate_id", text()),
            ("event_type", text()),
            ("dead_at", time()),
            ("reason", text()),
            ("blocks", flag()),
        ],
        [("attempts", or_null(count())), ("blocked_by", or_null(uuid()))],
    );
    let inbox_letter = object(
        [
            ("consumer", text()),
            ("id", uuid()),
            ("subject", text()),
            ("stream", text()),
            ("attempts", count()),
            ("cause", text()),
            ("reason", text()),
            ("dead_at", time()),
            ("requeued", flag()),
        ],
        [("aggregate_type", or_null(text())), ("event_type", or_null(text()))],
    );
    json!({
        "Problem": problem,
        "AuditEntry": audit,
        "DeadLetterDetail": detail,
        "OutboxDeadLetter": outbox_letter,
        "InboxDeadLetter": inbox_letter,
        "Event": event(),
        "Replay": replay(),
        "Slot": slot(),
        "Check": check(),
        "Consumer": consumer(),
        "Setting": object([("key", text()), ("origin", text()), ("value", json!({}))], []),
    })
}

/// An event of a search.
pub(super) const EVENT_STATES: [&str; 4] = ["pending", "published", "dead", "discarded"];

fn event() -> Value {
    object(
        [
            ("id", uuid()),
            ("state", one_of(&EVENT_STATES)),
            ("aggregate_type", text()),
            ("aggregate_id", text()),
            ("event_type", text()),
            ("occurred_at", or_null(time())),
            ("attempts", count()),
        ],
        [
            ("published_at", or_null(time())),
            ("stream", or_null(text())),
            ("stream_seq", or_null(count())),
            ("error", or_null(text())),
        ],
    )
}

fn replay() -> Value {
    let status = one_of(&["asked", "running", "paused", "cancelled", "done"]);
    object(
        [
            ("id", uuid()),
            ("slot", text()),
            ("stream", text()),
            ("status", status),
            ("source", one_of(&["table", "stream", "wal"])),
            ("asked_by", text()),
            ("reason", text()),
            ("asked_at", text()),
            ("published", count()),
            ("failed", count()),
            ("has_relay", flag()),
        ],
        [("events", or_null(count())), ("waits_for", or_null(text()))],
    )
}

fn slot() -> Value {
    object(
        [
            ("name", text()),
            ("is_configured", flag()),
            ("active", flag()),
            ("retained_bytes", count()),
        ],
        [("database", or_null(text())), ("wal_status", or_null(text()))],
    )
}

fn check() -> Value {
    let remedy = object([("kind", text()), ("text", text())], [("caution", text())]);
    object(
        [
            ("id", text()),
            ("category", text()),
            ("severity", one_of(&["ok", "skipped", "warning", "error"])),
            ("title", text()),
            ("evidence", text()),
            ("remedies", list(remedy)),
            ("docs", text()),
        ],
        [("subject", text())],
    )
}

fn consumer() -> Value {
    let worker = object(
        [("owner", text()), ("is_valid", flag()), ("acquired_at", time())],
        [("state", or_null(text())), ("breaker", or_null(text())), ("reason", or_null(text()))],
    );
    let pause = object([("at", time()), ("by", text())], [("why", or_null(text()))]);
    object(
        [
            ("name", text()),
            ("here", flag()),
            ("pause", or_null(pause)),
            ("worker", or_null(worker)),
            ("processing", count()),
            ("failed", count()),
            ("dead", count()),
        ],
        [("oldest_seconds", or_null(number())), ("last_error", or_null(text()))],
    )
}
