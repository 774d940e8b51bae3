use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::num::NonZeroU32;
use std::str::FromStr;

use super::escape::escape_token_pieces;
use super::headers::user_header;
use super::partition;
use crate::{Event, Malformed};

/// The longest subject that is published. NATS itself recommends fewer than 256 bytes, and longer
/// ones come near the server's limit for a protocol line.
const SUBJECT_BYTES_MAX: usize = 255;

/// How an event's subject is made, such as `outbox.{aggregate_type}.{event_type}`.
///
/// Fields: `{aggregate_type}`, `{aggregate_id}`, `{event_type}`, `{event_version}` and
/// `{header:NAME}` (the empty string if the event has no such header). Each value is escaped as by
/// [`escape_token`](super::escape_token), so it never adds a token or a wildcard. `{shard}` is the
/// number that [`in_shard`](Self::in_shard) puts in its place, and until then 0. `{partition}` is the
/// [`partition`](super::partition()) of as many as [`of_partitions`](Self::of_partitions) says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectTemplate {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(String),
    Field(Field),
    Shard,
    Partition { of: NonZeroU32 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Field {
    AggregateType,
    AggregateId,
    EventType,
    EventVersion,
    Header(String),
}

/// What stands for the number of the shard.
const SHARD: &str = "shard";

/// What stands for the number of the partition.
const PARTITION: &str = "partition";

/// The number of the only shard there is, where there are not several.
const ONLY_SHARD: &str = "0";

impl SubjectTemplate {
    /// Whether `{shard}` is in it.
    #[must_use]
    pub fn names_shard(&self) -> bool {
        self.parts.contains(&Part::Shard)
    }

    /// The template of one shard's subjects: its number is in place of `{shard}`.
    #[must_use]
    pub fn in_shard(&self, number: u32) -> Self {
        let number = number.to_string();
        let part = |part: &Part| match part {
            Part::Shard => Part::Literal(number.clone()),
            other => other.clone(),
        };
        let parts = self.parts.iter().map(part).collect();
        Self { text: self.text.replace(&format!("{{{SHARD}}}"), &number), parts }
    }

    /// Whether `{partition}` is in it.
    #[must_use]
    pub fn names_partition(&self) -> bool {
        self.parts.iter().any(|it| matches!(it, Part::Partition { .. }))
    }

    /// The template of a stream with so many partitions.
    #[must_use]
    pub fn of_partitions(mut self, of: NonZeroU32) -> Self {
        for part in &mut self.parts {
            if let Part::Partition { of: number } = part {
                *number = of;
            }
        }
        self
    }

    /// Makes the subject of an event.
    ///
    /// # Errors
    ///
    /// No retry helps: the event has to be parked, or mended, or the template changed.
    pub fn render(&self, event: &Event) -> Result<String, Malformed> {
        let mut subject = String::with_capacity(self.text.len() + 64);
        for part in &self.parts {
            match part {
                Part::Literal(literal) => subject.push_str(literal),
                Part::Shard => subject.push_str(ONLY_SHARD),
                Part::Partition { of } => push_partition(&mut subject, event, *of),
                Part::Field(field) => {
                    for piece in escape_token_pieces(&field.value(event)?) {
                        subject.push_str(piece);
                        // Also keeps a value of many megabytes from being escaped in full.
                        if subject.len() > SUBJECT_BYTES_MAX {
                            return Err(self.too_long(event)?);
                        }
                    }
                }
            }
        }
        if subject.len() > SUBJECT_BYTES_MAX { Err(self.too_long(event)?) } else { Ok(subject) }
    }

    /// The pattern of all subjects that this template can make: a token that contains a field
    /// becomes `*`. A stream takes all of them if one of its subjects
    /// [matches](subject_matches) the pattern.
    #[must_use]
    pub fn pattern(&self) -> String {
        self.pattern_with("*")
    }

    /// As [`pattern`](Self::pattern), but with `{partition}` in its place.
    #[must_use]
    pub fn partition_pattern(&self) -> String {
        self.pattern_with(&format!("{{{PARTITION}}}"))
    }

    fn pattern_with(&self, partition: &str) -> String {
        let mut pattern = String::new();
        for part in &self.parts {
            match part {
                Part::Literal(literal) => pattern.push_str(literal),
                Part::Shard => pattern.push_str(ONLY_SHARD),
                Part::Partition { .. } => pattern.push_str(partition),
                // It cannot occur in a literal, so this marks the token unmistakably.
                Part::Field(_) => pattern.push('*'),
            }
        }
        let tokens: Vec<&str> =
            pattern.split('.').map(|token| if token.contains('*') { "*" } else { token }).collect();
        tokens.join(".")
    }

    /// As [`pattern`](Self::pattern), but one for each number of a partition that is the first token:
    /// a stream must not take `*` there, because the broker's own subjects are among them.
    #[must_use]
    pub fn patterns(&self) -> Vec<String> {
        let pattern = self.pattern();
        match self.parts.as_slice() {
            [Part::Partition { of }, Part::Literal(next), ..] if next.starts_with('.') => {
                let rest = pattern.trim_start_matches('*');
                (0..of.get()).map(|number| format!("{number}{rest}")).collect()
            }
            _ => vec![pattern],
        }
    }

    /// Names the longest field: the one to shorten or to leave out of the template.
    fn too_long(&self, event: &Event) -> Result<Malformed, Malformed> {
        let mut partition = String::new();
        let mut subject_bytes = 0;
        let mut longest = (0, "the template itself".to_owned());
        for part in &self.parts {
            match part {
                Part::Literal(literal) => subject_bytes += literal.len(),
                Part::Shard => subject_bytes += ONLY_SHARD.len(),
                Part::Partition { of } => push_partition(&mut partition, event, *of),
                Part::Field(field) => {
                    let bytes = escape_token_pieces(&field.value(event)?).map(str::len).sum();
                    subject_bytes += bytes;
                    if bytes > longest.0 {
                        longest = (bytes, field.to_string());
                    }
                }
            }
        }
        let (field_bytes, field) = longest;
        let subject_bytes = subject_bytes + partition.len();
        Ok(format!(
            "the subject would be {subject_bytes} bytes long, the limit is {SUBJECT_BYTES_MAX}; \
             {field} alone takes {field_bytes} after escaping"
        )
        .into())
    }
}

impl Default for SubjectTemplate {
    /// `outbox.{aggregate_type}.{event_type}`.
    fn default() -> Self {
        "outbox.{aggregate_type}.{event_type}".parse().expect("the default template is valid")
    }
}

impl fmt::Display for SubjectTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for SubjectTemplate {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut parts = Vec::new();
        // Each field counts as one letter for the check of the tokens.
        let mut skeleton = String::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (literal, after) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
            check_literal(literal)?;
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
                skeleton.push_str(literal);
            }
            rest = after;
            if let Some(after) = rest.strip_prefix('{') {
                let (name, after) = after
                    .split_once('}')
                    .ok_or(Malformed::because("the subject template has a { without }"))?;
                parts.push(match name {
                    SHARD => Part::Shard,
                    PARTITION => Part::Partition { of: NonZeroU32::MIN },
                    _ => Part::Field(name.parse()?),
                });
                skeleton.push('x');
                rest = after;
            }
        }
        if skeleton.split('.').any(str::is_empty) {
            return Err(Malformed::because("the subject template has an empty token"));
        }
        if skeleton.starts_with('$') {
            return Err(Malformed::because(
                "the subject template begins with $, which is reserved for the server",
            ));
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

/// Without an allocation: a subject has room for it.
fn push_partition(subject: &mut String, event: &Event, of: NonZeroU32) {
    let number = partition(&event.aggregate_type, &event.aggregate_id, of);
    write!(subject, "{number}").expect("a string takes any text");
}

fn check_literal(literal: &str) -> Result<(), Malformed> {
    match literal.chars().find(|c| !c.is_ascii_graphic() || matches!(c, '*' | '>' | '}' | '%')) {
        Some(character) => {
            Err(format!("the subject template contains {character:?}, which a subject must not")
                .into())
        }
        None => Ok(()),
    }
}

impl Field {
    pub(super) fn value<'a>(&self, event: &'a Event) -> Result<Cow<'a, str>, Malformed> {
        Ok(match self {
            Self::AggregateType => Cow::Borrowed(&event.aggregate_type),
            Self::AggregateId => Cow::Borrowed(&event.aggregate_id),
            Self::EventType => Cow::Borrowed(&event.event_type),
            Self::EventVersion => Cow::Owned(event.event_version.to_string()),
            Self::Header(name) => user_header(event, name)?.unwrap_or_default(),
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AggregateType => f.write_str("aggregate_type"),
            Self::AggregateId => f.write_str("aggregate_id"),
            Self::EventType => f.write_str("event_type"),
            Self::EventVersion => f.write_str("event_version"),
            Self::Header(name) => write!(f, "header:{name}"),
        }
    }
}

