//! The durable consumer: made as the configuration says, and kept so.

mod going_back;
mod left_out;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::consumer::{
    self, AckPolicy, DeliverPolicy, FromConsumer, Info, ReplayPolicy, pull,
};
use async_nats::jetstream::context::{ConsumerInfoError, ConsumerInfoErrorKind};
use async_nats::jetstream::stream::{
    self, ConsumerError, ConsumerErrorKind, ConsumerUpdateErrorKind, Stream,
};
use async_nats::jetstream::{self, ErrorCode};
use futures_util::StreamExt;
use jiff::Timestamp;
use outbox::wire;
use servers::nats_version;
use tracing::{info, warn};

pub(crate) use self::going_back::rewind;
pub use self::going_back::{RewindMethod, begins_at, keeps_messages, rewind_method};
pub(crate) use self::left_out::left_out;
use crate::Error;
use crate::config::Config;
use crate::record::rounded;

/// Messages asked for at a time.
pub(crate) const PULLED_MAX: usize = 256;

/// How long a request waits for messages: also how long a stop may take, for what comes in answer
/// is given back rather than left to `ack_wait`.
pub(crate) const PULL_EXPIRES: Duration = Duration::from_secs(1);

type Consumer = consumer::Consumer<pull::Config>;

/// Not what bounds memory (only what there is room for is asked for), but what a worker that died
/// had must not keep the next one from getting new events until `ack_wait` is over, and neither must
/// what is left in the stream: `engine::HoldLimits`. The broker has about 100 bytes for each.
pub(crate) const ACK_PENDING_MAX: i64 = 1_300_000;

/// What the broker takes where nobody says anything. Anything else is an operator's choice, and
/// stays.
const ACK_PENDING_UNCHOSEN: i64 = 1_000;

/// The stream of a consumer.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn stream(nats: &Client, config: &Config) -> Result<Stream, Error> {
    let stream = servers::jetstream_of(nats).get_stream(&config.stream).await;
    stream.map_err(Error::jetstream("look up the stream"))
}

/// Refuses a server that misreads headers, be it the one to which the client is connected or the stream's
/// leader: such a server may hand events to the inbox that were stored twice, or never.
pub(crate) fn check_server(nats: &Client, stream: &Stream) -> Result<(), Error> {
    let version = nats.server_info().version;
    let server = match nats_version::misreads_headers(&version) {
        true => Some(format!("nats-server {version}")),
        false => nats_version::misreading_leader(&version, &stream.cached_info().config.metadata),
    };
    server.map_or(Ok(()), |server| {
        Err(Error::Refused {
            problem: format!("{server} takes what an event says for headers of the broker"),
            hint: nats_version::UPGRADE,
        })
    })
}

/// When the stream was created, as precisely as the inbox's tables keep it.
#[must_use]
pub fn created(stream: &Stream) -> Option<Timestamp> {
    let nanos = stream.cached_info().created.unix_timestamp_nanos();
    Timestamp::from_nanosecond(nanos).ok().map(rounded)
}

