//! What needs a person, the worst first, each with where to look and the first thing to do.

use jiff::{SignedDuration, Timestamp};

use super::answers::{Failing, Group, ShardStatus};
use super::figures::{bytes, count, counted, first_line, rate, rounded, short, span, until};
use super::history::Reach;
use super::operator_answers::{Operation, Progress};
use super::picture::{
    ConsumerView, Failure, Inbox, Link, Picture, Process, Relay, consumer_series,
};

/// A log that is full within this time needs a person now.
const HEADROOM_SECONDS: u64 = 86_400;
/// One that is nearly empty may only have had much at once, unless it is full within this time.
const HEADROOM_LEAST_SECONDS: u64 = 3_600;
/// A relay with events in flight and for so long no answer does not get on.
const STANDSTILL_SECONDS: f64 = 5.0;
/// From how many seconds the trend of what waits for a consumer is, and from how few at least.
const TREND_SECONDS: i64 = 60;
const TREND_MIN: f64 = 5.0;
/// What is tried again within this time needs nobody yet.
const RETRY_SECONDS: i64 = 60;
/// Groups of dead letters that the first screen lists of each queue.
const GROUPS_SHOWN: usize = 5;

const NATS_AWAY: &str = "NATS is away: nothing is published";
/// What a consumer without its broker is told as: the page of it has the error.
const NO_ANSWER: &str = "no answer from NATS";

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weight {
    /// Events do not get through, or are about to be lost.
    Stops,
    /// Some wait.
    Waits,
    /// All get through, and late.
    Late,
    /// Nothing waits for it.
    Look,
}

/// The first thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Act {
    pub(crate) label: &'static str,
    pub(crate) path: String,
    pub(crate) kind: ActKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ActKind {
    /// Shows more.
    Show,
    /// Is planned first.
    Plan,
    /// Is done at once.
    Change,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) weight: Weight,
    pub(crate) subject: String,
    pub(crate) what: String,
    /// Facts, each a few words.
    pub(crate) facts: Vec<String>,
    pub(crate) since: Option<Timestamp>,
    /// When it is tried again.
    pub(crate) next: Option<Timestamp>,
    /// Where to look.
    pub(crate) path: String,
    pub(crate) act: Option<Act>,
}

impl Need {
    fn new(weight: Weight, subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            weight,
            subject: subject.into(),
            what: what.into(),
            facts: Vec::new(),
            since: None,
            next: None,
            path: "/".into(),
            act: None,
        }
    }

    fn fact(mut self, fact: Option<String>) -> Self {
        self.facts.extend(fact);
        self
    }

    fn since(self, since: Option<Timestamp>) -> Self {
        Self { since, ..self }
    }

    fn at(self, path: impl Into<String>) -> Self {
        Self { path: path.into(), ..self }
    }

    fn act(self, label: &'static str, path: impl Into<String>, kind: ActKind) -> Self {
        Self { act: Some(Act { label, path: path.into(), kind }), ..self }
    }
}

pub(crate) fn needs(picture: &Picture, now: Timestamp) -> Vec<Need> {
    let mut needs = Vec::new();
    for relay in &picture.relays {
        let own = of_relay(relay, now);
        // A database that is away has no answer, either.
        let is_told = own.iter().any(|it| it.weight == Weight::Stops);
        let unread = relay.unread.as_ref().filter(|_| !is_told);
        needs.extend(of_processes(&relay.key, &relay.processes, unread, "relay"));
        needs.extend(own);
        let whose = (picture.relays.len() > 1).then(|| relay.key.clone());
        needs.extend(of_outbox_letters(relay).into_iter().map(|it| it.fact(whose.clone())));
    }
    for inbox in &picture.inboxes {
        needs.extend(of_processes(&inbox.key, &inbox.processes, inbox.unread.as_ref(), "inbox"));
    }
    needs.extend(picture.databases().flat_map(of_inbox_letters));
    let consumers = picture.consumers();
    for need in consumers.iter().filter_map(|it| of_consumer(it, picture, now)) {
        match needs.iter_mut().find(|it| need.what == NO_ANSWER && it.what == NATS_AWAY) {
            Some(told) => told.facts.push(format!("{} waits, too", need.subject)),
            None => needs.push(need),
        }
    }
    needs.extend(consumers.iter().filter_map(of_unread));
    needs.extend(of_replays(picture));
    needs.sort_by_key(|it| it.weight);
    needs
}

