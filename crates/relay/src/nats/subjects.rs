//! The subjects of the last messages: a new one costs two allocations.

use async_nats::Subject;

/// More than a stream has event types and partitions in most cases, and at 255 bytes each 130 kB.
const KEPT: u16 = 512;

/// The subject of the last message, and others that were used before, each at the place of its hash.
pub(super) struct Subjects {
    last: Subject,
    kept: Vec<Subject>,
}

impl Subjects {
    pub(super) fn new() -> Self {
        let none = Subject::from_static("");
        Self { kept: vec![none.clone(); KEPT.into()], last: none }
    }

    /// A batch is ended on a subject of the stream: on this one.
    pub(super) fn last(&self) -> Subject {
        self.last.clone()
    }

    pub(super) fn of(&mut self, subject: &str) -> Subject {
        if self.last.as_str() != subject {
            let place = outbox::fnv(subject.bytes()) % u64::from(KEPT);
            let kept = &mut self.kept[usize::try_from(place).unwrap_or_default()];
            if kept.as_str() != subject {
                *kept = Subject::from(subject);
            }
            self.last = kept.clone();
        }
        self.last.clone()
    }
}
