//! What a scenario cost.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use crate::ledger::Tally;
use anyhow::{Context, Result, bail};
use serde::Serialize;

use super::shipping::Effects;

/// The ledger of one run. Its fields are fixed: scripts read them.
#[derive(Debug, Serialize)]
pub(super) struct Outcome {
    scenario: String,
    committed: usize,
    rolled_back: usize,
    stored: usize,
    lost: usize,
    duplicated: usize,
    reordered: usize,
    phantoms: usize,
    /// Dead letters: not lost, and a scenario says itself how many it wants.
    parked: usize,
    /// From the end of the fault until all that was committed by then had arrived; the longest
    /// time, if there were several faults.
    recovered_s: f64,
    seconds: f64,
    /// Only where there is an inbox.
    #[serde(flatten)]
    effects: Option<Effects>,
    /// Only in a soak.
    #[serde(flatten)]
    edges: Option<Edges>,
    #[serde(skip)]
    effects_expected: usize,
    #[serde(skip)]
    marked: usize,
    #[serde(skip)]
    offenders: String,
}

/// What must not happen either, whatever else does. Its fields are fixed: scripts read them.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Edges {
    /// Events of the load that are dead letters of the relay or of the inbox.
    pub(super) dead_letters_unexpected: usize,
    /// Messages that the inbox acknowledged, and neither handled nor made dead letters.
    pub(super) unsettled: usize,
    /// How often producers waited for a lock of a relay or an inbox.
    pub(super) producers_blocked: usize,
    /// Which and why.
    #[serde(skip)]
    pub(super) offenders: Vec<String>,
}

impl Display for Edges {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { dead_letters_unexpected, unsettled, producers_blocked, .. } = self;
        write!(
            f,
            "{dead_letters_unexpected} unexpected dead letters, {unsettled} messages unsettled, \
             {producers_blocked} times producers blocked"
        )
    }
}

impl Edges {
    fn is_clean(&self) -> bool {
        self.dead_letters_unexpected + self.unsettled + self.producers_blocked == 0
    }
}

impl Outcome {
    pub(super) fn new(
        scenario: &str,
        tally: &Tally,
        recovered: Duration,
        elapsed: Duration,
    ) -> Self {
        let seconds = |it: Duration| (it.as_secs_f64() * 100.0).round() / 100.0;
        Self {
            scenario: scenario.to_owned(),
            committed: tally.committed,
            rolled_back: tally.rolled_back,
            stored: tally.stored,
            lost: tally.lost,
            duplicated: tally.duplicates,
            reordered: tally.out_of_order,
            phantoms: tally.phantoms,
            parked: tally.dead,
            recovered_s: seconds(recovered),
            seconds: seconds(elapsed),
            effects: None,
            edges: None,
            effects_expected: 0,
            marked: tally.marked,
            offenders: tally.offenders(),
        }
    }

    /// What `expected` events of the load, with one effect each, have brought about.
    pub(super) fn with_effects(self, effects: Option<Effects>, expected: usize) -> Self {
        Self { effects, effects_expected: expected, ..self }
    }

    pub(super) fn with_edges(self, edges: Edges) -> Self {
        Self { edges: Some(edges), ..self }
    }

    pub(super) fn json(&self) -> Result<String> {
        serde_json::to_string(self).context("could not write JSON")
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let Self { committed, rolled_back, stored, parked, recovered_s, seconds, .. } = self;
        let effects = self.effects.map(|it| format!("  {it}\n")).unwrap_or_default();
        let edges = self.edges.as_ref().map(|it| format!("  {it}\n")).unwrap_or_default();
        format!(
            "  {committed} events committed, {rolled_back} rolled back, {stored} stored, \
             {parked} parked\n  {}\n{effects}{edges}  \
             recovered in {recovered_s:.2} s, {seconds:.1} s in all\n",
            self.mistakes()
        )
    }

    fn mistakes(&self) -> String {
        let Self { lost, duplicated, reordered, phantoms, .. } = self;
        format!("{lost} lost, {duplicated} duplicated, {reordered} reordered, {phantoms} phantoms")
    }

    /// Fails unless every committed event arrived once, in order, or is parked, nothing else
    /// arrived, and what arrived had one effect, if it was to have any.
    pub(super) fn verdict(&self) -> Result<()> {
        if self.lost + self.duplicated + self.reordered + self.phantoms > 0 {
            bail!("{} found mistakes\n{}", self.scenario, self.offenders.trim_end());
        }
        if self.committed == 0 {
            bail!("nothing was committed, so nothing was shown");
        }
        if self.marked + self.parked < self.committed {
            let missing = self.committed - self.marked - self.parked;
            bail!("{}: {missing} committed events are not marked", self.scenario);
        }
        if let Some(effects) = self.effects.filter(|it| !it.is_exact(self.effects_expected)) {
            bail!("{}: {} events had {effects}", self.scenario, self.effects_expected);
        }
        if let Some(edges) = self.edges.as_ref().filter(|it| !it.is_clean()) {
            let offenders = edges.offenders.join("\n");
            bail!("{}: {edges}\n{offenders}", self.scenario);
        }
        Ok(())
    }