impl FromStr for Field {
    type Err = Malformed;

    fn from_str(name: &str) -> Result<Self, Malformed> {
        Ok(match name {
            "aggregate_type" => Self::AggregateType,
            "aggregate_id" => Self::AggregateId,
            "event_type" => Self::EventType,
            "event_version" => Self::EventVersion,
            _ => match name.strip_prefix("header:") {
                Some(header) if !header.is_empty() => Self::Header(header.to_owned()),
                _ => return Err(unknown_field(name)),
            },
        })
    }
}

fn unknown_field(name: &str) -> Malformed {
    format!(
        "the template has an unknown field {{{name}}}; there are {{aggregate_type}}, \
         {{aggregate_id}}, {{event_type}}, {{event_version}}, {{header:NAME}}, and in subjects {{shard}} and {{partition}}"
    )
    .into()
}

/// Whether a NATS subject pattern takes a subject: `*` stands for one token, a final `>` for one or
/// more. The subject may itself be a pattern without `>`, and is then taken if all it matches is.
#[must_use]
pub fn subject_matches(pattern: &str, subject: &str) -> bool {
    let mut wanted = pattern.split('.').peekable();
    let mut tokens = subject.split('.');
    loop {
        match (wanted.next(), tokens.next()) {
            (Some(">"), Some(_)) if wanted.peek().is_none() => return true,
            (Some("*"), Some(_)) => {}
            (Some(wanted), Some(token)) if wanted == token => {}
            (None, None) => return true,
            _ => return false,
        }
    }
}

