//! Where a replay publishes, looked at before it begins.

use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::stream::{
    Config as Stream, DiscardPolicy, RetentionPolicy, StorageType,
};
use futures_util::TryStreamExt;
use outbox::wire::subject_matches;
use tokio::sync::watch;
use tokio::time::timeout;

use super::replay_plan::ReplayTo;
use crate::config::Config;
use crate::describe;
use crate::error::Error;
use crate::nats::stream_check::is_not_found;
use crate::nats::{NatsLink, unless_denied};

/// How long listing the consumers may take: less than a request over HTTP may.
const LISTING_MAX: Duration = Duration::from_secs(2);

/// The stream that is to store copies.
pub(super) struct Target {
    is_own: bool,
    stream: jetstream::stream::Stream,
}

/// Looks at the stream that is to store copies, the relay's own or another one.
///
/// # Errors
///
/// [`Error::NotSetUp`] if there is none, [`Error::Conflict`] and [`Error::Stream`] if it cannot be used.
pub(super) async fn look(
    config: &Config,
    nats: &async_nats::Client,
    own: &[String],
    ReplayTo { stream: to_stream, prefix }: ReplayTo<'_>,
) -> Result<Target, Error> {
    let name = to_stream.unwrap_or(&config.stream.name);
    let found = jetstream::new(nats.clone()).get_stream(name).await.map_err(|error| {
        match to_stream {
            _ if !is_not_found(&error) => {}
            None => return Error::NotSetUp { missing: format!("stream \"{name}\"") },
            Some(_) => {
                let (stream, reason) = (name.to_owned(), "it does not exist".to_owned());
                let subjects = prefix.unwrap_or("PREFIX");
                let fix = format!("make it: `nats stream add {name} --subjects '{subjects}.>'`");
                return Error::Stream { stream, reason, fix };
            }
        }
        Error::jetstream("look at the stream")(error)
    })?;
    let stream = &found.cached_info().config;
    if to_stream.is_some() {
        if own.len() > 1 {
            let problem = "the shards would publish under the same subjects of one stream, and each \
                           would take the others' copies for somebody else's: leave --to-stream away";
            return Err(Error::Conflict(problem.into()));
        }
        check_other(own, stream, prefix)?;
    }
    if let Some(prefix) = prefix {
        check_prefix(prefix, name, &stream.subjects)?;
    }
    Ok(Target { is_own: to_stream.is_none(), stream: found })
}

impl Target {
    /// Its durable consumers.
    ///
    /// # Errors
    ///
    /// Why they are unknown, as a warning: without them the plan holds as well.
    pub(super) async fn consumers(
        &self,
        link: &watch::Receiver<NatsLink>,
    ) -> Result<Vec<String>, String> {
        let listed = self.stream.consumers().try_collect::<Vec<_>>();
        let listed = async { listed.await.map_err(Error::jetstream("list them")) };
        let late = Err(Error::Stalled("NATS does not answer"));
        match timeout(LISTING_MAX, unless_denied(link, listed)).await.unwrap_or(late) {
            Ok(listed) => Ok(listed.into_iter().filter_map(|it| it.config.durable_name).collect()),
            Err(error) => Err(format!(
                "which consumers stream {} has is unknown: {}. Those without an inbox repeat their \
                 effects, unless they deduplicate by the event's id",
                self.stream.cached_info().config.name,
                describe(&error)
            )),
        }
    }

    /// What the limits of the stream mean for so many copies, if anything.
    pub(super) fn warning(&self, copies: Option<u64>) -> Option<String> {
        let info = self.stream.cached_info();
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
            DiscardPolicy::New if self.is_own => "then it takes nothing more, new events included",
            DiscardPolicy::New => "then it takes nothing more",
            DiscardPolicy::Old => "then it removes its oldest messages",
        };
        let (name, held) = (&stream.name, state.messages);
        Some(format!("stream {name} may become full: {over}, and it has {held} messages; {then}"))
    }
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
    Err(Error::Stream {
        stream: stream.to_owned(),
        reason: format!("it does not store subjects that begin with {prefix}"),
        fix: format!(
            "add the subject {prefix}.> to it: `nats stream edit {stream} --subjects ...`"
        ),
    })
}

/// What another stream than the relay's has to be like.
fn check_other(own: &[String], stream: &Stream, prefix: Option<&str>) -> Result<(), Error> {
    let name = &stream.name;
    if own.contains(name) {
        let problem = format!(
            "stream \"{name}\" is the relay's own: leave --to-stream away, and give --to-subject-prefix \
             to publish under other subjects"
        );
        return Err(Error::Conflict(problem));
    }
    if prefix.is_none() {
        let problem = format!(
            "a subject belongs to one stream, and the relay's has those of the events: give \
             --to-subject-prefix PREFIX, and let stream \"{name}\" store PREFIX.>"
        );
        return Err(Error::Conflict(problem));
    }
    let checks = [
        (stream.sealed, "it is sealed and takes no more messages"),
        (stream.mirror.is_some(), "it is a mirror"),
        (stream.subject_transform.is_some(), "it stores messages under other subjects"),
        (stream.no_ack, "no_ack: the broker would never say what it stored"),
        (stream.storage == StorageType::Memory, "memory storage loses copies with the server"),
        (
            stream.retention != RetentionPolicy::Limits,
            "its retention is not by limits: what it stored cannot be told after a crash",
        ),
        (
            stream.max_messages_per_subject > 0,
            "max_msgs_per_subject removes copies that the relay looks for after a crash",
        ),
    ];
    match checks.iter().find(|it| it.0) {
        None => Ok(()),
        Some((_, reason)) => Err(Error::Stream {
            stream: name.clone(),
            reason: (*reason).to_owned(),
            fix: format!(
                "choose another stream, or make one: `nats stream add --subjects {}.>`",
                prefix.unwrap_or("PREFIX")
            ),
        }),
    }
}