/// Finds the durable consumer, or makes it, and says whether it was made. One that is configured
/// otherwise is changed to what the configuration says, where the server allows it.
pub(crate) async fn open(stream: &Stream, config: &Config) -> Result<(Consumer, bool), Error> {
    check_partitions(stream, config)?;
    let (consumer, name) = (&*config.durable(), &*config.stream);
    let info = match stream.consumer_info(consumer).await {
        Ok(info) => info,
        Err(error) if is_not_found(&error) => {
            check_subjects(stream, config)?;
            let created = match create(stream, wanted(config)).await {
                Err(error) if shares_queue(&error) => Err(taken(stream, config, error).await),
                created => created,
            }?;
            info!(consumer, stream = name, "created the durable consumer");
            return Ok((created, true));
        }
        Err(error) => return Err(Error::jetstream(LOOKING)(error)),
    };
    if let Some(reason) = obstacle(&info.config) {
        return Err(Error::Refused {
            problem: format!(
                "consumer \"{consumer}\" of stream \"{name}\" cannot be used: {reason}, which \
                 cannot be changed; `nats consumer rm {name} {consumer}` deletes it"
            ),
            hint: "delete the consumer, so that it is made anew, or choose another name: nothing \
                   is handled twice, the inbox knows what it has handled",
        });
    }
    let max_ack_pending = info.config.max_ack_pending;
    let (mut changed, settings) = changes(&info.config, config)?;
    // What was stored before the transform may wait.
    let waits = info.num_pending > 0 || info.num_ack_pending > 0;
    if !waits || settings.contains(&"filter_subjects") {
        check_subjects(stream, config)?;
    }
    if !settings.is_empty() {
        if is_for_others(&info.config, config) {
            left_out::note(&mut changed.metadata, &info, config);
        }
        let mut updated = stream.update_consumer(changed.clone()).await;
        if let Err(error) = &updated
            && let ConsumerUpdateErrorKind::JetStream(refusal) = error.kind()
            && is_excess(&refusal)
        {
            updated = stream.update_consumer(pull::Config { max_ack_pending, ..changed }).await;
        }
        updated.map_err(Error::jetstream("change the durable consumer"))?;
        let settings = settings.join(", ");
        info!(consumer, stream = name, settings, "changed the durable consumer");
        if is_for_others(&info.config, config) {
            warn!(
                consumer,
                before = filters_of(&info.config).join(", "),
                now = config.filter_subjects.join(", "),
                "it is for other subjects from here on: `tailpost inbox rewind` brings earlier events"
            );
        }
    }
    let opened = stream.get_consumer(consumer).await;
    opened.map(|it| (it, false)).map_err(Error::jetstream(LOOKING))
}

/// The subjects under which a stream stores what it takes.
#[must_use]
pub fn stored_subjects(config: &stream::Config) -> Vec<String> {
    match &config.subject_transform {
        None => config.subjects.clone(),
        Some(it) => wire::transformed(&config.subjects, &it.source, &it.destination),
    }
}

/// Refuses another number of partitions than the stream has, if the broker says how many those are.
pub(crate) async fn check_divided(nats: &Client, config: &Config) -> Result<(), Error> {
    match stream(nats, config).await {
        Ok(stream) => check_partitions(&stream, config),
        Err(_) => Ok(()),
    }
}

fn check_partitions(stream: &Stream, config: &Config) -> Result<(), Error> {
    let found = stream.cached_info().config.metadata.get(wire::PARTITIONS);
    other_partitions(found.map(String::as_str), config).map_or(Ok(()), |problem| {
        Err(Error::Refused {
            problem,
            hint: "relay.partitions and `tailpost setup` divide a stream that has no messages",
        })
    })
}

fn other_partitions(found: Option<&str>, config: &Config) -> Option<String> {
    let wanted = config.partitions?.to_string();
    let setting = format!("inbox.{}.partitions", config.consumer);
    let name = &config.stream;
    match found.filter(|it| *it != "1") {
        Some(found) if found == wanted => None,
        Some(found) => Some(format!(
            "{setting} = {wanted}, and stream \"{name}\" has {found}: set {setting} = {found}"
        )),
        None => Some(format!(
            "{setting} = {wanted}, and stream \"{name}\" is not divided: remove the setting; or, \
             if the subjects are divided, `nats stream edit {name} --metadata partitions={wanted}`"
        )),
    }
}

/// Refuses subjects of which a stream has none because it transforms them.
fn check_subjects(stream: &Stream, config: &Config) -> Result<(), Error> {
    let (found, filters) = (&stream.cached_info().config, &config.filter_subjects);
    let stored = stored_subjects(found);
    let is_stored = |it: &String| stored.iter().any(|stored| wire::subjects_overlap(stored, it));
    if found.subject_transform.is_none() || filters.is_empty() || filters.iter().any(is_stored) {
        return Ok(());
    }
    Err(Error::Refused {
        problem: format!(
            "consumer \"{}\" would get nothing: it is for {}, and by its subject_transform stream \
             \"{}\" stores events as {}",
            config.consumer,
            filters.join(", "),
            config.stream,
            stored.join(", ")
        ),
        hint: "name subjects under which events are stored in inbox.NAME.subjects, or remove the \
               transform",
    })
}

