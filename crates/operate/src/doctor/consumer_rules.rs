//! What the inbox has to be like.

use inbox::access::{Config, durable_consumer, silence};
use inbox::retention_problem;
use outbox::quote;
use outbox::wire::subjects_overlap;
use relay::access::stream_check::STORED_SUBJECTS;

use super::consumer_facts::ConsumerSeen as Seen;
use super::locks::judge_locks;
use super::outbox_rules::{judge_policies, judge_privileges};
use super::read_broker::api;
use super::triggers::judge_before_rows;
use crate::checks::{Category, Judged, Remedy, Rule, Skip, error, ok, warning};
use crate::consumers;

/// Those about the tables, which all consumers share.
pub(super) const TABLES: &[Rule<Seen>] = &[
    rule("inbox-tables", "the tables exist", tables),
    rule("inbox-locks", "nobody keeps workers from them", locks),
    rule("inbox-privileges", "the role may read and write them", privileges),
    rule("inbox-triggers", "nothing keeps rows out of them", triggers),
];

/// Those about each consumer.
pub(super) const EACH: &[Rule<Seen>] = &[
    rule("inbox-stream", "the stream exists", stream),
    rule("inbox-consumer", "the durable consumer exists", consumer),
    rule("inbox-consumer-fits", "an inbox can work with it", fits),
    rule("inbox-consumer-settings", "it is as configured", settings),
    rule("inbox-subjects", "the stream takes what the consumer is for", subjects),
    rule("inbox-permissions", "the user may acknowledge events", permissions),
    rule("inbox-delivery", "the broker delivers", delivery),
    rule("inbox-running", "a worker is at work", running),
    Rule::new("retention-inbox", Category::Retention, "records outlive messages", retention),
];

/// The ids of all of them, with what they are about.
pub(super) fn ids() -> impl Iterator<Item = (&'static str, Category)> {
    TABLES.iter().chain(EACH).map(|it| (it.id, it.category))
}

const fn rule(id: &'static str, title: &'static str, judge: fn(&Seen) -> Judged) -> Rule<Seen> {
    Rule::new(id, Category::Inbox, title, judge)
}

fn setup() -> Vec<Remedy> {
    vec![Remedy::shell("tailpost inbox setup")]
}

fn tables(seen: &Seen) -> Judged {
    let missing = &seen.tables()?.missing;
    if missing.is_empty() {
        return ok("all of them");
    }
    error(format!("missing: {}", missing.join(", ")), setup())
}

fn privileges(seen: &Seen) -> Judged {
    let tables = seen.tables()?;
    let role = quote(&tables.role);
    match tables.policed.is_empty() {
        true => judge_privileges(&role, &tables.lacks),
        false => judge_policies(&role, &tables.policed),
    }
}

fn triggers(seen: &Seen) -> Judged {
    judge_before_rows(&seen.tables()?.before_rows)
}

fn locks(seen: &Seen) -> Judged {
    judge_locks(seen.locks.as_ref().map_err(Clone::clone)?)
}

fn stream(seen: &Seen) -> Judged {
    let name = &seen.config.stream;
    match seen.stream.as_ref().map_err(Clone::clone)? {
        Some(_) => ok(format!("stream {name}")),
        None => error(
            format!("there is no stream {name}"),
            [Remedy::advice(
                "create the stream (`tailpost setup` makes that of stream.name), or name another one \
                 in inbox.stream",
            )],
        ),
    }
}

fn consumer(seen: &Seen) -> Judged {
    seen.stream()?;
    let name = seen.config.durable();
    let left_over = seen.left_over.as_ref().map_err(Clone::clone)?;
    match seen.consumer.as_ref().map_err(Clone::clone)? {
        Some(_) if left_over.is_empty() => ok(format!("consumer {name}")),
        Some(_) => {
            let stream = &seen.config.stream;
            let remove = |it| {
                Remedy::shell(format!("nats consumer rm {stream} {it} --force"))
                    .with_caution("only if it is nobody else's")
            };
            let others = left_over.join(", ");
            let evidence = format!("left over from other inbox.NAME.partitions: {others}");
            warning(evidence, left_over.iter().map(remove).collect::<Vec<_>>())
        }
        None => error(format!("there is no consumer {name}"), setup()),
    }
}

fn fits(seen: &Seen) -> Judged {
    let found = &seen.consumer()?.config;
    let (stream, consumer) = (&seen.config.stream, seen.config.durable());
    if let Some(reason) = durable_consumer::obstacle(found) {
        let mut remedies = vec![
            Remedy::shell(format!("nats consumer rm {stream} {consumer} --force"))
                .with_caution("only if it is nobody else's: its place in the stream goes with it"),
        ];
        remedies.extend(setup());
        return error(format!("{reason}, which cannot be changed"), remedies);
    }
    ok("a pull consumer with explicit acknowledgements")
}

fn settings(seen: &Seen) -> Judged {
    let found = &seen.consumer()?.config;
    if durable_consumer::obstacle(found).is_some() {
        return ok("see inbox-consumer-fits");
    }
    let differences = durable_consumer::differences(found, &seen.config);
    if differences.is_empty() {
        return ok("it is");
    }
    let evidence = format!("not as configured: {}", differences.join(", "));
    warning(evidence, setup())
}

