//! What the broker has to be like.

use crate::checks::{Category, Judged, Remedy, Rule, Skip, error, ok, warning};
use outbox::wire::subject_matches;
use relay::Mode;
use servers::nats_version;

use super::facts::{Permissions, Seen, Subjects};
use super::read_broker::{USER_INFO, api};
use super::server_rules::judge_clock;

pub(super) const RULES: &[Rule<Seen>] = &[
    rule("nats-reachable", "NATS lets the user in", reachable),
    rule("nats-version", "the server reads headers right", version),
    rule("nats-jetstream", "the account has JetStream", jetstream),
    rule("nats-permissions", "the user may publish, ask and hear the answers", permissions),
    rule("nats-storage", "the account has room", storage),
    rule("nats-payload", "the largest row fits into a message", payload),
    rule("nats-clock", "the broker's clock agrees with this machine's", clock),
];

const fn rule(id: &'static str, title: &'static str, judge: fn(&Seen) -> Judged) -> Rule<Seen> {
    Rule::new(id, Category::Nats, title, judge).before_setup()
}

fn reachable(seen: &Seen) -> Judged {
    match &seen.facts.broker {
        Ok(_) => ok(seen.config.nats.to_string()),
        Err(failure) => {
            let hint = failure.hint.clone();
            let hint = hint.unwrap_or_else(|| "see the server's log for why it refuses".into());
            error(failure.said.clone(), [Remedy::advice(hint)])
        }
    }
}

fn version(seen: &Seen) -> Judged {
    let text = &seen.broker()?.version;
    if !text.starts_with(|it: char| it.is_ascii_digit()) {
        return Err(Skip::because(format!("the server calls itself {text}")));
    }
    match nats_version::misreads_headers(text) {
        true => error(
            format!("nats-server {text} takes what an event says for headers of the broker"),
            [Remedy::advice(nats_version::UPGRADE)],
        ),
        false => ok(format!("nats-server {text}")),
    }
}

fn jetstream(seen: &Seen) -> Judged {
    let broker = seen.broker()?;
    let Some(why) = &broker.no_jetstream else {
        return ok("the account has it");
    };
    if let Some(subject) = &broker.unheard {
        return Err(Skip::because(deaf(subject)));
    }
    // Who may not ask the one question may ask the others.
    if seen.shard.stream.is_ok() {
        return ok("JetStream answers");
    }
    error(
        why.clone(),
        [Remedy::advice(
            "add `jetstream: enabled` to the account in nats-server.conf, or `jetstream {}` where \
             there are no accounts, and reload the server",
        )],
    )
}

/// What a relay publishes, asks, and listens to.
fn needed(seen: &Seen) -> (Vec<String>, Vec<String>) {
    let mut publish = Vec::new();
    for config in seen.config.each_shard() {
        publish.extend(config.routing().patterns());
        let stream = &config.stream.name;
        publish.push(api(&format!("STREAM.INFO.{stream}")));
        publish.push(api(&format!("STREAM.MSG.GET.{stream}")));
    }
    publish.push(api("INFO"));
    publish.push(USER_INFO.into());
    (publish, vec![format!("{}.>", seen.config.nats.inbox_prefix())])
}

/// What is asked for a plan of a replay, and for nothing else.
fn asked_for_plans(seen: &Seen) -> Vec<String> {
    let shards = seen.config.each_shard().into_iter();
    shards.map(|it| api(&format!("CONSUMER.LIST.{}", it.stream.name))).collect()
}

impl Permissions {
    /// What of these subjects the user may not publish, and not subscribe.
    pub(super) fn lacking(&self, publish: &[String], subscribe: &[String]) -> Option<String> {
        let of = [("publish", publish, &self.publish), ("subscribe", subscribe, &self.subscribe)];
        let lacking = of.into_iter().filter_map(|(verb, needed, found)| {
            let lacking: Vec<_> = needed.iter().filter(|it| !found.allow(it)).cloned().collect();
            (!lacking.is_empty()).then(|| format!("{verb} {}", lacking.join(", ")))
        });
        let lacking: Vec<String> = lacking.collect();
        (!lacking.is_empty()).then(|| lacking.join("; "))
    }
}

