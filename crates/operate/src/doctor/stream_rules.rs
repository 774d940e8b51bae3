//! What a stream has to be like. What loses or weakens is decided where a relay decides it.

use std::time::Duration;

use crate::checks::{
    Category, Judged, Remedy, Rule, Severity, Skip, error, ok, shell_word, warning,
};
use async_nats::jetstream::stream::Config as Stream;
use outbox::wire::subjects_overlap;
use relay::access::stream_check;
use relay::{Config, Mode};

use super::facts::{Overlap, Seen};

pub(super) const RULES: &[Rule<Seen>] = &[
    rule("stream-exists", "the stream exists", exists),
    rule("stream-overlap", "no other stream takes its subjects", overlap).before_setup(),
    rule("stream-leader", "its leader reads headers right", |it| finding(it, "leader")),
    rule("stream-subjects", "it takes every subject of the relay", |it| finding(it, "subjects")),
    rule("stream-storage", "it is kept on disk", |it| finding(it, "storage")),
    rule("stream-persistence", "it writes before it acknowledges", |it| finding(it, "persistence")),
    rule("stream-acks", "it acknowledges", |it| finding(it, "acks")),
    rule("stream-seal", "it takes messages", |it| finding(it, "seal")),
    rule("stream-mirror", "it is no mirror", |it| finding(it, "mirror")),
    rule("stream-sources", "it is the relay's own", |it| finding(it, "sources")),
    rule("stream-retention", "messages stay until a limit", |it| finding(it, "retention")),
    rule("stream-replicas", "several servers keep it", replicas),
    rule("stream-duplicate-window", "it remembers ids for as long as configured", |it| {
        finding(it, "duplicate_window")
    }),
    rule("stream-discard", "it refuses what it has no room for", |it| finding(it, "discard")),
    rule("stream-per-subject", "no subject has a limit of its own", |it| {
        finding(it, "per-subject")
    }),
    rule("stream-rollup", "no message removes others", |it| finding(it, "rollup")),
    rule("stream-interest", "events wait for consumers", |it| finding(it, "interest")),
    rule("stream-transform", "events are where the relay publishes them", |it| {
        finding(it, "transform")
    }),
    rule("stream-counter", "it takes any message", |it| finding(it, "counter")),
    rule("stream-partitions", "its partitions are those of the relay", |it| {
        finding(it, stream_check::PARTITIONS)
    }),
    rule("stream-batches", "it takes batches", |it| finding(it, "batches")),
    rule("stream-end", "it has what it has acknowledged", end),
    rule("stream-room", "it has room", room),
    rule("stream-message-size", "the largest row fits", message_size),
    rule("stream-max-age", "it keeps messages for as long as configured", max_age),
];

const fn rule(id: &'static str, title: &'static str, judge: fn(&Seen) -> Judged) -> Rule<Seen> {
    Rule::new(id, Category::Stream, title, judge)
}

/// Subjects of others: a shell must not read them.
fn quoted(subjects: &str) -> String {
    format!("'{}'", subjects.replace('\'', r"'\''"))
}

fn edit(stream: &str, option: &str) -> Vec<Remedy> {
    vec![Remedy::shell(format!("nats stream edit {} {option}", shell_word(stream)))]
}

fn exists(seen: &Seen) -> Judged {
    let (version, name) = (&seen.broker()?.version, &seen.config.stream.name);
    let is_offline = |it: &&Skip| it.0.contains("stream is offline");
    if let Some(Skip(said)) = seen.shard.stream.as_ref().err().filter(is_offline) {
        let advice = match said.contains("unsupported") {
            true => format!(
                "nats-server {version} is older than the one that wrote the stream: upgrade it again"
            ),
            false => "start the servers that keep the stream".into(),
        };
        return error(said.clone(), [Remedy::advice(advice)]);
    }
    match seen.shard.stream.as_ref().map_err(Clone::clone)? {
        Some(stream) => ok(format!("stream {name}, {} messages", stream.messages)),
        None => error(format!("there is no stream {name}"), [Remedy::shell("tailpost setup")]),
    }
}

fn overlap(seen: &Seen) -> Judged {
    let found = seen.shard.overlaps.as_ref().map_err(Clone::clone)?;
    match taken(&seen.config, found) {
        None => ok("none does"),
        Some((evidence, remedies)) => error(evidence, remedies),
    }
}

