//! Where a replay publishes, looked at before it begins.

use std::time::Duration;

use async_nats::jetstream::stream::{DiscardPolicy, Stream};
use futures_util::TryStreamExt;
use outbox::wire::subject_matches;
use relay::access::{stream_check, unless_denied};
use relay::{Config, Error, describe};
use servers::NatsLink;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long listing the consumers may take: less than a request over HTTP may.
const LISTING_MAX: Duration = Duration::from_secs(2);

/// Looks at the stream that is to store copies.
///
/// # Errors
///
/// [`Error::NotSetUp`] if there is none, [`Error::Conflict`] and [`Error::Unusable`] if the
/// prefix cannot be used.
pub(super) async fn look(
    config: &Config,
    nats: &async_nats::Client,
    prefix: Option<&str>,
) -> Result<Stream, Error> {
    let name = &config.stream.name;
    let stream = stream_check::look(nats, name).await?;
    if let Some(prefix) = prefix {
        check_prefix(prefix, name, &stream.cached_info().config.subjects)?;
    }
    Ok(stream)
}

/// The durable consumers of a stream.
///
/// # Errors
///
/// Why they are unknown, as a warning: without them the plan holds as well.
pub(super) async fn consumers(
    stream: &Stream,
    link: &watch::Receiver<NatsLink>,
) -> Result<Vec<String>, String> {
    let listed = stream.consumers().try_collect::<Vec<_>>();
    let listed = async { listed.await.map_err(Error::jetstream("list them")) };
    let late = Err(Error::Stalled("NATS does not answer"));
    match timeout(LISTING_MAX, unless_denied(link, listed)).await.unwrap_or(late) {
        Ok(listed) => Ok(listed.into_iter().filter_map(|it| it.config.durable_name).collect()),
        Err(error) => Err(format!(
            "which consumers stream {} has is unknown: {}. Those without an inbox repeat their \
             effects, unless they deduplicate by the event's id",
            stream.cached_info().config.name,
            describe(&error)
        )),
    }
}

/// What the limits of the stream mean for so many copies, if anything.
pub(super) fn warning(stream: &Stream, copies: Option<u64>) -> Option<String> {
    let info = stream.cached_info();
    let (stream, state) = (&info.config, &info.state);
    let copies = copies.filter(|it| *it > 0)?;
    let limit = |it: i64| u64::try_from(it).ok().filter(|it| *it > 0);
    let size = state.bytes.checked_div(state.messages).unwrap_or(0);
    let (messages, bytes) = (state.messages + copies, state.bytes + copies * size);
    let over = match (limit(stream.max_messages), limit(stream.max_bytes)) {
        (Some(max), _) if messages > max => format!("max_msgs is {max}"),
        (_, Some(max)) if bytes > max => format!("max_bytes is {max}"),
        _ => return None,
    };
    let then = match stream.discard {
        DiscardPolicy::New => "then it takes nothing more, new events included",
        DiscardPolicy::Old => "then it removes its oldest messages",
    };
    let (name, held) = (&stream.name, state.messages);
    Some(format!("stream {name} may become full: {over}, and it has {held} messages; {then}"))
}

/// The stream has to store what is published under the prefix.
fn check_prefix(prefix: &str, stream: &str, subjects: &[String]) -> Result<(), Error> {
    // What the table takes.
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "_-".contains(it);
    let is_token = |it: &str| !it.is_empty() && it.chars().all(is_plain);
    if prefix.len() > 200 || !prefix.split('.').all(is_token) {
        let problem = format!(
            "\"{prefix}\" is no prefix of a subject: write letters, digits, _ and - between dots, \
             such as replay.july"
        );
        return Err(Error::Conflict(problem));
    }
    // Of any number of tokens.
    let all = [format!("{prefix}.a"), format!("{prefix}.a.b"), format!("{prefix}.a.b.c.d.e")];
    let takes = |it: &String| subjects.iter().any(|filter| subject_matches(filter, it));
    if all.iter().all(takes) {
        return Ok(());
    }
    let reason = format!("it does not store subjects that begin with {prefix}");
    let fix =
        format!("add the subject {prefix}.> to it: `nats stream edit {stream} --subjects ...`");
    Err(Error::stream(stream, &reason, fix))
}