impl Subjects {
    /// Whether everything that `wanted` matches is allowed.
    pub(super) fn allow(&self, wanted: &str) -> bool {
        let allowed = self
            .allow
            .as_ref()
            .is_none_or(|all| all.is_empty() || all.iter().any(|it| subject_matches(it, wanted)));
        let denied = |it: &String| subject_matches(it, wanted) || subject_matches(wanted, it);
        allowed && !self.deny.iter().any(denied)
    }
}

fn deaf(subject: &str) -> String {
    format!("the user may not subscribe to {subject}, where answers come")
}

fn permissions(seen: &Seen) -> Judged {
    let broker = seen.broker()?;
    if let Some(subject) = &broker.unheard {
        let (mut publish, subscribe) = needed(seen);
        publish.extend(asked_for_plans(seen));
        let prefix = "or set nats.inbox_prefix to a prefix that the user may subscribe to";
        return error(deaf(subject), [permit(publish, subscribe), Remedy::advice(prefix)]);
    }
    let Some(found) = &broker.permissions else {
        return Err(Skip::because(format!(
            "the server does not say what the user may do: allow it to publish {USER_INFO}, and to \
             hear the answers under {}.>",
            seen.config.nats.inbox_prefix()
        )));
    };
    let (mut publish, subscribe) = needed(seen);
    let works = found.lacking(&publish, &subscribe).is_none();
    if seen.config.mode != Mode::Poll {
        publish.extend(asked_for_plans(seen));
    }
    let Some(lacking) = found.lacking(&publish, &subscribe) else {
        return ok("everything that a relay needs");
    };
    let evidence = format!("the user may not {lacking}");
    let remedies = vec![permit(publish, subscribe)];
    if works {
        let evidence = format!("{evidence}: a plan of a replay does not name the consumers");
        return warning(evidence, remedies);
    }
    error(evidence, remedies)
}

fn permit(publish: Vec<String>, subscribe: Vec<String>) -> Remedy {
    let [publish, subscribe] = [publish, subscribe].map(|all| {
        let all: Vec<String> = all.iter().map(|it| format!("\"{it}\"")).collect();
        all.join(", ")
    });
    Remedy::advice(format!(
        "permissions: {{ publish: {{ allow: [{publish}] }}, subscribe: {{ allow: [{subscribe}] }} }}"
    ))
}

fn storage(seen: &Seen) -> Judged {
    let broker = seen.broker()?;
    let (limit, used) = broker.storage.ok_or_else(|| Skip::because("JetStream does not say"))?;
    if limit <= 0 {
        return ok(format!("{} MiB are stored, without a limit", used >> 20));
    }
    let evidence = format!("{} of {} MiB are stored", used >> 20, limit >> 20);
    if used <= limit / 10 * 9 {
        return ok(evidence);
    }
    let advice = "raise max_file of JetStream or of the account, or lower what streams keep";
    warning(evidence, [Remedy::advice(advice)])
}

fn payload(seen: &Seen) -> Judged {
    let (broker, contents) = (seen.broker()?, seen.contents()?);
    let max = i64::try_from(broker.max_payload).unwrap_or(i64::MAX);
    let Some(largest) = contents.largest_payload else {
        return ok(format!("max_payload = {max}, and no row waits"));
    };
    let evidence = format!("max_payload = {max}, and the largest row that waits has {largest}");
    if largest < max {
        return ok(evidence);
    }
    let advice = format!("set max_payload: {} in nats-server.conf, and reload", 2 * largest);
    error(evidence, [Remedy::advice(advice)])
}

fn clock(seen: &Seen) -> Judged {
    match seen.broker()?.clock {
        Some((ahead, error)) => judge_clock("NATS", ahead, error),
        None => ok("told only with a stream"),
    }
}
