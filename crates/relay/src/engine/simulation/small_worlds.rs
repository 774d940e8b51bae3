//! Small worlds, exhaustively: everything that can happen next, in every order.
//!
//! One old row, two transactions of the log and two aggregates; a scan, marks, checkpoints, and as
//! much of each fault as is given: a crash whose statements were executed or not and whose messages
//! may still arrive, a message or an answer that is lost, an answer that is late, time that passes.
//! What must hold after every step is checked after every step; whatever comes to its end is healed,
//! and must be stored exactly once, in order, and marked.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::database::connection;
use super::schedules::CALM;
use super::*;

/// Connections that jobs are executed over.
const CONNECTIONS: usize = 7;

/// How much may still go wrong, and how often time may pass.
#[derive(Debug, Clone, Copy, Hash)]
struct Budget {
    commits: u8,
    crashes: u8,
    losses: u8,
    late: u8,
    ticks: u8,
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Commit,
    Log,
    Send,
    Broker(usize),
    Answer,
    Job(usize),
    Confirm,
    MakeSlot,
    Tick,
    LoseMessage(usize),
    LoseAnswer,
    LateAnswer,
    /// With what is under way executed, or not.
    Crash(bool),
}

fn small_world(faults: Faults) -> World {
    let world = (0..).map(|seed| World::new(seed, faults)).find(|it| it.old_rows.len() == 1);
    let mut world = world.expect("some seed has one old row");
    world.keys.insert(1, 0);
    world.calm_down();
    world
}

impl World {
    /// Does what means nothing.
    fn calm_down(&mut self) {
        self.effects();
        loop {
            let is_dull = |it: &Job| {
                matches!(
                    it.effect,
                    Effect::Books(BooksEffect::LookAtSlot)
                        | Effect::Rows(RowsEffect::MakeUpForMarks)
                        | Effect::Scan(ScanEffect::Watch { .. })
                )
            };
            let Some(at) = self.relay.jobs.iter().position(is_dull) else { break };
            let Job { effect, .. } = self.relay.jobs.remove(at);
            self.finish(effect);
        }
        if self.leave_if_drained() {
            return self.calm_down();
        }
        self.check_confirmed();
    }

    fn finish(&mut self, effect: Effect) {
        if let Some(outcome) = self.execute(effect) {
            self.apply(outcome);
        }
        self.effects();
    }

    fn acts(&mut self, budget: Budget) -> Vec<Act> {
        let mut acts = Vec::new();
        let brings = self.relay.engine.wants_log() && self.relay.at.0 < self.log.len();
        let has_answer = !self.answers.is_empty();
        let busy = |it: &usize| !self.connections[*it].is_empty();
        let busy: Vec<usize> = (0..self.connections.len()).filter(busy).collect();
        let has_job = |at: &usize| self.relay.jobs.iter().any(|it| connection(&it.effect) == *at);
        let jobs: Vec<usize> = (0..CONNECTIONS).filter(has_job).collect();
        acts.extend((budget.commits > 0).then_some(Act::Commit));
        acts.extend(brings.then_some(Act::Log));
        acts.extend(self.relay.engine.has_send().then_some(Act::Send));
        acts.extend(busy.iter().map(|it| Act::Broker(*it)));
        acts.extend(has_answer.then_some(Act::Answer));
        acts.extend(jobs.into_iter().map(Act::Job));
        acts.extend((self.relay.confirming > self.slot_confirmed).then_some(Act::Confirm));
        acts.extend(self.awaits_slot.then_some(Act::MakeSlot));
        acts.extend((budget.ticks > 0).then_some(Act::Tick));
        if budget.losses > 0 {
            acts.extend(busy.into_iter().map(Act::LoseMessage));
            acts.extend(has_answer.then_some(Act::LoseAnswer));
        }
        acts.extend((budget.late > 0 && self.answers.len() > 1).then_some(Act::LateAnswer));
        if budget.crashes > 0 {
            acts.extend([Act::Crash(false), Act::Crash(true)]);
        }
        acts
    }

    fn act(&mut self, act: Act, budget: &mut Budget) {
        match act {
            Act::Commit => {
                budget.commits -= 1;
                self.commit_one(budget.commits);
            }
            Act::Log => {
                let transaction = self.relay.at.0;
                while self.relay.at.0 == transaction {
                    self.deliver_log();
                }
            }
            Act::Send => _ = self.send(),
            Act::Broker(at) => self.take_from(at, true),
            Act::Answer => self.answer_with(0),
            Act::Job(at) => {
                let first = self.relay.jobs.iter().position(|it| connection(&it.effect) == at);
                let Job { effect, .. } = self.relay.jobs.remove(first.expect("it was there"));
                self.finish(effect);
            }
            Act::Confirm => self.slot_confirmed = self.relay.confirming,
            Act::MakeSlot => {
                self.make_slot();
                let made = self.relay.outcomes.pop().expect("it is told");
                self.apply(made);
            }
            Act::Tick => {
                budget.ticks -= 1;
                self.now += Duration::from_secs(3);
                self.keepalive();
                self.tick(0);
            }
            Act::LoseMessage(at) => {
                budget.losses -= 1;
                self.connections[at].pop_front();
            }
            Act::LoseAnswer => {
                budget.losses -= 1;
                self.answers.remove(0);
            }
            Act::LateAnswer => {
                budget.late -= 1;
                self.answer_with(1);
            }
            Act::Crash(is_executed) => {
                budget.crashes -= 1;
                for job in std::mem::take(&mut self.relay.jobs) {
                    if is_executed {
                        let _ = self.execute(job.effect);
                    }
                }
                self.connections.push(VecDeque::new());
                if self.awaits_slot {
                    self.finish_epoch();
                }
                self.begin_session();
            }
        }
        self.calm_down();
    }

