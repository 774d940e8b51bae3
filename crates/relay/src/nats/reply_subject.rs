//! Reply subjects: they say which message an answer is about, and carry it in and out of batches.
//!
//! `<inbox>.<epoch>.<index>` for a message that goes by itself, and for a batch, as the server wants
//! it (ADR-50), `<inbox>.<run>-<batch>.<flow>.fail.<number>.<operation>.$FI`. One subscription to
//! `<inbox>.>` brings every answer.

use std::fmt::Write as _;

use async_nats::Subject;

use crate::engine::Part;

/// Messages of a batch for each answer: the most that a server grants.
const FLOW: u16 = 500;

const OPERATION_START: u8 = 0;
const OPERATION_APPEND: u8 = 1;
const OPERATION_COMMIT: u8 = 2;
const OPERATION_END: u8 = 3;

/// What an answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Message { epoch: u32, index: u64 },
    Part { batch: u32, number: u64 },
}

impl Reply {
    pub(super) fn parse(subject: &str) -> Option<Self> {
        let Some(batch) = subject.strip_suffix(".$FI") else {
            let (rest, index) = subject.rsplit_once('.')?;
            let (_, epoch) = rest.rsplit_once('.')?;
            return Some(Self::Message { epoch: epoch.parse().ok()?, index: index.parse().ok()? });
        };
        let mut tokens = batch.rsplitn(6, '.');
        let (_operation, number) = (tokens.next()?, tokens.next()?);
        let (_gap, _flow, id) = (tokens.next()?, tokens.next()?, tokens.next()?);
        let (_, batch) = id.rsplit_once('-')?;
        Some(Self::Part { batch: batch.parse().ok()?, number: number.parse().ok()? })
    }
}

/// Makes the reply subjects of one publisher.
#[derive(Debug)]
pub(super) struct Replies {
    inbox: String,
    /// The inbox's last token: random, so that no two relays ever use the same batch id.
    run: String,
}

impl Replies {
    pub(super) fn new(inbox: String) -> Self {
        let run = inbox.rsplit('.').next().unwrap_or_default().to_owned();
        Self { inbox, run }
    }

    /// Brings every answer.
    pub(super) fn subscription(&self) -> String {
        format!("{}.>", self.inbox)
    }

    pub(super) fn message(&self, epoch: u32, index: u64) -> Subject {
        self.render(format_args!("{epoch}.{index}"))
    }

    pub(super) fn part(&self, part: Part) -> Subject {
        let operation = match part {
            Part { last: true, .. } => OPERATION_COMMIT,
            Part { number: 1, .. } => OPERATION_START,
            _ => OPERATION_APPEND,
        };
        self.operation(part, operation)
    }

    /// Ends a batch; what is sent with it is not stored.
    pub(super) fn end(&self, part: Part) -> Subject {
        self.operation(part, OPERATION_END)
    }

    fn operation(&self, part: Part, operation: u8) -> Subject {
        let Part { batch, number, .. } = part;
        let run = &self.run;
        self.render(format_args!("{run}-{batch}.{FLOW}.fail.{number}.{operation}.$FI"))
    }

    fn render(&self, rest: std::fmt::Arguments<'_>) -> Subject {
        let mut subject = String::with_capacity(self.inbox.len() + 64);
        subject.push_str(&self.inbox);
        let written = write!(subject, ".{rest}");
        debug_assert!(written.is_ok(), "writing to a string cannot fail");
        Subject::from(subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_says_what_it_is_about() {
        let replies = Replies::new("_INBOX.aB3-x".into());
        assert_eq!(replies.message(7, 42).as_str(), "_INBOX.aB3-x.7.42");
        let part = |number, last| Part { batch: 9, number, last };
        for (subject, operation) in [
            (replies.part(part(1, false)), 0),
            (replies.part(part(1, true)), 2),
            (replies.end(part(1, true)), 3),
        ] {
            let expected = format!("_INBOX.aB3-x.aB3-x-9.500.fail.1.{operation}.$FI");
            assert_eq!(subject.as_str(), expected);
        }
        let append = replies.part(part(2, false));
        assert!(append.ends_with(".fail.2.1.$FI"), "{append}");
        assert_eq!(Reply::parse(&append), Some(Reply::Part { batch: 9, number: 2 }));
        let message = replies.message(7, 42);
        assert_eq!(Reply::parse(&message), Some(Reply::Message { epoch: 7, index: 42 }));
    }

    #[test]
    fn what_is_no_reply_of_ours_is_none() {
        for subject in ["", "_INBOX", "_INBOX.a.b", "x.$FI", "a-9.500.fail.x.1.$FI", "..$FI"] {
            assert_eq!(Reply::parse(subject), None, "{subject}");
        }
    }
}