/// What other streams take of ours, and what ends that.
pub(crate) fn taken(config: &Config, found: &[Overlap]) -> Option<(String, Vec<Remedy>)> {
    let ours = [config.stream.subjects.clone(), config.routing().patterns()].concat();
    let is_ours = |subject: &&String| ours.iter().any(|it| subjects_overlap(it, subject));
    let (mut evidence, mut remedies) = (Vec::new(), Vec::new());
    for Overlap { stream, takes } in found {
        let (taken, left): (Vec<&String>, Vec<&String>) = takes.iter().partition(is_ours);
        let join = |all: &[&String]| all.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(",");
        evidence.push(format!("stream {stream} takes {}", join(&taken)));
        remedies.extend(match (left.is_empty(), config.shard()) {
            (false, _) => edit(stream, &format!("--subjects {}", quoted(&join(&left)))),
            (true, None) => vec![Remedy::setting("stream.name", stream)],
            // Subjects of shards are longer by default.
            (true, Some(_)) if *takes == ["outbox.>"] => edit(stream, "--subjects 'outbox.*.*'"),
            (true, Some(_)) => vec![Remedy::advice(format!(
                "let stream {stream} take no subject with the number of a shard"
            ))],
        });
    }
    (!evidence.is_empty()).then(|| (evidence.join("; "), remedies))
}

/// What the relay itself would say at its start.
fn finding(seen: &Seen, about: &str) -> Judged {
    let stream = &seen.stream()?.config;
    let found = stream_check::findings(&seen.config, stream, &seen.broker()?.version);
    let mut found = found.into_iter().chain(seen.stream()?.mapped.clone());
    let Some(found) = found.find(|it| it.about == about) else {
        return ok(well(stream, about));
    };
    let remedies = remedies(seen, about, found.fix);
    match found.fatal {
        true => error(found.reason, remedies),
        false => warning(found.reason, remedies),
    }
}

fn well(stream: &Stream, about: &str) -> String {
    match about {
        "subjects" => stream.subjects.join(", "),
        "storage" => "storage = file".into(),
        "retention" => format!("retention = {:?}", stream.retention).to_lowercase(),
        stream_check::PARTITIONS => {
            format!("partitions = {}", stream_check::recorded_partitions(stream))
        }
        "duplicate_window" => format!("duplicate_window = {:?}", stream.duplicate_window),
        "discard" => format!("discard = {:?}", stream.discard).to_lowercase(),
        _ => "as it should be".into(),
    }
}

/// What cannot be changed needs a stream of another name, and the old one's subjects.
fn remedies(seen: &Seen, about: &str, fix: String) -> Vec<Remedy> {
    let name = &seen.config.stream.name;
    // Several have names made of one.
    let base = match seen.config.shard() {
        Some(_) => name.rsplit_once('_').map_or(&**name, |(base, _)| base),
        None => name,
    };
    let renamed = Remedy::setting("stream.name", &format!("{base}_NEW"));
    match about {
        _ if fix.starts_with("nats ") => vec![Remedy::shell(fix)],
        "storage" | "persistence" | "retention" | "counter" => vec![
            Remedy::shell(format!("nats stream edit {name} --subjects 'retired.{name}'")),
            renamed,
            Remedy::shell("tailpost setup"),
        ],
        "mirror" => vec![renamed, Remedy::shell("tailpost setup")],
        "seal" => vec![
            Remedy::shell(format!("nats stream backup {name} ./{name}.backup")),
            Remedy::shell(format!("nats stream rm {name} --force")).with_caution(
                "only once the backup has ended well: messages and consumers are in it alone then, \
                 and what consumers had not handled has to be restored from it",
            ),
            Remedy::shell("tailpost setup"),
        ],
        "sources" => vec![Remedy::setting("relay.mode", "keyed")],
        _ if fix.starts_with("tailpost ") => vec![Remedy::shell(fix)],
        _ => vec![Remedy::advice(fix)],
    }
}

