//! The figures at the end, and the verdict.

use std::collections::{HashMap, HashSet};
use std::fmt;

use crate::ledger::{Ledger, Tally};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use uuid::Uuid;

use super::journal::{Latencies, Received, latencies, millis};
use super::play::Played;
use super::servers::Servers;
use super::shipments::Effects;

/// What the demo prints as JSON.
#[derive(Debug, Serialize)]
pub struct Summary {
    committed: usize,
    rolled_back: usize,
    stored: usize,
    marked: usize,
    lost: usize,
    duplicates: usize,
    out_of_order: usize,
    phantoms: usize,
    effects: usize,
    effects_twice: usize,
    /// From just before COMMIT was sent.
    commit_to_consumer_ms: Percentiles,
    seconds: f64,
    // The part of it that no relay can help: until PostgreSQL had the commit on disk.
    #[serde(skip)]
    commit_ms: Percentiles,
    #[serde(skip)]
    offenders: String,
}

#[derive(Debug, Serialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
    max: f64,
}

/// Compares the table with the stream, and the stream with what the consumer got and with what the
/// inbox brought about.
pub(super) async fn compare(servers: &Servers, played: Played) -> Result<Summary> {
    let config = servers.relay_config()?;
    let (database, jetstream) = (servers.database().await?, servers.jetstream().await?);
    let ledger = Ledger::collect(&database, &config.table, &jetstream, &config.stream.name).await?;
    let stored = ledger
        .messages()
        .iter()
        .filter_map(|message| message.id.map(|id| Received { sequence: message.sequence, id }));
    let delivery = Delivery::compare(&stored.collect::<Vec<_>>(), &played.received);
    let tally = ledger.report(&played.written);
    let effects = Effects::count(&database).await?;
    let seconds = played.elapsed.as_secs_f64();
    let commits = latencies(played.written.committed.iter().map(|it| it.commit_took));
    Ok(Summary::new(&tally, &delivery, effects, [&played.latencies, &commits], seconds))
}

/// How what the consumer got differs from what the stream holds.
#[derive(Debug, Default, PartialEq, Eq)]
struct Delivery {
    missing: usize,
    again: usize,
    out_of_order: usize,
    unknown: usize,
}

impl Delivery {
    fn compare(stored: &[Received], received: &[Received]) -> Self {
        let ids: HashMap<u64, Uuid> = stored.iter().map(|it| (it.sequence, it.id)).collect();
        let mut delivery = Self::default();
        let (mut seen, mut last) = (HashSet::new(), 0);
        for message in received {
            if ids.get(&message.sequence) != Some(&message.id) {
                delivery.unknown += 1;
            } else if !seen.insert(message.sequence) {
                delivery.again += 1;
            } else if message.sequence < last {
                delivery.out_of_order += 1;
            }
            last = last.max(message.sequence);
        }
        delivery.missing = stored.len() - seen.len();
        delivery
    }
}

impl Percentiles {
    fn of(latencies: &Latencies) -> Self {
        Self {
            p50: millis(latencies.value_at_quantile(0.5)),
            p99: millis(latencies.value_at_quantile(0.99)),
            max: millis(latencies.max()),
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", self.p50, self.p99, self.max)
    }
}

impl Summary {
    fn new(
        tally: &Tally,
        delivery: &Delivery,
        effects: Effects,
        [to_consumer, commits]: [&Latencies; 2],
        seconds: f64,
    ) -> Self {
        Self {
            committed: tally.committed,
            rolled_back: tally.rolled_back,
            stored: tally.stored,
            marked: tally.marked,
            lost: tally.lost + delivery.missing,
            duplicates: tally.duplicates + delivery.again,
            out_of_order: tally.out_of_order + delivery.out_of_order + effects.out_of_order,
            phantoms: tally.phantoms + delivery.unknown,
            effects: effects.events,
            effects_twice: effects.twice,
            commit_to_consumer_ms: Percentiles::of(to_consumer),
            commit_ms: Percentiles::of(commits),
            seconds: (seconds * 100.0).round() / 100.0,
            offenders: tally.offenders(),
        }
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { committed, rolled_back, stored, marked, seconds, .. } = self;
        let Self { lost, duplicates, out_of_order, phantoms, effects, effects_twice, .. } = self;
        let Self { commit_to_consumer_ms, commit_ms, .. } = self;
        format!(
            "\n  {committed} events committed, {rolled_back} rolled back, in {seconds:.1} s\n  \
             {stored} stored in the stream, {marked} marked as published\n  \
             {lost} lost, {duplicates} duplicates, {out_of_order} out of order, \
             {phantoms} phantoms\n  \
             {effects} with an effect by the inbox, {effects_twice} effects twice\n  \
             commit to consumer: {commit_to_consumer_ms}\n  \
             the commit alone:   {commit_ms}\n"
        )
    }