/// Who does not answer, since when, and why.
fn of_processes<S>(
    key: &str,
    processes: &[Process<S>],
    unread: Option<&Failure>,
    kind: &str,
) -> Vec<Need> {
    let are_all_away = processes.iter().all(|it| matches!(it.link, Link::Down { .. }));
    let weight = if are_all_away { Weight::Stops } else { Weight::Look };
    let away = processes.iter().filter_map(|it| match &it.link {
        Link::Down { since, why } => {
            // The error has the address.
            let need = Need::new(weight, key, &why.error).since(Some(*since));
            Some(need.fact(why.hint.clone()))
        }
        Link::NotAsked | Link::Up => None,
    });
    let mut needs: Vec<_> = away.collect();
    if let Some(why) = unread.filter(|_| needs.is_empty()) {
        let weight = if processes.is_empty() { Weight::Stops } else { Weight::Waits };
        let subject = if processes.is_empty() { key } else { kind };
        let what = if processes.is_empty() { "" } else { "what its database has is not known: " };
        let what = format!("{what}{}", why.error);
        needs.push(Need::new(weight, subject, what).fact(why.hint.clone()));
    }
    needs
}

fn of_relay(relay: &Relay, now: Timestamp) -> Vec<Need> {
    let shards = relay.shards();
    let mut needs = Vec::new();
    let is_up = relay.processes.iter().any(Process::is_up);
    if is_up && !shards.iter().any(|(_, it)| it.role == "active") {
        let error = shards.iter().find_map(|(_, it)| it.last_error.clone());
        let since = shards.iter().filter_map(|(_, it)| got_on(it, now)).max();
        let what = match has_lost_database(relay) {
            true => "PostgreSQL is away: nothing is published",
            false => "no process is the active relay",
        };
        let need = Need::new(Weight::Stops, &relay.key, what);
        needs.push(need.fact(error).since(since));
    }
    for shard in relay.active() {
        let name = shard_name(relay, shard);
        needs.extend(of_servers(&name, shard, now));
        needs.extend(of_slot(&name, shard));
        needs.extend(of_upkeep(&name, shard));
    }
    let is_told = needs.iter().any(|it| it.weight == Weight::Stops);
    for process in relay.processes.iter().filter(|it| it.is_up() && !it.ready.ready && !is_told) {
        if let Some(reason) = &process.ready.reason {
            let is_active = process.status.shards().iter().any(|it| it.role == "active");
            let weight = if is_active { Weight::Stops } else { Weight::Look };
            needs.push(Need::new(weight, &process.address, reason));
        }
    }
    needs
}

/// A relay that lost its database begins anew, and says why it does not get on.
pub(crate) fn has_lost_database(relay: &Relay) -> bool {
    let mut shards = relay.shards().into_iter().map(|(_, it)| it);
    shards.any(|it| !it.postgres_connected && it.last_error.is_some())
}

fn shard_name(relay: &Relay, shard: &ShardStatus) -> String {
    match shard.shard {
        Some(number) => format!("{} shard {number}", relay.key),
        None => relay.key.clone(),
    }
}

/// When it last got on.
fn got_on(shard: &ShardStatus, now: Timestamp) -> Option<Timestamp> {
    let age = SignedDuration::try_from_secs_f64(shard.last_progress_age_seconds?).ok()?;
    now.checked_sub(age).ok()
}

pub(crate) fn of_servers(name: &str, shard: &ShardStatus, now: Timestamp) -> Option<Need> {
    let error = shard.last_error.clone();
    if !shard.postgres_connected {
        let need = Need::new(Weight::Stops, name, "PostgreSQL is away: nothing is published");
        return Some(need.fact(error).since(got_on(shard, now)));
    }
    if shard.is_broker_away() {
        let again = shard.breaker_retry_in_seconds;
        let again = again.map(|it| format!("tries again in {it:.0} s at the latest"));
        let need = Need::new(Weight::Stops, name, NATS_AWAY).since(shard.nats_lost_at);
        // Rows are counted now and then; meanwhile more are in flight.
        let rows = shard.unpublished.unwrap_or(0).max(shard.in_flight_events);
        let wait = (rows > 0).then(|| counted(rows, "event waits", "events wait"));
        let need = need.fact(shard.nats.clone()).fact(wait).fact(error).fact(again);
        return Some(need.act("Show the checks", "/checks", ActKind::Show));
    }
    if let Some(waits) = &shard.waiting_for {
        return Some(Need::new(Weight::Waits, name, format!("waiting {waits}")).fact(error));
    }
    let in_flight = Some(shard.in_flight_events).filter(|it| *it > 0)?;
    let age = shard.last_progress_age_seconds.filter(|it| *it > STANDSTILL_SECONDS)?;
    let what = format!("NATS acknowledged no event for {}", span(rounded(age)));
    let wait = counted(in_flight, "event is in flight", "events are in flight");
    let need = Need::new(Weight::Stops, name, what).fact(shard.nats.clone());
    Some(need.fact(Some(wait)).fact(error))
}

