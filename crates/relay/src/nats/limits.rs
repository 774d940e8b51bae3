//! What the stream takes, checked before a message leaves.

use async_nats::HeaderMap;
use async_nats::jetstream::stream::Config as Stream;
use outbox::wire;

use crate::engine::Refusal;

/// `NATS/1.0`, and the empty line that ends the headers.
const HEADER_FRAME_BYTES: usize = "NATS/1.0\r\n\r\n".len();

/// `": "` and the end of the line.
const HEADER_LINE_BYTES: usize = ": \r\n".len();

/// As many bytes of headers as any stream stores: their length has 16 bits.
const HEADERS_MAX: usize = u16::MAX as usize;

/// A stream's limits as its leader last told them. Until it did, everything is taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Limits {
    max_msg_size: Option<usize>,
    subjects: Option<Vec<String>>,
    /// Messages are stored under other subjects than those under which they are published.
    pub(crate) transforms: bool,
    /// The JetStream domain of its servers, which they name in acknowledgements.
    pub(crate) domain: String,
}

impl Limits {
    pub(crate) fn of(stream: &Stream, domain: String) -> Self {
        // -1, or 0 where it was never set, is no limit.
        let max_msg_size = usize::try_from(stream.max_message_size).ok().filter(|max| *max > 0);
        let transforms = stream.subject_transform.is_some();
        Self { max_msg_size, subjects: Some(stream.subjects.clone()), transforms, domain }
    }

    /// Why the stream would not take the message.
    pub(crate) fn refusal(
        &self,
        subject: &str,
        headers: &HeaderMap,
        payload: usize,
    ) -> Option<Refusal> {
        if let Some(subjects) = &self.subjects
            && !subjects.iter().any(|it| wire::subject_matches(it, subject))
        {
            let takes = subjects.join(", ");
            let reason = format!("the stream does not take subject {subject}: it takes {takes}");
            return Some(Refusal::Unwelcome(reason));
        }
        let headers = bytes(headers);
        if headers > HEADERS_MAX {
            let reason = format!("header size exceeds maximum allowed of 64k: {headers} bytes");
            return Some(Refusal::Message(reason));
        }
        let max = self.max_msg_size?;
        let size = headers + payload;
        (size > max).then(|| {
            Refusal::OverLimit(format!(
                "message size exceeds maximum: {size} bytes with headers, and the stream's \
                 max_msg_size is {max}"
            ))
        })
    }
}

/// The size of headers as the server counts them.
fn bytes(headers: &HeaderMap) -> usize {
    let lines = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values.iter().map(move |value| name.len() + value.as_str().len() + HEADER_LINE_BYTES)
    });
    HEADER_FRAME_BYTES + lines.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_message_size: i32, subjects: &[&str]) -> Limits {
        let subjects = subjects.iter().map(|it| (*it).to_owned()).collect();
        Limits::of(&Stream { max_message_size, subjects, ..Stream::default() }, String::new())
    }

    #[test]
    fn a_message_counts_with_its_headers_as_the_server_counts_them() {
        let mut headers = HeaderMap::new();
        headers.insert("A", "b");
        // NATS/1.0\r\nA: b\r\n\r\n
        let limits = limits(18 + 10, &["outbox.>"]);
        assert_eq!(limits.refusal("outbox.a", &headers, 10), None);
        let refusal = limits.refusal("outbox.a", &headers, 11);
        assert!(matches!(refusal, Some(Refusal::OverLimit(_))), "{refusal:?}");
    }

    #[test]
    fn a_subject_that_the_stream_does_not_take_may_be_taken_later() {
        let limits = limits(-1, &["outbox.order.*", "audit.>"]);
        let headers = HeaderMap::new();
        assert_eq!(limits.refusal("audit.x.y", &headers, 1 << 30), None);
        let refusal = limits.refusal("outbox.user.Left", &headers, 1);
        assert!(matches!(refusal, Some(Refusal::Unwelcome(_))), "{refusal:?}");
    }

    /// `NATS/1.0\r\nA: ` and twice the end of a line are 17 bytes.
    #[test]
    fn no_stream_takes_64_kib_of_headers() {
        let refusal = |bytes: usize| {
            let mut headers = HeaderMap::new();
            headers.insert("A", "x".repeat(bytes - 17));
            Limits::default().refusal("x", &headers, 0)
        };
        assert_eq!(refusal(65_535), None);
        assert!(matches!(refusal(65_536), Some(Refusal::Message(_))), "{:?}", refusal(65_536));
    }

    #[test]
    fn a_stream_that_was_not_asked_takes_everything() {
        assert_eq!(Limits::default().refusal("x", &HeaderMap::new(), 1 << 30), None);
    }
}