    /// The first of one aggregate, the second of the other.
    fn commit_one(&mut self, key: u8) {
        let id = self.next_id;
        self.next_id += 1;
        self.keys.insert(id, key);
        let transaction = self.table.begin();
        if self.faults.emitted && key == 0 {
            self.emitted.ids.insert(id);
        } else {
            self.table.insert(id, transaction, true, false);
        }
        self.lsn += 10;
        let (commit_lsn, end_lsn) = (Lsn(self.lsn), Lsn(self.lsn + 5));
        self.lsn += 6;
        self.log.push(Transaction { commit_lsn, end_lsn, events: vec![id] });
    }

    fn fingerprint(&self, budget: Budget) -> u64 {
        let mut hasher = DefaultHasher::new();
        budget.hash(&mut hasher);
        let marked = self.table.rows.values().map(|it| it.is_marked);
        marked.for_each(|it| it.hash(&mut hasher));
        let (swept, watermark) = (&self.table.swept, &self.table.watermark);
        let table = (swept.as_ref().map(|it| it.lsn), watermark.as_ref().map(|it| it.lsn));
        let rest = format!(
            "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
            self.relay,
            self.stream,
            self.connections,
            self.answers,
            self.written,
            (self.slot_confirmed, self.is_gap_open, self.awaits_slot, self.time(), self.lsn),
            table,
        );
        rest.hash(&mut hasher);
        hasher.finish()
    }
}

/// Tries everything. Returns how many states there were, and how many of them were ends.
fn explore(faults: Faults, budget: Budget) -> (usize, usize) {
    let mut seen = HashSet::new();
    let mut left = vec![(small_world(faults), budget)];
    let mut ends = 0;
    while let Some((mut world, budget)) = left.pop() {
        let acts = world.acts(budget);
        if acts.is_empty() {
            ends += 1;
            world.heal();
            world.check_end();
            continue;
        }
        for act in acts {
            let (mut world, mut budget) = (world.clone(), budget);
            world.act(act, &mut budget);
            if seen.insert(world.fingerprint(budget)) {
                left.push((world, budget));
            }
        }
    }
    (seen.len() + 1, ends)
}

fn explore_modes(name: &str, modes: &[Mode], faults: Faults, budget: Budget) {
    for mode in modes {
        let (states, ends) = explore(Faults { mode: *mode, ..faults }, budget);
        println!("{name}, {mode:?}: {states} states, {ends} ends");
        assert!(ends > 0, "nothing comes to its end");
    }
}

const BOTH: [Mode; 2] = [Mode::Fenced, Mode::Keyed];

// proves: G-ONCE-1
#[test]
fn in_a_small_world_a_crash_at_any_moment_costs_nothing() {
    let budget = Budget { commits: 2, crashes: 1, losses: 0, late: 0, ticks: 0 };
    explore_modes("a crash", &[Mode::Fenced], CALM, budget);
}

// proves: G-SLOT-3
#[test]
fn in_a_small_world_a_slot_that_is_awaited_costs_nothing() {
    let budget = Budget { commits: 1, crashes: 1, losses: 0, late: 0, ticks: 0 };
    explore_modes("no slot, a crash", &BOTH, Faults { waits: true, ..CALM }, budget);
}

#[test]
fn in_a_small_world_what_is_lost_or_late_costs_nothing() {
    let budget = Budget { commits: 2, crashes: 0, losses: 2, late: 1, ticks: 0 };
    explore_modes("two losses, a late answer", &BOTH, CALM, budget);
}

mod long {
    use super::*;

    // proves: G-OUT-1
    #[test]
    fn in_a_small_world_a_crash_costs_nothing_of_what_has_no_row() {
        let budget = Budget { commits: 2, crashes: 1, losses: 0, late: 0, ticks: 0 };
        explore_modes("no row, a crash", &BOTH, Faults { emitted: true, ..CALM }, budget);
    }

    #[test]
    fn in_a_small_world_time_that_passes_costs_nothing() {
        let budget = Budget { commits: 1, crashes: 0, losses: 2, late: 1, ticks: 1 };
        explore_modes("two losses, a late answer, time", &BOTH, CALM, budget);
    }

    #[test]
    fn in_a_small_world_the_fence_survives_a_crash_without_any_deduplication() {
        let budget = Budget { commits: 2, crashes: 1, losses: 0, late: 0, ticks: 0 };
        let faults = Faults { dedup: false, ..CALM };
        explore_modes("no ids, a crash", &[Mode::Fenced], faults, budget);
    }

    /// The late answer as well with `SEEDS`, as in `make simulate`: it takes minutes.
    #[test]
    fn in_a_small_world_a_crash_a_loss_and_a_late_answer_cost_nothing() {
        let late = u8::from(std::env::var_os("SEEDS").is_some());
        let budget = Budget { commits: 2, crashes: 1, losses: 1, late, ticks: 0 };
        explore_modes("a crash, a loss, a late answer", &BOTH, CALM, budget);
    }
}