async fn create(stream: &Stream, wanted: pull::Config) -> Result<Consumer, Error> {
    let mut created = stream.create_consumer(wanted.clone()).await;
    if let Err(error) = &created
        && let ConsumerErrorKind::JetStream(refusal) = error.kind()
        && is_excess(&refusal)
    {
        // As many as may be, then.
        let allowed = pull::Config { max_ack_pending: 0, ..wanted };
        created = stream.create_consumer(allowed).await;
    }
    created.map_err(Error::jetstream("create the durable consumer"))
}

/// Whether a stream that is a work queue refuses a consumer, because another one is for its events.
fn shares_queue(error: &Error) -> bool {
    let Error::JetStream { source, .. } = error else { return false };
    let refusal = source.downcast_ref::<ConsumerError>().map(ConsumerError::kind);
    let Some(ConsumerErrorKind::JetStream(refusal)) = refusal else { return false };
    let codes =
        [ErrorCode::CONSUMER_WQ_CONSUMER_NOT_UNIQUE, ErrorCode::CONSUMER_WQ_MULTIPLE_UNFILTERED];
    codes.contains(&refusal.error_code())
}

/// Names the consumer that has the events.
async fn taken(stream: &Stream, config: &Config, error: Error) -> Error {
    let wanted = &config.filter_subjects;
    let mut all = stream.consumers();
    while let Some(Ok(info)) = all.next().await {
        let filters = filters_of(&info.config);
        let shares = |it: &String| wanted.iter().any(|wanted| wire::subjects_overlap(it, wanted));
        if filters.is_empty() || wanted.is_empty() || filters.iter().any(shares) {
            let (name, other) = (&config.stream, &info.name);
            return Error::Refused {
                problem: format!(
                    "stream \"{name}\" is a work queue, which gives each event to one consumer, and \
                     \"{other}\" has events that \"{}\" is for; `nats consumer rm {name} {other} \
                     --force` deletes it",
                    config.durable()
                ),
                hint: "delete the other consumer if nobody needs it, such as after a change of \
                       inbox.NAME.partitions, or choose other subjects: nothing is handled twice, the \
                       inbox knows what it has handled",
            };
        }
    }
    error
}

/// Durable consumers that the inbox made when the consumer was divided otherwise.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn left_over<I>(stream: &Stream<I>, config: &Config) -> Result<Vec<String>, Error> {
    let name = &config.consumer;
    let numbers = config.partitions.map_or(0, NonZeroU32::get)..;
    let others = numbers.map(|it| format!("{name}-{it}"));
    let undivided = config.partitions.map(|_| name.clone());
    let (mut found, mut more) = (Vec::new(), others);
    for durable in undivided.into_iter().chain(more.by_ref()) {
        match stream.consumer_info(&durable).await {
            Ok(_) => found.push(durable),
            Err(error) if !is_not_found(&error) => return Err(Error::jetstream(LOOKING)(error)),
            Err(_) if durable == *name => {}
            Err(_) => break,
        }
    }
    Ok(found)
}