fn of_slot(name: &str, shard: &ShardStatus) -> Option<Need> {
    let slot = shard.slot.as_ref()?;
    if slot.wal_status.as_deref() == Some("lost") {
        let what = "the slot is lost: the relay makes another, and reads the table";
        return Some(Need::new(Weight::Stops, name, what));
    }
    let is_little = slot.wal_headroom_bytes.is_some_and(|left| slot.retained_bytes < left / 9);
    let soon = if is_little { HEADROOM_LEAST_SECONDS } else { HEADROOM_SECONDS };
    let seconds = slot.wal_headroom_seconds.filter(|it| *it < soon);
    let is_short = slot.wal_status.as_deref() == Some("unreserved");
    if seconds.is_none() && !is_short {
        return None;
    }
    let of = slot.wal_headroom_bytes.map(|left| bytes(slot.retained_bytes + left));
    let of = of.map(|it| format!(" of {it}")).unwrap_or_default();
    let what = format!("the slot keeps {}{of} of log", bytes(slot.retained_bytes));
    let until = seconds.map(|it| format!("full in {} at this rate", span(it)));
    Some(Need::new(Weight::Stops, name, what).fact(until))
}

/// How much more a slot may keep. The relay sees no growth in a few seconds in which nothing came.
pub(crate) fn headroom(picture: &Picture, shard: &ShardStatus, now: Timestamp) -> Option<String> {
    let slot = shard.slot.as_ref()?;
    let [then, lately] = [[65, 55], [10, 0]].map(|ago| picture.history.mean("slot", now, ago));
    let grew = then.is_some() && lately > then;
    Some(match (slot.wal_headroom_bytes.map(bytes), slot.wal_headroom_seconds) {
        (Some(left), Some(seconds)) => format!("{left} more, in {} at this rate", span(seconds)),
        (Some(left), None) if grew || shard.is_broker_away() => format!("{left} more"),
        (Some(left), None) => format!("{left} more; it does not grow"),
        (None, _) => "none is set: relay.wal_limit, max_slot_wal_keep_size".into(),
    })
}

fn of_upkeep(name: &str, shard: &ShardStatus) -> Vec<Need> {
    let mut needs = Vec::new();
    if let Some(missing) = &shard.history.missing {
        needs.push(Need::new(Weight::Stops, name, missing.as_str()));
    }
    if let Some(kept) = shard.retention.as_ref().filter(|it| it.is_overdue) {
        let need = Need::new(Weight::Look, name, "old rows are not deleted: the table grows");
        needs.push(need.fact(kept.failure.clone()));
    }
    needs
}

fn is_follower(group: &Group) -> bool {
    super::plan::is_of_followers(&group.fingerprint)
}

fn of_outbox_letters(relay: &Relay) -> Vec<Need> {
    let groups = &relay.books.letters.groups;
    let followers: u64 = groups.iter().filter(|it| is_follower(it)).map(|it| it.count).sum();
    let causes = groups.iter().map(|it| it.count).sum::<u64>() - followers;
    let shown = groups.iter().filter(|it| causes == 0 || !is_follower(it)).take(GROUPS_SHOWN);
    let needs = shown.enumerate().map(|(number, group)| {
        let wait =
            (number == 0 && causes > 0 && followers > 0).then(|| wait_behind(followers, causes));
        let weight = if followers > 0 { Weight::Waits } else { Weight::Look };
        let need = of_group(group, weight).fact(aggregate(relay, group)).fact(wait);
        decidable(need, &relay.key, group, &relay.books.operations)
    });
    needs.collect()
}

/// Events with which nothing is wrong, behind so many letters.
pub(crate) fn wait_behind(followers: u64, letters: u64) -> String {
    let wait = counted(followers, "event waits", "events wait");
    format!("{wait} behind {}", if letters == 1 { "it" } else { "them" })
}

/// Whose the letters of a group are, if all of the queue are known and those alike are of one aggregate.
fn aggregate(relay: &Relay, group: &Group) -> Option<String> {
    let letters = &relay.books.letters;
    let cause = super::plan::literal(&group.fingerprint);
    let are_known = letters.total == letters.dead_letters.len() as u64;
    let mut alike = letters.dead_letters.iter().filter(|it| it.reason.contains(cause));
    let name = alike.next().filter(|_| are_known)?.aggregate()?;
    alike.all(|it| it.aggregate().as_ref() == Some(&name)).then(|| short(&name, 80))
}