/// Whether there is a subject that both patterns take. Streams of an account must have no such
/// subjects.
#[must_use]
pub fn subjects_overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some(a), Some(b)) if a == b || a == "*" || b == "*" => {}
            _ => return false,
        }
    }
}

/// The subjects under which a stream that takes `subjects` stores messages, where it transforms
/// those of `source` to `destination`.
///
/// ```
/// use outbox::wire::transformed;
///
/// let takes = ["outbox.>".to_owned()];
/// assert_eq!(transformed(&takes, "outbox.*.*", "{{partition(4,1)}}.kept"), ["outbox.>", "*.kept"]);
/// assert_eq!(transformed(&takes, "", "kept.>"), ["kept.>"]);
/// ```
#[must_use]
pub fn transformed(subjects: &[String], source: &str, destination: &str) -> Vec<String> {
    let source = if source.is_empty() { ">" } else { source };
    let mut pattern = Vec::new();
    for token in destination.split('.') {
        let function = token.to_ascii_lowercase();
        if function.contains("split") || function.contains("slice") {
            pattern.push(">"); // of any number of tokens
            break;
        }
        pattern.push(if function.starts_with(['{', '$']) { "*" } else { token });
    }
    let mut stored = subjects.to_vec();
    stored.retain(|it| !subject_matches(source, it));
    stored.push(pattern.join("."));
    stored
}
