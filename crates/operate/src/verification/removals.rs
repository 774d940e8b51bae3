//! What a stream may have removed, and whether everybody had read it by then.

use std::time::Duration;

use async_nats::jetstream::consumer;
use async_nats::jetstream::stream::{DiscardPolicy, Info, RetentionPolicy, Stream};
use futures_util::TryStreamExt;
use jiff::Timestamp;
use outbox::wire::subject_matches;
use relay::access::stream_check::refuses_per_subject;
use tokio::time::timeout;

use crate::verify_rules::cut::CLOCKS_DIFFER_MICROS;
use crate::verify_rules::spilled::RowRecord;

/// How long listing the consumers may take. Who may not list them never gets an answer.
const LISTING_MAX: Duration = Duration::from_secs(2);

/// Of one stream.
#[derive(Debug, Clone)]
pub(super) struct Removals {
    /// The configuration removes no message that was stored after this; `i64::MAX` if it may remove
    /// any, `i64::MIN` if it removes none.
    pub(super) until_micros: i64,
    readers: Vec<Reader>,
}

/// A durable consumer.
#[derive(Debug, Clone)]
struct Reader {
    created_micros: i64,
    delivered: u64,
    filters: Vec<String>,
}

impl Removals {
    /// Those of a stream of which everything is compared.
    pub(super) async fn of(stream: &Stream, info: &Info) -> Self {
        let config = &info.config;
        let counts = config.max_messages > 0 || config.max_bytes > 0;
        let per_subject = config.max_messages_per_subject > 0 && !refuses_per_subject(config);
        let limits = config.retention == RetentionPolicy::Limits;
        let any = !limits
            || per_subject
            || config.allow_message_ttl
            || counts && config.discard == DiscardPolicy::Old;
        let until_micros = match (any, config.max_age) {
            (true, _) => i64::MAX,
            (false, Duration::ZERO) => i64::MIN,
            (false, age) => {
                let age = i64::try_from(age.as_micros()).unwrap_or(i64::MAX);
                Timestamp::now().as_microsecond().saturating_sub(age) + CLOCKS_DIFFER_MICROS
            }
        };
        let listed = timeout(LISTING_MAX, stream.consumers().try_collect::<Vec<_>>()).await;
        let listed = listed.ok().and_then(Result::ok).unwrap_or_default();
        let mut readers: Vec<Reader> = listed.iter().filter_map(Reader::of).collect();
        if readers.is_empty() && per_subject {
            // A consumer to come has read nothing.
            readers.push(Reader { created_micros: 0, delivered: 0, filters: Vec::new() });
        }
        // What is acknowledged is removed, in any order.
        readers.retain(|_| limits);
        Self { until_micros, readers }
    }

    /// No row that names a lower sequence, and was published before `until_micros`, is a finding.
    pub(super) fn unread_from(&self) -> u64 {
        self.readers.iter().map(|it| it.delivered + 1).min().unwrap_or(u64::MAX)
    }

    /// What it means if the message of a row is gone.
    pub(super) fn flags(&self, sequence: Option<u64>, subject: &str, published_micros: i64) -> u16 {
        let is_unread = |it: &Reader| {
            let is_meant =
                it.filters.is_empty() || it.filters.iter().any(|it| subject_matches(it, subject));
            let is_later = published_micros > it.created_micros;
            is_meant && is_later && sequence.is_some_and(|sequence| sequence > it.delivered)
        };
        if published_micros > self.until_micros {
            RowRecord::KEPT
        } else if self.readers.iter().any(is_unread) {
            RowRecord::UNREAD
        } else {
            0
        }
    }
}

impl Reader {
    fn of(info: &consumer::Info) -> Option<Self> {
        info.config.durable_name.as_ref()?;
        let nanos = info.created.unix_timestamp_nanos();
        let one = Some(&info.config.filter_subject).filter(|it| !it.is_empty());
        Some(Self {
            created_micros: i64::try_from(nanos / 1_000).unwrap_or(i64::MAX),
            delivered: info.delivered.stream_sequence,
            filters: one.into_iter().chain(&info.config.filter_subjects).cloned().collect(),
        })
    }
}