    /// The counts, for a run that goes on.
    pub(super) fn line(&self) -> String {
        let Self { committed, stored, parked, .. } = self;
        let effects = self.effects.map(|it| format!("; {it}")).unwrap_or_default();
        let edges = self.edges.as_ref().map(|it| format!("; {it}")).unwrap_or_default();
        let mistakes = self.mistakes();
        format!(
            "{committed} committed, {stored} stored, {parked} parked; {mistakes}{effects}{edges}"
        )
    }

    /// The titles over [`Outcome::row`].
    pub(super) fn head() -> String {
        format!(
            "{:<36} committed    stored parked  lost duplicated reordered phantoms effects twice \
             recovered_s seconds",
            "scenario"
        )
    }

    pub(super) fn row(&self) -> String {
        let Self { scenario, committed, stored, parked, recovered_s, seconds, .. } = self;
        let Self { lost, duplicated, reordered, phantoms, .. } = self;
        let [effects, twice] = match &self.effects {
            Some(it) => [it.effects, it.effects_twice].map(|count| count.to_string()),
            None => ["-"; 2].map(str::to_owned),
        };
        format!(
            "{scenario:<36} {committed:>9} {stored:>9} {parked:>6} {lost:>5} {duplicated:>10} \
             {reordered:>9} {phantoms:>8} {effects:>7} {twice:>5} {recovered_s:>11.2} {seconds:>7.1}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome() -> Outcome {
        let mut tally = Tally::default();
        (tally.committed, tally.rolled_back, tally.stored) = (3, 1, 2);
        (tally.marked, tally.dead) = (2, 1);
        Outcome::new("any", &tally, Duration::from_millis(1_234), Duration::from_millis(5_678))
    }

    /// Of the two stored events: one order's, one of them a second time because that was wanted.
    fn effects() -> Effects {
        Effects {
            effects: 2,
            twice_on_purpose: 1,
            calls_repeated: 4,
            orders: 1,
            orders_with_effects: 1,
            ..Effects::default()
        }
    }

    #[test]
    fn the_json_line_has_fixed_fields() {
        assert_eq!(
            serde_json::to_string(&outcome()).expect("serialisable"),
            "{\"scenario\":\"any\",\"committed\":3,\"rolled_back\":1,\"stored\":2,\"lost\":0,\
             \"duplicated\":0,\"reordered\":0,\"phantoms\":0,\"parked\":1,\"recovered_s\":1.23,\
             \"seconds\":5.68}"
        );
    }

    #[test]
    fn the_json_line_with_an_inbox_has_further_fields() {
        let line = serde_json::to_string(&outcome().with_effects(Some(effects()), 2));
        let line = line.expect("serialisable");
        let further = ",\"seconds\":5.68,\"effects\":2,\"effects_twice\":0,\"twice_on_purpose\":1,\
                       \"effects_reordered\":0,\"calls_repeated\":4,\"orders\":1,\
                       \"orders_with_effects\":1}";
        assert!(line.ends_with(further), "{line}");
    }

    #[test]
    fn any_mistake_in_the_effects_fails_the_scenario() {
        let verdict = |effects| outcome().with_effects(Some(effects), 2).verdict();
        verdict(effects()).expect("each stored event has one effect");
        let fails = |break_it: fn(&mut Effects)| {
            let mut effects = effects();
            break_it(&mut effects);
            verdict(effects).expect_err("a mistake");
        };
        fails(|it| it.effects = 1);
        fails(|it| it.effects_twice = 1);
        fails(|it| it.effects_reordered = 1);
        fails(|it| it.orders_with_effects = 0);
    }

    #[test]
    fn any_mistake_at_the_edges_fails_the_soak() {
        outcome().with_edges(Edges::default()).verdict().expect("zeros");
        let fails = |break_it: fn(&mut Edges)| {
            let mut edges = Edges::default();
            break_it(&mut edges);
            outcome().with_edges(edges).verdict().expect_err("a mistake");
        };
        fails(|it| it.dead_letters_unexpected = 1);
        fails(|it| it.unsettled = 1);
        fails(|it| it.producers_blocked = 1);
    }

    #[test]
    fn any_mistake_fails_the_scenario() {
        outcome().verdict().expect("four zeros and all marked or parked");
        let fails = |break_it: fn(&mut Outcome)| {
            let mut outcome = outcome();
            break_it(&mut outcome);
            outcome.verdict().expect_err("a mistake");
        };
        fails(|it| it.lost = 1);
        fails(|it| it.duplicated = 1);
        fails(|it| it.reordered = 1);
        fails(|it| it.phantoms = 1);
        fails(|it| it.marked = 1);
        fails(|it| (it.committed, it.marked, it.parked) = (0, 0, 0));
    }
}