fn of_inbox_letters(inbox: &Inbox) -> Vec<Need> {
    let groups = inbox.books.letters.groups.iter().take(GROUPS_SHOWN);
    let operations = &inbox.books.operations;
    let whose = match &*inbox.with_letters() {
        [one] => Some((*one).to_owned()),
        _ => None,
    };
    let need = |it: &Group| of_group(it, Weight::Look).fact(whose.clone());
    groups.map(|it| decidable(need(it), &inbox.key, it, operations)).collect()
}

/// With what is decided about the group, unless that is under way.
fn decidable(need: Need, source: &str, group: &Group, operations: &[Operation]) -> Need {
    let filter = filter(source, group);
    let need = need.at(format!("/dead-letters?{filter}"));
    match operations.iter().find(|it| it.is_about(group)) {
        Some(it) => {
            let Progress { done, total, .. } = it.progress;
            let fact = format!("{}: {} of {}", it.request.action, count(done), count(total));
            need.fact(Some(fact)).act("Show the work", "/work", ActKind::Show)
        }
        None => need.act(
            "Requeue…",
            format!("/dead-letters/plan?action=requeue&{filter}"),
            ActKind::Plan,
        ),
    }
}

fn of_group(group: &Group, weight: Weight) -> Need {
    let letters = counted(group.count, "dead letter", "dead letters");
    let aggregates =
        (group.aggregates > 1).then(|| format!("{} aggregates", count(group.aggregates)));
    Need::new(weight, letters, super::plan::cause(&group.fingerprint))
        .fact(aggregates)
        .since(group.first)
}

/// The query that a list of this group has.
pub(crate) fn filter(source: &str, group: &Group) -> String {
    let reason = super::plan::literal(&group.fingerprint);
    format!("source={}&reason={}", super::plan::escape(source), super::plan::escape(reason))
}

fn of_consumer(it: &ConsumerView, picture: &Picture, now: Timestamp) -> Option<Need> {
    let path = consumer_path(it);
    let worker = it.record.as_ref().and_then(|it| it.worker.as_ref());
    let waiting = it.waiting().filter(|it| *it > 0).map(|it| format!("{} wait", count(it)));
    let need = |what: String| Need::new(Weight::Waits, &*it.name, what).at(&*path);
    let oldest = it.oldest_seconds().map(|it| format!("oldest {}", span(rounded(it))));
    // What nobody confirms may be over.
    let record = it.record.as_ref().filter(|_| !it.is_unanswered);
    if let Some(pause) = record.and_then(|it| it.pause.as_ref()) {
        let why = pause.why.as_ref().map(|it| format!(": {it}")).unwrap_or_default();
        let need = need(format!("paused by {}{why}", pause.by)).since(pause.at).fact(waiting);
        return Some(need.act("Resume", format!("{path}/resume"), ActKind::Change));
    }
    let said = it.status.as_ref().and_then(|it| it.paused.clone());
    let reason = said.or_else(|| worker?.reason.clone()).or_else(|| it.unready.clone());
    let is_cut_off = reason.as_ref().is_some_and(|it| it.starts_with("the broker is away"));
    match it.state() {
        "no worker" => {
            let need = need("no worker has it: nothing is handled".into());
            Some(Need { weight: Weight::Stops, ..need }.fact(waiting).fact(oldest))
        }
        "breaker open" | "probing" => {
            let probe = it.status.as_ref().and_then(|it| it.handler.next_probe_at);
            let probe = probe.or_else(|| worker?.next_probe_at);
            let reason = reason.map(|it| format!(": {it}")).unwrap_or_default();
            let need = need(format!("breaker open{reason}")).fact(waiting).fact(oldest);
            let need = Need { next: probe, ..need };
            Some(need.act("Close breaker", format!("{path}/close-breaker"), ActKind::Change))
        }
        "waiting" | "not ready" if is_cut_off => Some(need(NO_ANSWER.into()).fact(waiting)),
        "waiting" | "not ready" => Some(need(reason?).fact(waiting)),
        "working" => of_failing(it, now),
        "behind" => of_failing(it, now).or_else(|| {
            // How many wait, and since when, the table beside it has.
            let need = need(why_behind(it, picture, now));
            Some(Need { weight: Weight::Late, ..need })
        }),
        _ => None,
    }
}

