//! What a consumer's stream keeps from it, and the broker says nothing of.

use async_nats::Client;
use futures_util::future::try_join_all;
use outbox::wire::subject_matches;
use relay::access::direct_get;
use relay::access::stream_check::{self, STORED_SUBJECTS, displaced};
use relay::{Config, Error};

/// How many of the stream's last messages are looked at: what was stored under another subject before
/// a change of the settings is nobody's fault.
const LAST: u64 = 16;

/// What was seen.
#[derive(Debug, Clone, Default)]
pub struct StreamLook {
    /// How many of the last messages are events that the consumer is for, under subjects that it is not
    /// for.
    pub passed_by: u64,
    /// What an operator should know; of these first.
    pub warnings: Vec<String>,
}

/// Looks at the end of a stream for a consumer of these subjects, or of all if there are none. The
/// configuration says under which subjects a relay publishes.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn look_at_stream(
    config: &Config,
    nats: &Client,
    stream: &str,
    subjects: &[String],
) -> Result<StreamLook, Error> {
    let mut look = StreamLook::default();
    let found = stream_check::look(nats, stream).await?;
    let (settings, state) = (&found.cached_info().config, &found.cached_info().state);
    let (_, is_limited, what, fix) = stream_check::per_subject(settings);
    if is_limited && !stream_check::refuses_per_subject(settings) {
        look.warnings.push(format!("{what}: {fix}"));
    }
    if subjects.is_empty() {
        return Ok(look);
    }
    let first = state.first_sequence.max(state.last_sequence.saturating_sub(LAST - 1)).max(1);
    let reads = (first..=state.last_sequence).rev().map(|it| direct_get::read(nats, stream, it));
    let takes = |subject: &str| subjects.iter().any(|it| subject_matches(it, subject));
    let (mut as_wanted, mut example) = (Vec::new(), None);
    for answer in try_join_all(reads).await? {
        let Some(message) = answer.message()? else { continue };
        match displaced(config, &message) {
            None => as_wanted.push(message.subject.into_owned()),
            // Those before it were published otherwise.
            Some((_, wanted)) if as_wanted.contains(&wanted) => {}
            Some((stored, wanted)) if takes(&wanted) && !takes(&stored) => {
                look.passed_by += 1;
                example.get_or_insert((stored, wanted));
            }
            Some(_) => {}
        }
    }
    let passed_by = example.map(|(stored, wanted)| {
        format!(
            "events pass it by: one is stored under {stored}, and by relay.subject it would be under \
             {wanted}, which the consumer is for. The account or the stream maps subjects, or \
             relay.subject or the routes have changed since: {STORED_SUBJECTS}. Those before come by \
             `tailpost inbox rewind` or `tailpost replay`"
        )
    });
    look.warnings.splice(..0, passed_by);
    Ok(look)
}
