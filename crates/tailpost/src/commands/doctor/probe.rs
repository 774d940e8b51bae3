//! `doctor --probe`: a canary event goes through the whole chain.

use std::fmt::Write;
use std::time::{Duration, Instant};

use operate::waiting::effects::EffectState;
use operate::{Canary, Legs};
use relay::Config;
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::commands::wait::for_effect;
use crate::config::Settings;
use crate::errors::Refusal;
use crate::output::one_line;

/// What became of one canary event.
#[derive(Debug, Serialize)]
pub(super) struct Probed {
    #[serde(flatten)]
    legs: Legs,
    /// When each configured consumer that gets it had processed it.
    consumers: Vec<Effect>,
    /// Why it did not get to the end.
    #[serde(skip_serializing_if = "Option::is_none", rename = "stopped")]
    pub(super) failure: Option<String>,
}

#[derive(Debug, Serialize)]
struct Effect {
    consumer: String,
    /// Seconds since the transaction began.
    #[serde(skip_serializing_if = "Option::is_none")]
    processed: Option<f64>,
}

impl Probed {
    /// How long the whole way took, if it came to its end.
    pub(super) fn total_seconds(&self) -> Option<f64> {
        let effects = self.consumers.iter().map(|it| it.processed);
        let all = std::iter::once(self.legs.marked).chain(effects);
        all.collect::<Option<Vec<f64>>>()?.into_iter().reduce(f64::max)
    }
}

pub(super) async fn run(
    args: &DoctorArgs,
    settings: &Settings,
    config: &Config,
) -> anyhow::Result<Vec<Probed>> {
    let canaries = Box::pin(operate::canaries(config)).await?;
    let consumers: Vec<&str> =
        canaries.iter().flat_map(|it| it.consumers.iter().map(String::as_str)).collect();
    if !consumers.is_empty() && !args.yes {
        let subject = canaries.first().map(|it| it.subject.as_str()).unwrap_or_default();
        let consumers = consumers.join(", ");
        let problem = format!("consumers would get a canary event under {subject}: {consumers}");
        let hint = "--yes sends it all the same; a consumer does not get it if its subjects leave \
                    it out";
        return Err(Refusal::conflict(problem).with_hint(hint).into());
    }
    let ways = canaries.iter().map(|it| Box::pin(follow(it, args.timeout, settings)));
    futures_util::future::join_all(ways).await.into_iter().collect()
}

async fn follow(
    canary: &Canary,
    patience: Duration,
    settings: &Settings,
) -> anyhow::Result<Probed> {
    let began = Instant::now();
    let legs = canary.send(patience).await?;
    let mut probed = Probed { failure: legs.failure.clone(), legs, consumers: Vec::new() };
    if probed.failure.is_some() {
        return Ok(probed);
    }
    let configured = settings.consumers()?.into_iter().map(|it| it.name);
    for consumer in configured.filter(|it| canary.consumers.contains(it)) {
        let left = patience.saturating_sub(began.elapsed());
        let state = for_effect(settings, &consumer, canary.id(), left).await?;
        let processed = match state {
            EffectState::Processed => Some(began.elapsed().as_secs_f64()),
            state => {
                let failure = format!("consumer {consumer} has not processed it: {state:?}");
                probed.failure.get_or_insert(failure);
                None
            }
        };
        probed.consumers.push(Effect { consumer, processed });
    }
    Ok(probed)
}

pub(super) fn text(probed: &[Probed]) -> String {
    let mut text = String::new();
    for Probed { legs, consumers, failure } in probed {
        let Legs { id, subject, stream, seq, committed, sent, stored, marked, .. } = legs;
        writeln!(text, "\nprobe: event {id}, subject {subject}").expect("writing to a string");
        let place = seq.map(|it| format!(", sequence {it}")).unwrap_or_default();
        let mut leg = |name: &str, at: &Option<f64>| {
            if let Some(at) = at {
                writeln!(text, "  {:>7.1} ms  {name}", at * 1000.0).expect("writing to a string");
            }
        };
        leg("committed", committed);
        leg("the log is sent to the relay", sent);
        leg(&format!("stored in stream {stream}{place}"), stored);
        leg("the row is marked", marked);
        for Effect { consumer, processed } in consumers {
            leg(&format!("processed by {consumer}"), processed);
        }
        if let Some(failure) = failure {
            writeln!(text, "  stopped: {}", one_line(failure)).expect("writing to a string");
        }
    }
    text
}