/// What left the stream before it was given it.
fn of_unread(it: &ConsumerView) -> Option<Need> {
    let why = it.record.as_ref()?.worker.as_ref()?.unread.clone()?;
    let what = "messages left the stream unread";
    Some(Need::new(Weight::Look, &*it.name, what).fact(Some(why)).at(consumer_path(it)))
}

/// How fast it gets on, and how long its attempts take. How many events come for it nobody says: it
/// may take some of the subjects only.
pub(crate) fn why_behind(it: &ConsumerView, picture: &Picture, now: Timestamp) -> String {
    let (of, moment) = ((it.source.clone(), it.name.clone()), &picture.moment);
    let Some(handles) = moment.consumers.get(&of).copied() else { return "behind".into() };
    let took = moment.attempts.get(&of).map(|it| format!(", an attempt takes {}", it.words()));
    let caught_up = catches_up(it, picture, now);
    let caught_up = caught_up.map(|it| format!(", catches up in about {}", span(it)));
    let (took, caught_up) = (took.unwrap_or_default(), caught_up.unwrap_or_default());
    format!("behind: handles {} a second{took}{caught_up}", rate(handles))
}

/// In how many seconds, if fewer wait than a minute ago.
fn catches_up(it: &ConsumerView, picture: &Picture, now: Timestamp) -> Option<u64> {
    let window = picture.history.window(Reach::QuarterHour, now);
    let waited =
        picture.history.points(&consumer_series("waiting", &it.source, &it.name), window, now);
    let recent = usize::try_from(TREND_SECONDS / window.seconds).unwrap_or(1).max(2);
    let points = waited.iter().enumerate().rev().take(recent);
    let known: Vec<_> = points.filter_map(|(at, it)| Some((at, (*it)?))).collect();
    let ((last, now_waits), (first, waited)) = (known.first()?, known.last()?);
    let seconds = super::figures::as_f64((last - first) as u64 * window.seconds.unsigned_abs());
    let fell = (waited - now_waits) / seconds;
    (seconds >= TREND_MIN && fell > 0.0).then(|| rounded(now_waits / fell))
}

/// The event that fails for longest, if that does not pass by itself: it was tried again in vain, or is
/// not for a while.
fn of_failing(view: &ConsumerView, now: Timestamp) -> Option<Need> {
    let lasts = |it: &Failing| {
        it.attempts > 1
            || it.next_attempt_at.is_some_and(|at| at.as_second() - now.as_second() > RETRY_SECONDS)
    };
    let (it, held_up) = view.failing().find(|(it, _)| lasts(it))?;
    let others = view.failing().filter(|(it, _)| lasts(it)).count() - 1;
    let waiting = held_up.map_or(0, |it| it.waiting);
    let what = match held_up.and_then(|it| it.aggregate.as_ref()).filter(|_| waiting > 0) {
        Some(aggregate) => format!("{} waits for an event that fails", short(aggregate, 80)),
        None => "an event fails".into(),
    };
    let path = consumer_path(view);
    let weight = if waiting > 0 { Weight::Waits } else { Weight::Look };
    let need = Need::new(weight, &*view.name, format!("{what}: {}", first_line(&it.last_error)))
        .fact((waiting > 0).then(|| counted(waiting, "event waits behind", "events wait behind")))
        .fact(Some(format!("attempt {}", it.attempts)))
        .fact(it.next_attempt_at.map(|at| format!("next {}", until(at, now))))
        .fact((others > 0).then(|| format!("{} more", counted(others as u64, "event", "events"))));
    let act = format!("{path}/try-now?event={}", super::plan::escape(&it.event_id));
    Some(need.at(&*path).act("Try now…", act, ActKind::Plan))
}

/// Where the page of a consumer is.
pub(crate) fn consumer_path(it: &ConsumerView) -> String {
    let (source, name) = (super::plan::escape(&it.source), super::plan::escape(&it.name));
    format!("/consumers/{source}/{name}")
}

fn of_replays(picture: &Picture) -> Vec<Need> {
    let of = |relay: &Relay| {
        let all = relay.books.replays.iter().filter(|it| it.is_under_way());
        let need = |replay: &super::answers::Replay| {
            let path = format!("/work/replays/{}/{}", relay.key, replay.id);
            if replay.failed > 0 {
                let failed = counted(replay.failed, "event", "events");
                let what = format!("{failed} could not be published again");
                return Some(Need::new(Weight::Look, "replay", what).at(path));
            }
            let waits = replay.waits_for.as_ref()?;
            Some(Need::new(Weight::Look, "replay", format!("waits: {waits}")).at(path))
        };
        all.filter_map(need).collect::<Vec<_>>()
    };
    picture.relays.iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests;