fn subjects(seen: &Seen) -> Judged {
    let stored = durable_consumer::stored_subjects(&seen.stream()?.config);
    let never = |wanted: &&String| !stored.iter().any(|it| subjects_overlap(it, wanted));
    let never: Vec<&str> =
        seen.config.filter_subjects.iter().filter(never).map(String::as_str).collect();
    if never.is_empty() {
        let look = seen.look.as_ref().map_err(Clone::clone)?;
        if let Some(warned) = look.warnings.first().filter(|_| look.passed_by > 0) {
            return warning(warned.clone(), [Remedy::advice(STORED_SUBJECTS)]);
        }
        return ok(match seen.config.filter_subjects.as_slice() {
            [] => "all of the stream's".into(),
            subjects => subjects.join(", "),
        });
    }
    let takes = stored.join(", ");
    error(
        format!("the stream stores {takes}, and never {}", never.join(", ")),
        [Remedy::advice(format!(
            "name subjects of {takes} in inbox.{}.subjects",
            seen.config.consumer
        ))],
    )
}

/// What the broker forbids without an answer: events are handled, and come again for ever.
fn permissions(seen: &Seen) -> Judged {
    let found = seen.permissions.as_ref().map_err(Clone::clone)?;
    let untold = || Skip::because("the server does not say what the user may do");
    let found = found.as_ref().ok_or_else(untold)?;
    let (stream, parts) = (&seen.config.stream, seen.config.parts());
    let durables = || parts.iter().map(|it| it.durable());
    let requests = |it| api(&format!("CONSUMER.MSG.NEXT.{stream}.{it}"));
    if !durables().any(|it| found.publish.allow(&requests(it))) {
        return Err(Skip::because("the user takes no events: ask as that of the inbox"));
    }
    let acks: Vec<_> = durables().map(|it| format!("$JS.ACK.{stream}.{it}.>")).collect();
    let advisory = |it| format!("$JS.EVENT.ADVISORY.CONSUMER.*.{stream}.{it}");
    let advisories: Vec<_> = durables().map(advisory).collect();
    let Some(lacking) = found.lacking(&acks, &advisories) else {
        return ok("everything that a worker needs");
    };
    let remedy = Remedy::advice(format!("let the user {lacking}, and reload the server"));
    error(format!("the user may not {lacking}"), [remedy])
}

fn delivery(seen: &Seen) -> Judged {
    let info = seen.consumer()?;
    let waits = format!("{} events wait", info.num_pending);
    let resume = || vec![Remedy::shell(silence::resume(info))];
    if let Some(pause) = silence::pause(info) {
        return match info.num_pending {
            0 => warning(format!("{waits}, and {pause}"), resume()),
            _ => error(format!("{waits}: {pause}"), resume()),
        };
    }
    let roles = seen.tables()?.roles.as_ref().map_err(Clone::clone)?;
    let mut held = roles.iter().filter(|it| it.consumer == seen.config.consumer && it.is_held);
    let of_part = held.clone().find(|it| it.partition == seen.config.partition);
    let reason = of_part.or(held.next()).and_then(|it| it.reason.clone());
    let stalled = consumers::stalled(info, seen.config.lease);
    // What a worker says of itself may be a second old.
    let is_silent = |it: &String| info.num_pending > 0 && it.starts_with(silence::SILENT);
    match reason.filter(is_silent) {
        Some(reason) => error(
            reason,
            [Remedy::advice(
                "look who else takes events of the consumer, and whether its servers are well \
                 (`nats consumer info`)",
            )],
        ),
        None => match stalled
            .filter(|_| of_part.is_some_and(|it| it.reason.is_none()) && seen.config.rate.is_none())
        {
            Some((waits, idle)) => warning(
                format!(
                    "{waits} events wait for {}, and none was delivered or acknowledged for {} s",
                    seen.config.durable(),
                    idle.as_secs()
                ),
                [Remedy::advice("look at its worker: does its handler return?")],
            ),
            None => ok(waits),
        },
    }
}

fn running(seen: &Seen) -> Judged {
    let roles = seen.tables()?.roles.as_ref().map_err(Clone::clone)?;
    let Config { consumer, partition, lease, .. } = &seen.config;
    let of_consumer = || roles.iter().filter(|it| it.consumer == *consumer);
    if !of_consumer().any(|it| it.is_held) {
        let run = Remedy::shell(format!("tailpost inbox run --consumer {consumer}"));
        return warning("no worker has the role", [run]);
    }
    if of_consumer().any(|it| it.partition == *partition && it.is_attended(*lease)) {
        return ok("a worker has the role");
    }
    let remedy = "look who has its row in inbox_roles locked (`pg_locks`), or what the workers log";
    let evidence = format!("no worker has the partition of {}", seen.config.durable());
    warning(evidence, [Remedy::advice(remedy)])
}

fn retention(seen: &Seen) -> Judged {
    let Some(keep) = seen.config.retention else {
        return ok("inbox.retention = \"off\"");
    };
    let stream = seen.stream()?;
    let (name, lease) = (&seen.config.stream, seen.config.lease);
    if let Some(problem) = retention_problem(keep, name, stream.max_age(), lease) {
        let shorter = keep.saturating_sub(lease).as_secs() / 2;
        let remedy = match shorter {
            0 => Remedy::advice("set inbox.retention above the stream's max_age"),
            _ => Remedy::shell(format!("nats stream edit {name} --max-age={shorter}s")).with_caution(
                "older messages go at once, for every consumer: rather set inbox.retention above \
                 the stream's max_age",
            ),
        };
        return error(problem, [remedy]);
    }
    ok(format!("inbox.retention = {keep:?}, max_age = {:?}", stream.max_age()))
}