    /// One line, without the version that other commands add: its fields are fixed.
    ///
    /// # Errors
    ///
    /// When there is no JSON for a figure.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string(self).context("could not write JSON")
    }

    /// Fails unless every committed event arrived once, in order, has had one effect, and is marked,
    /// and nothing else arrived.
    ///
    /// # Errors
    ///
    /// Says what was wrong.
    pub fn verdict(&self) -> Result<()> {
        if self.lost + self.duplicates + self.out_of_order + self.phantoms > 0 {
            bail!("relay or inbox made mistakes\n{}", self.offenders.trim_end());
        }
        if self.effects_twice > 0 {
            bail!("the inbox made mistakes: {} effects happened again", self.effects_twice);
        }
        if self.effects != self.stored {
            bail!("{} events were stored, and {} had an effect", self.stored, self.effects);
        }
        if self.committed == 0 {
            bail!("nothing was committed, so nothing was shown");
        }
        if self.marked != self.committed {
            bail!("{} committed events are not marked", self.committed.abs_diff(self.marked));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(sequences: &[u64]) -> Vec<Received> {
        let message = |&sequence| Received { sequence, id: Uuid::from_u128(sequence.into()) };
        sequences.iter().map(message).collect()
    }

    fn check(stored: &[u64], received: &[u64], expected: [usize; 4]) {
        let Delivery { missing, again, out_of_order, unknown } =
            Delivery::compare(&messages(stored), &messages(received));
        assert_eq!([missing, again, out_of_order, unknown], expected, "{received:?}");
    }

    #[test]
    fn what_the_consumer_got_is_held_against_the_stream() {
        check(&[1, 2, 3], &[1, 2, 3], [0, 0, 0, 0]);
        check(&[1, 2, 3], &[1, 2], [1, 0, 0, 0]);
        check(&[1, 2, 3], &[1, 2, 2, 3], [0, 1, 0, 0]);
        check(&[1, 2, 3], &[1, 3, 2], [0, 0, 1, 0]);
        check(&[1, 2, 3], &[1, 2, 3, 4], [0, 0, 0, 1]);
    }

    fn summary() -> Summary {
        let mut latencies = Latencies::new(3).expect("valid");
        latencies.record(1_500).expect("recordable");
        let mut tally = Tally::default();
        (tally.committed, tally.stored, tally.marked, tally.rolled_back) = (2, 2, 2, 1);
        let effects = Effects { events: 2, ..Effects::default() };
        Summary::new(&tally, &Delivery::default(), effects, [&latencies, &latencies], 20.123_4)
    }

    #[test]
    fn the_json_line_has_fixed_fields() {
        assert_eq!(
            summary().json().expect("serialisable"),
            "{\"committed\":2,\"rolled_back\":1,\"stored\":2,\"marked\":2,\"lost\":0,\
             \"duplicates\":0,\"out_of_order\":0,\"phantoms\":0,\"effects\":2,\
             \"effects_twice\":0,\"commit_to_consumer_ms\":\
             {\"p50\":1.5,\"p99\":1.5,\"max\":1.5},\"seconds\":20.12}"
        );
    }

    #[test]
    fn any_mistake_fails_the_demo() {
        summary().verdict().expect("all zeros, all marked, all with an effect");
        let fails = |break_it: fn(&mut Summary)| {
            let mut summary = summary();
            break_it(&mut summary);
            summary.verdict().expect_err("a mistake");
        };
        fails(|it| it.lost = 1);
        fails(|it| it.duplicates = 1);
        fails(|it| it.out_of_order = 1);
        fails(|it| it.phantoms = 1);
        fails(|it| it.effects_twice = 1);
        fails(|it| it.effects = 1);
        fails(|it| it.marked = 1);
        fails(|it| (it.committed, it.marked) = (0, 0));
    }
}
