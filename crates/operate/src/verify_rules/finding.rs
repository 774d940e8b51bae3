//! What a comparison finds, and what it cannot tell.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use uuid::Uuid;

/// Findings of each kind that are listed. All are counted.
pub const LISTED_MAX: usize = 100_000;

/// A kind of damage, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// An event has to be in the stream, and is not.
    Gap,
    /// The stream has removed an event that it had to keep.
    Removed,
    /// An event is stored more than once.
    Duplicate,
    /// An event is stored behind one that comes after it.
    Disorder,
    /// A message of the relay has no row.
    Phantom,
    /// The payload is not the row's.
    Payload,
    /// A header is not what the row maps to.
    Headers,
    /// The subject is not what the row maps to.
    Subject,
    /// The event is in the stream of another shard.
    Misplaced,
    /// A dead letter is in the stream.
    Parked,
    /// The row says that a route dropped the event, and the stream has it.
    Dropped,
    /// A row is published and not marked, and the relay will not see to it by itself soon.
    Unmarked,
    /// The mark names another place than that of the event.
    Mark,
}

impl Kind {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Removed => "removed",
            Self::Duplicate => "duplicate",
            Self::Disorder => "disorder",
            Self::Phantom => "phantom",
            Self::Unmarked => "unmarked",
            Self::Payload => "payload",
            Self::Headers => "headers",
            Self::Subject => "subject",
            Self::Mark => "mark",
            Self::Parked => "parked",
            Self::Dropped => "dropped",
            Self::Misplaced => "misplaced",
        }
    }

    /// What was found.
    pub fn title(self) -> &'static str {
        match self {
            Self::Gap => "events that the stream lacks",
            Self::Removed => "events that left the stream unread, or against its limits",
            Self::Duplicate => "events that are stored more than once",
            Self::Disorder => "events stored behind later ones",
            Self::Phantom => "messages of a relay without a row",
            Self::Unmarked => "published rows without a mark",
            Self::Payload => "payloads that are not their rows'",
            Self::Headers => "headers that are not their rows'",
            Self::Subject => "subjects that are not their rows'",
            Self::Mark => "marks that name a wrong place",
            Self::Parked => "dead letters that the stream has",
            Self::Dropped => "dropped events that the stream has",
            Self::Misplaced => "events in the stream of another shard",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Gap => {
                "somebody deleted the messages, or marked the rows, or the rows never passed the \
                 log. `tailpost verify --repair --execute` has the relay publish them, behind \
                 later events of their aggregates"
            }
            Self::Removed => {
                "somebody purged the stream, its limits were others before, or they are too tight \
                 for its consumers (`tailpost doctor --only stream`). `tailpost replay` stores \
                 the events once more; --since leaves out what was removed on purpose"
            }
            Self::Duplicate => {
                "consumers deduplicate by the event's id. `nats stream rmm STREAM SEQUENCE` \
                 removes the later copy, which consumers may have seen"
            }
            Self::Disorder => {
                "somebody stored these messages again, or another writer came in between (keyed \
                 mode). Consumers of these aggregates have seen the wrong order"
            }
            Self::Phantom => {
                "somebody else published these messages, or deleted their rows while older rows \
                 stay. `nats stream get STREAM SEQUENCE` shows a message"
            }
            Self::Unmarked => {
                "a relay that runs marks them: within seconds, or, with the index \
                 idx_outbox_txid, within the hour. `tailpost verify --repair --execute` does so \
                 at once"
            }
            Self::Payload => "the rows were changed after they were published",
            Self::Headers => {
                "the rows were changed after they were published, or somebody stored the messages \
                 again"
            }
            Self::Subject => {
                "the rows were changed after they were published, or relay.subject or the routes \
                 were: then --since leaves out what was published before"
            }
            Self::Mark => {
                "somebody changed the marks, or stored the messages again. To have the relay mark \
                 a row again, set its published_at, stream and stream_seq to NULL"
            }
            Self::Parked => {
                "discard these dead letters (`tailpost outbox dlq discard`): their events are \
                 published"
            }
            Self::Dropped => {
                "somebody published these events, or changed the marks. Other routes than now may \
                 have been in force"
            }
            Self::Misplaced => {
                "consumers of the right stream do not see these events. relay.shards was changed \
                 without the drain that is asked for, or somebody copied the messages"
            }
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// One event that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What is wrong.
    pub kind: Kind,
    /// The event; `None` for a message that names none.
    pub id: Option<Uuid>,
    /// The stream that has the message, or was to have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream: Option<String>,
    /// The message's sequence there, or the one that the row names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The stream of another message that it is about, if that is another stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_stream: Option<String>,
    /// The sequence of that one, or what the row names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other_sequence: Option<u64>,
    /// What makes it a finding.
    pub why: &'static str,
}

/// How many findings of a kind there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// The kind.
    pub kind: Kind,
    /// All of them.
    pub count: u64,
}

/// Something that was not judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Unjudged {
    /// A name for scripts.
    pub what: &'static str,
    /// How many rows or messages.
    pub count: u64,
    /// What it is, and why it was not judged.
    pub why: String,
}

/// Collects findings: counts all, keeps the first of each kind.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    listed: Vec<Finding>,
    counts: BTreeMap<Kind, u64>,
}

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        let count = self.counts.entry(finding.kind).or_default();
        *count += 1;
        if usize::try_from(*count).is_ok_and(|it| it <= LISTED_MAX) {
            self.listed.push(finding);
        }
    }

    /// The findings by kind, in the order of their sequences, and how many there are of each kind.
    pub(crate) fn finish(mut self) -> (Vec<Finding>, Vec<KindCount>) {
        self.listed.sort_by_cached_key(|it| (it.kind, it.stream.clone(), it.sequence, it.id));
        let counts = self.counts.into_iter();
        (self.listed, counts.map(|(kind, count)| KindCount { kind, count }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_are_listed() {
        let mut findings = Findings::default();
        let finding = |kind, sequence| Finding {
            kind,
            id: None,
            stream: Some("OUTBOX".into()),
            sequence: Some(sequence),
            other_stream: None,
            other_sequence: None,
            why: "",
        };
        for n in 0..LISTED_MAX as u64 + 2 {
            findings.add(finding(Kind::Mark, n));
        }
        findings.add(finding(Kind::Gap, 9));
        findings.add(finding(Kind::Gap, 3));
        let (listed, counts) = findings.finish();
        assert_eq!(listed.len(), LISTED_MAX + 2);
        assert_eq!((listed[0].sequence, listed[1].sequence), (Some(3), Some(9)));
        let count = |kind, count| KindCount { kind, count };
        assert_eq!(counts, [count(Kind::Gap, 2), count(Kind::Mark, LISTED_MAX as u64 + 2)]);
    }
}