/// What the broker knows about the durable consumer, if there is one.
///
/// # Errors
///
/// If the broker refuses or does not answer.
pub async fn find<I>(stream: &Stream<I>, config: &Config) -> Result<Option<Info>, Error> {
    match stream.consumer_info(&config.durable()).await {
        Ok(info) => Ok(Some(info)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(Error::jetstream(LOOKING)(error)),
    }
}

/// The subjects that a consumer is for; all if there are none.
#[must_use]
pub fn filters_of(config: &consumer::Config) -> Vec<String> {
    let one = Some(&config.filter_subject).filter(|it| !it.is_empty());
    one.into_iter().chain(&config.filter_subjects).cloned().collect()
}

/// Whether they let a message of this subject through.
pub(crate) fn take(filters: &[String], subject: &str) -> bool {
    filters.is_empty() || filters.iter().any(|it| wire::subject_matches(it, subject))
}

const LOOKING: &str = "look up the durable consumer";

/// Whether the consumer is for other subjects than the configuration says.
pub(crate) fn is_for_others(found: &consumer::Config, config: &Config) -> bool {
    all_of(filters_of(found)) != all_of(config.filter_subjects.clone())
}

/// None is all.
fn all_of(filters: Vec<String>) -> BTreeSet<String> {
    if filters.iter().any(|it| it == ">") { BTreeSet::new() } else { filters.into_iter().collect() }
}

/// The settings in which a consumer is not as the configuration wants it.
#[must_use]
pub fn differences(found: &consumer::Config, config: &Config) -> Vec<&'static str> {
    changes(found, config).map(|it| it.1).unwrap_or_default()
}

/// What makes a consumer useless for an inbox, and stays for as long as the consumer.
#[must_use]
pub fn obstacle(found: &consumer::Config) -> Option<&'static str> {
    if found.deliver_subject.is_some() {
        return Some("it is a push consumer");
    }
    if found.ack_policy != AckPolicy::Explicit {
        return Some("its ack_policy is not explicit");
    }
    if found.replay_policy != ReplayPolicy::Instant {
        return Some("its replay_policy is not instant");
    }
    if matches!(found.deliver_policy, DeliverPolicy::Last | DeliverPolicy::LastPerSubject) {
        return Some("its deliver_policy leaves out events");
    }
    (!found.priority_groups.is_empty()).then_some("it has priority_groups")
}

/// The consumer as it should be, and the settings in which it was not.
fn changes(
    found: &consumer::Config,
    config: &Config,
) -> Result<(pull::Config, Vec<&'static str>), Error> {
    let is_other = is_for_others(found, config);
    let found = pull::Config::try_from_consumer_config(found.clone());
    let found = found.map_err(Error::jetstream(LOOKING))?;
    let wanted = wanted(config);
    let is_unchosen = found.max_ack_pending == ACK_PENDING_UNCHOSEN;
    let pulled_max = i64::try_from(PULLED_MAX).unwrap_or(i64::MAX);
    let is_limited = (1..pulled_max).contains(&found.max_batch)
        || found.max_bytes > 0
        || (!found.max_expires.is_zero() && found.max_expires < PULL_EXPIRES);
    let settings = [
        ("filter_subjects", is_other),
        // A backoff stands in for ack_wait.
        ("ack_wait", found.ack_wait != wanted.ack_wait || !found.backoff.is_empty()),
        ("max_deliver", found.max_deliver > 0),
        ("max_ack_pending", is_unchosen),
        ("headers_only", found.headers_only),
        ("inactive_threshold", !found.inactive_threshold.is_zero()),
        ("limits of requests", is_limited),
    ];
    let mut changed = pull::Config {
        filter_subject: wanted.filter_subject,
        filter_subjects: wanted.filter_subjects,
        ack_wait: wanted.ack_wait,
        backoff: Vec::new(),
        max_deliver: wanted.max_deliver,
        headers_only: false,
        inactive_threshold: Duration::ZERO,
        ..found
    };
    if is_unchosen {
        changed.max_ack_pending = wanted.max_ack_pending;
    }
    if is_limited {
        (changed.max_batch, changed.max_bytes) = (0, 0);
        changed.max_expires = Duration::ZERO;
    }
    let settings = settings.iter().filter(|(_, differs)| *differs).map(|(name, _)| *name);
    Ok((changed, settings.collect()))
}

