//! What requests and answers look like, as JSON Schema, written in short.
//!
//! `{id: uuid, events?: [text], reason: text?}` is an object: what has `?` behind its name may be
//! left out, what has it behind its type may be null, and brackets are a list. `a|b` is one of two
//! words, `1..9` a number between two others, a name with a capital a component, and `A & B` both.

use serde_json::{Map, Value, json};

use super::api::{LIMIT, LIMIT_MAX};

/// Whether objects may have fields that they do not name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    /// As in answers: fields are added to them.
    Allowed,
    /// As in requests.
    Refused,
}

/// Of an answer, or of a part of it.
pub(super) fn answer(short: &str) -> Value {
    schema(short, Others::Allowed)
}

/// Of a request, which has nothing else.
pub(super) fn request(short: &str) -> Value {
    schema(short, Others::Refused)
}

fn schema(short: &str, others: Others) -> Value {
    let short = short.trim();
    if let Some(short) = short.strip_suffix('?') {
        return json!({ "anyOf": [schema(short, others), { "type": "null" }] });
    }
    if let Some((one, other)) = short.split_once(" & ") {
        return json!({ "allOf": [schema(one, others), schema(other, others)] });
    }
    if let Some(item) = inside(short, '[', ']') {
        return json!({ "type": "array", "items": schema(item, others) });
    }
    if let Some(fields) = inside(short, '{', '}') {
        return object(fields, others);
    }
    if let Some((least, most)) = short.split_once("..") {
        let [least, most] = [least, most].map(|it| it.parse::<i64>().expect("a number"));
        return json!({ "type": "integer", "minimum": least, "maximum": most });
    }
    match short {
        "any" => json!({}),
        "text" => json!({ "type": "string" }),
        "name" => json!({ "type": "string", "minLength": 1 }),
        "reason" => json!({ "type": "string", "pattern": "\\S" }),
        "uuid" => json!({ "type": "string", "format": "uuid" }),
        "time" => json!({ "type": "string", "format": "date-time" }),
        "flag" => json!({ "type": "boolean" }),
        "count" => json!({ "type": "integer", "minimum": 0, "maximum": i64::MAX }),
        "limit" => {
            json!({ "type": "integer", "minimum": 0, "maximum": LIMIT_MAX, "default": LIMIT })
        }
        // Written `type:id`.
        "aggregate" => {
            json!({ "type": "string", "pattern": "^[^:]+:[\\s\\S]+$", "examples": ["order:o-17"] })
        }
        "integer" | "number" | "object" => json!({ "type": short }),
        words if words.contains('|') => {
            json!({ "type": "string", "enum": words.split('|').collect::<Vec<_>>() })
        }
        component => json!({ "$ref": format!("#/components/schemas/{component}") }),
    }
}

fn object(fields: &str, others: Others) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for field in split(fields) {
        let (name, short) = field.split_once(':').expect("a field has a type");
        let name = name.trim();
        if !name.ends_with('?') {
            required.push(name);
        }
        properties.insert(name.trim_end_matches('?').to_owned(), schema(short, others));
    }
    let mut object = json!({ "type": "object", "required": required, "properties": properties });
    if others == Others::Refused {
        object["additionalProperties"] = false.into();
    }
    object
}

fn inside(short: &str, from: char, to: char) -> Option<&str> {
    short.strip_prefix(from)?.strip_suffix(to)
}

/// The parts between commas that are in no brackets.
fn split(fields: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let fields = fields.split(move |it| {
        depth += i32::from(matches!(it, '{' | '[')) - i32::from(matches!(it, '}' | ']'));
        it == ',' && depth == 0
    });
    fields.filter(|it| !it.trim().is_empty())
}

/// What is referred to by name.
pub(super) fn components() -> Value {
    let components = [
        ("Problem", "{title: text, status: integer, detail: text, hint?: text?}"),
        ("Setting", "{key: text, origin: text, value: any}"),
        (
            "AuditEntry",
            "{at: time, action: text, actor: text, via?: text?, why?: text?, reason?: text?}",
        ),
        (
            "DeadLetterDetail",
            "{id: uuid, state: text, history: [AuditEntry], dead_letter?: object?, stream?: text?}",
        ),
        (
            "OutboxDeadLetter",
            "{id: uuid, aggregate_type: text, aggregate_id: text, event_type: text, dead_at: time,
              reason: text, blocks: flag, attempts?: count?, blocked_by?: uuid?}",
        ),
        (
            "InboxDeadLetter",
            "{consumer: text, id: uuid, subject: text, stream: text, attempts: count, cause: text,
              reason: text, dead_at: time, requeued: flag, aggregate_type?: text?,
              event_type?: text?}",
        ),
        (
            "Event",
            "{id: uuid, state: pending|published|dead|discarded, aggregate_type: text,
              aggregate_id: text, event_type: text, occurred_at: time?, attempts: count,
              published_at?: time?, stream?: text?, stream_seq?: count?, error?: text?}",
        ),
        (
            "Replay",
            "{id: uuid, slot: text, stream: text, status: asked|running|paused|cancelled|done,
              source: table|stream|wal, asked_by: text, reason: text, asked_at: text,
              published: count, failed: count, has_relay: flag, events?: count?,
              waits_for?: text?}",
        ),
        (
            "Slot",
            "{name: text, is_configured: flag, active: flag, retained_bytes: count,
              database?: text?, wal_status?: text?}",
        ),
        (
            "Check",
            "{id: text, category: text, severity: ok|skipped|warning|error, title: text,
              evidence: text, remedies: [{kind: text, text: text, caution?: text}], docs: text,
              subject?: text}",
        ),
        (
            "Consumer",
            "{name: text, here: flag, pause: {at: time, by: text, why?: text?}?,
              worker: {owner: text, is_valid: flag, acquired_at: time, state?: text?,
                       breaker?: text?, reason?: text?}?,
              processing: count, failed: count, dead: count, oldest_seconds?: number?,
              last_error?: text?}",
        ),
    ];
    components.into_iter().map(|(name, short)| (name.to_owned(), answer(short))).collect()
}