fn replicas(seen: &Seen) -> Judged {
    let stream = seen.stream()?;
    let judged = finding(seen, "replicas")?;
    let count = stream.config.num_replicas;
    match judged.severity {
        Severity::Warning if seen.broker()?.cluster.is_none() => warning(
            judged.evidence,
            [Remedy::advice(format!(
                "run three nats-servers as a cluster, then `nats stream edit {} --replicas 3`",
                seen.config.stream.name
            ))],
        ),
        Severity::Ok => ok(format!("{count} replicas")),
        _ => Ok(judged),
    }
}

/// Whether a limit is nine tenths reached.
fn is_near(used: u64, limit: i64) -> bool {
    u64::try_from(limit).is_ok_and(|limit| limit > 0 && used >= limit / 10 * 9)
}

/// Room for more than there is: the limit may have been lowered below that.
fn roomy(used: u64, limit: i64) -> i64 {
    let used = i64::try_from(used).unwrap_or(i64::MAX);
    limit.saturating_mul(10).max(used.saturating_mul(2))
}

fn room(seen: &Seen) -> Judged {
    let (stream, name) = (seen.stream()?, &seen.config.stream.name);
    let limits = &stream.config;
    let (mut evidence, mut remedies) = (Vec::new(), Vec::new());
    if is_near(stream.messages, limits.max_messages) {
        evidence.push(format!("{} of max_msgs = {}", stream.messages, limits.max_messages));
        remedies.extend(edit(
            name,
            &format!("--max-msgs={}", roomy(stream.messages, limits.max_messages)),
        ));
    }
    if is_near(stream.bytes, limits.max_bytes) {
        evidence.push(format!("{} of max_bytes = {}", stream.bytes, limits.max_bytes));
        remedies
            .extend(edit(name, &format!("--max-bytes={}", roomy(stream.bytes, limits.max_bytes))));
    }
    if remedies.is_empty() {
        return ok(format!("{} messages, {} bytes", stream.messages, stream.bytes));
    }
    warning(evidence.join(", "), remedies)
}

fn end(seen: &Seen) -> Judged {
    let Some(lost) = seen.shard.lost.as_ref().map_err(Clone::clone)? else {
        return ok("it was never found to lack any of it");
    };
    let said = lost.said(&seen.config.stream.name);
    match lost.unanswered() {
        0 if !lost.restores => ok(said),
        0 => warning(
            format!("{said}, which is not done"),
            [Remedy::advice(
                "see that a relay runs, and that the stream has room (`tailpost status`)",
            )],
        ),
        rest => error(
            format!("{said}, and no row tells of the other {rest}"),
            [
                Remedy::shell(format!(
                    "{} --execute --why 'the stream lost its end'",
                    lost.replay()
                ))
                .with_caution(
                    "it needs the log that rewind.retain has kept, and publishes all of it again: \
                         consumers without an inbox have its effects twice",
                ),
                Remedy::sql(lost.answer(&seen.config)),
            ],
        ),
    }
}

fn message_size(seen: &Seen) -> Judged {
    let stream = seen.stream()?;
    let max = i64::from(stream.config.max_message_size);
    if max <= 0 {
        return ok("max_msg_size is not set");
    }
    let Some(largest) = seen.contents()?.largest_payload else {
        return ok(format!("max_msg_size = {max}, and no row waits"));
    };
    let evidence = format!("max_msg_size = {max}, and the largest row that waits has {largest}");
    if largest < max {
        return ok(evidence);
    }
    error(evidence, edit(&seen.config.stream.name, "--max-msg-size=-1"))
}

fn max_age(seen: &Seen) -> Judged {
    let (stream, wanted) = (seen.stream()?, seen.config.stream.max_age);
    let found = stream.max_age();
    let say = |it: Option<Duration>| it.map_or("none".to_owned(), |it| format!("{it:?}"));
    let evidence = format!("max_age is {}, and stream.max_age {}", say(found), say(wanted));
    let is_short = found.is_some_and(|found| wanted.is_none_or(|wanted| found < wanted));
    if !is_short {
        return ok(evidence);
    }
    let seconds = wanted.map_or(0, |it| it.as_secs());
    let remedies = edit(&seen.config.stream.name, &format!("--max-age={seconds}s"));
    // In keyed mode the stream is what says that an event is published already.
    if seen.config.mode != Mode::Fenced && found < Some(seen.config.stream.duplicate_window) {
        return error(evidence, remedies);
    }
    warning(evidence, remedies)
}