fn wanted(config: &Config) -> pull::Config {
    let mut filter_subjects = config.filter_subjects.clone();
    // Servers before 2.10 know only one.
    let filter_subject =
        if filter_subjects.len() == 1 { filter_subjects.remove(0) } else { String::new() };
    pull::Config {
        durable_name: Some(config.durable()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: config.ack_wait,
        // The budget is in the record: leases and restarts must not use it up.
        max_deliver: -1,
        max_ack_pending: ACK_PENDING_MAX,
        filter_subject,
        filter_subjects,
        ..pull::Config::default()
    }
}

/// Whether the stream or the account allows a consumer fewer events without an acknowledgement.
fn is_excess(refusal: &jetstream::Error) -> bool {
    refusal.error_code() == ErrorCode::CONSUMER_MAX_PENDING_ACK_EXCESS
}

fn is_not_found(error: &ConsumerInfoError) -> bool {
    error.kind() == ConsumerInfoErrorKind::NotFound
}

#[cfg(test)]
mod tests {
    use async_nats::jetstream::stream::RetentionPolicy;
    use lab::{Nats, NatsOptions};

    use super::*;

    /// The command in the refusal is what mends it.
    #[tokio::test]
    async fn a_work_queue_whose_events_another_consumer_has_is_refused_with_what_mends_it() {
        let server = Nats::start(NatsOptions::default()).await.expect("start NATS");
        let nats = server.client().await.expect("connect");
        let (subjects, retention) = (vec!["out.>".to_owned()], RetentionPolicy::WorkQueue);
        let mut queue =
            stream::Config { name: "S".into(), subjects, retention, ..stream::Config::default() };
        queue.metadata.insert(wire::PARTITIONS.into(), "2".into());
        let stream = servers::jetstream_of(&nats).create_stream(queue).await.expect("a stream");
        let whole = Config { stream: "S".into(), ..Config::new("a".into()) };
        let divided = Config {
            partitions: NonZeroU32::new(2),
            filter_subjects: vec!["out.{partition}.>".into()],
            ..whole.clone()
        };
        open(&stream, &whole).await.expect("the first consumer");
        assert_eq!(left_over(&stream, &whole).await.expect("look"), Vec::<String>::new());
        let delete = async |refused: Result<_, Error>| {
            let Err(Error::Refused { problem, .. }) = refused else { panic!("it is made") };
            let command = problem.split('`').nth(1).expect("a command");
            let words: Vec<&str> = command.split(' ').collect();
            let ["nats", "consumer", "rm", "S", other, "--force"] = words[..] else {
                panic!("{command}")
            };
            stream.delete_consumer(other).await.expect("delete it");
        };
        for part in divided.parts() {
            if part.partition == 0 {
                delete(open(&stream, &part).await).await;
            }
            open(&stream, &part).await.expect("the consumer of a partition");
        }
        assert_eq!(left_over(&stream, &whole).await.expect("look"), ["a-0", "a-1"]);
        let one = Config { partitions: NonZeroU32::new(1), ..divided.clone() };
        assert_eq!(left_over(&stream, &one).await.expect("look"), ["a-1"]);
        for _ in 0..2 {
            delete(open(&stream, &whole).await).await;
        }
        open(&stream, &whole).await.expect("the first consumer");
        assert_eq!(left_over(&stream, &divided).await.expect("look"), ["a"]);
    }

    #[test]
    fn what_is_to_be_set_for_another_number_of_partitions_can_be_set() {
        let partitions = std::num::NonZeroU32::new(4);
        let config = Config { partitions, stream: "S".into(), ..Config::new("a".into()) };
        let told = |found| other_partitions(found, &config);
        assert_eq!(told(Some("4")), None);
        assert!(told(Some("8")).is_some_and(|it| it.ends_with("set inbox.a.partitions = 8")));
        for found in [None, Some("1")] {
            let told = told(found).expect("it is not divided");
            assert!(told.ends_with("`nats stream edit S --metadata partitions=4`"), "{told}");
        }
    }
}
