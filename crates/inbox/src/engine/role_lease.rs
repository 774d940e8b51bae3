//! When the role is looked for, taken, renewed and lost.
//!
//! ```text
//!                  found free        taken          former ended
//!   Elsewhere ───────────────▶ Free ───────▶ Taken ─────────────▶ Ours ──┐ renewed
//!     ▲  ▲ └─ found held         │                                 │ ▲   │
//!     │  └───────────────────────┘ somebody was faster             │ └───┘
//!     └────────────────────────────────────────────────────────────┘ not renewed
//! ```
//!
//! A connection that fails changes none of these states. Nobody acts until the next answer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::assertions::ARE_CHECKED;

/// How often a standby looks whether the consumer is free, and a worker whether the database is back.
const LOOK: Duration = Duration::from_millis(200);

/// The longest time between two renewals.
const RENEW_MAX: Duration = Duration::from_secs(1);

/// How long the database may take for a statement on the role, at most; a third of a shorter lease.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// After an outage of the database: the others are not gone, but have not connected anew.
const OTHERS_CONNECT: Duration = Duration::from_secs(2);

/// What this worker may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing: the database is not there, so nobody knows.
    #[default]
    Unknown,
    /// Nothing: another worker has the consumer.
    Standby,
    /// Nothing new: another worker gets it when what was begun has ended, and none before.
    Leaving,
    /// Everything, until then by our clock. It is renewed.
    Active { term: Term, until: Instant },
}

impl Role {
    /// Whether another worker has it, or is to get it, or may have had it since this term.
    pub(crate) fn is_lost(self, since: Term) -> bool {
        match self {
            Self::Unknown => false,
            Self::Standby | Self::Leaving => true,
            Self::Active { term, .. } => term != since,
        }
    }
}

/// Each taking of the role has a term of its own: between two of them it may have been another
/// worker's, also if nobody saw it go. So has each server: one that was started since may lack what
/// was committed on the one before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Term {
    /// The role's, without which no event is begun.
    pub(crate) token: Uuid,
    /// When the server was started, in microseconds since 1970.
    pub(crate) server: i64,
}

/// Who had the role, and under which token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Former {
    pub(crate) token: Uuid,
    /// Empty if it had nothing under way when it gave the role back.
    pub(crate) owner: String,
    /// Workers before it that it may not have ended.
    pub(crate) unended: Vec<String>,
}

impl Former {
    fn workers(self) -> impl Iterator<Item = String> {
        self.unended.into_iter().chain([self.owner]).filter(|it| !it.is_empty())
    }
}

/// What a look at the role found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Another worker has it.
    Held,
    /// Nobody has it, or its lease is over, or none of its worker's connections is left.
    Free(Option<Former>),
}

/// What is to be done next. Its answer is told to the [`RoleLease`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Connect,
    Look,
    Take(Option<Former>),
    /// End the connections of a former worker.
    Evict(String),
    Renew,
    /// Renew the claims of events whose handlers are at work.
    RenewClaims,
    Wait {
        until: Instant,
    },
}

#[derive(Debug)]
enum State {
    /// It is not ours. Looked at again then.
    Elsewhere { look_at: Instant },
    /// It is nobody's: to be taken.
    Free { former: Option<Former> },
    /// It is ours. What former workers have begun and not committed would hold us up for as long as
    /// it hangs, or be committed beside our work: they are ended first.
    Taken { former: String },
    /// It is ours. Renewed again at `renew_at`; valid until `until`, if that is known.
    Ours { renew_at: Instant, until: Option<Instant> },
}

/// Whether the role is to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// As soon as it is free.
    Always,
    /// If it is free now: others may have it otherwise.
    Once,
    No,
}

/// The lease that makes a worker the only one of its consumer, or of a partition of it.
#[derive(Debug)]
pub(crate) struct RoleLease {
    lease: Duration,
    wish: Wish,
    state: State,
    role: Role,
    /// As of the last taking, and the last renewal.
    term: Term,
    /// When to connect, while there is no connection.
    connect_at: Option<Instant>,
    /// A connection was lost.
    reconnects: bool,
    claims_at: Instant,
    /// Former workers that are to be ended. Also of a role that was taken without an answer: it may
    /// have been ours, and then nobody else knows of them.
    unended: BTreeSet<String>,
    /// The tables have been looked at: events can have records.
    prepared: bool,
}

impl RoleLease {
    pub(crate) fn new(lease: Duration, now: Instant) -> Self {
        Self {
            lease,
            wish: Wish::Always,
            state: State::Elsewhere { look_at: now },
            role: Role::Unknown,
            term: Term::default(),
            connect_at: Some(now),
            reconnects: false,
            claims_at: now,
            unended: BTreeSet::new(),
            prepared: false,
        }
    }

    /// Of one that nobody looks for before [`Self::want`].
    pub(crate) fn unwanted(lease: Duration, now: Instant) -> Self {
        Self { wish: Wish::No, ..Self::new(lease, now) }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// It is to be taken, if it is free.
    pub(crate) fn want(&mut self, now: Instant) {
        self.wish = Wish::Once;
        self.state = State::Elsewhere { look_at: now };
    }

    /// Whether it is ours, or may be soon.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wish != Wish::No
    }

    /// Whether it is ours, and the database said so last.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.state, State::Ours { until: Some(_), .. })
    }

    /// Whether there is no connection.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.connect_at.is_some()
    }

    /// It is given to whoever takes it.
    pub(crate) fn given_back(&mut self, now: Instant) {
        self.stand_by(now);
    }

    /// How long the database may take for a step.
    pub(crate) fn patience(&self) -> Duration {
        (self.lease / 3).min(PATIENCE_MAX)
    }

    fn pause(&self) -> Duration {
        (self.lease / 3).min(RENEW_MAX)
    }

    pub(crate) fn next(&self, now: Instant) -> Step {
        self.assert_holds();
        if let Some(until) = self.connect_at {
            return if until <= now { Step::Connect } else { Step::Wait { until } };
        }
        let due_at = match &self.state {
            State::Free { former } => return Step::Take(former.clone()),
            State::Taken { former } => return Step::Evict(former.clone()),
            State::Elsewhere { .. } if self.wish == Wish::No => now + self.pause(),
            State::Elsewhere { look_at } if *look_at <= now => return Step::Look,
            State::Ours { renew_at, .. } if *renew_at <= now => return Step::Renew,
            State::Elsewhere { look_at: at } | State::Ours { renew_at: at, .. } => *at,
        };
        if self.claims_at <= now {
            return Step::RenewClaims;
        }
        Step::Wait { until: due_at.min(self.claims_at) }
    }

    fn assert_holds(&self) {
        if !ARE_CHECKED {
            return;
        }
        if let Role::Active { term, until: acts_until } = self.role {
            let State::Ours { until, .. } = self.state else {
                panic!("a worker acts without the role: {:?}", self.state)
            };
            assert_eq!((term, until), (self.term, Some(acts_until)), "acts beyond its lease");
            assert!(self.prepared && self.connect_at.is_none(), "acts before it may");
        }
        match &self.state {
            State::Ours { .. } => {
                assert!(
                    self.unended.is_empty(),
                    "former workers are not ended: {:?}",
                    self.unended
                );
            }
            State::Taken { former } => assert!(!self.unended.contains(former), "ended twice"),
            State::Elsewhere { .. } | State::Free { .. } => {}
        }
    }

    pub(crate) fn connected(&mut self, now: Instant) {
        self.connect_at = None;
        let look = now + self.grace();
        if self.wish == Wish::No {
            self.role = Role::Standby;
        }
        match &mut self.state {
            State::Elsewhere { look_at } => *look_at = look,
            State::Ours { renew_at, .. } => *renew_at = now,
            State::Free { .. } | State::Taken { .. } => {}
        }
    }

    /// How long after connecting to look what is free.
    pub(crate) fn grace(&self) -> Duration {
        if self.reconnects { (self.lease / 3).min(OTHERS_CONNECT) } else { Duration::ZERO }
    }

    /// The database did not answer, or refused.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.role = Role::Unknown;
        // Only one that was there is tried again at once.
        let had_connection = self.connect_at.is_none();
        self.reconnects |= had_connection;
        self.connect_at = Some(if had_connection { now } else { now + LOOK });
        match &mut self.state {
            State::Ours { until, .. } => *until = None,
            State::Free { former } => {
                self.unended.extend(former.take().into_iter().flat_map(Former::workers));
                self.state = State::Elsewhere { look_at: now };
            }
            State::Elsewhere { .. } | State::Taken { .. } => {}
        }
    }

    pub(crate) fn looked(&mut self, found: Found, now: Instant) {
        match found {
            Found::Held => self.stand_by(now + LOOK),
            Found::Free(former) => self.state = State::Free { former },
        }
    }

    /// Under which token it is ours now; otherwise somebody was faster.
    pub(crate) fn taken(&mut self, token: Option<Uuid>, now: Instant) {
        let State::Free { former } = &mut self.state else { return };
        let Some(token) = token else { return self.stand_by(now + LOOK) };
        self.term.token = token;
        self.unended.extend(former.take().into_iter().flat_map(Former::workers));
        self.end_or_begin(now);
    }

    /// A former worker has been ended.
    pub(crate) fn evicted(&mut self, now: Instant) {
        if matches!(self.state, State::Taken { .. }) {
            self.end_or_begin(now);
        }
    }

    fn end_or_begin(&mut self, now: Instant) {
        self.state = match self.unended.pop_first() {
            Some(former) => State::Taken { former },
            None => State::Ours { renew_at: now, until: None },
        };
    }

    /// Whether it is ours, as far as we know.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.state, State::Ours { .. })
    }

    /// Somebody has its row locked: nothing is known of it.
    pub(crate) fn not_renewed(&mut self, now: Instant) {
        if let State::Ours { renew_at, .. } = &mut self.state {
            *renew_at = now + LOOK;
        }
    }

    /// On which server it was renewed, after `since` by our clock, if it was still ours.
    pub(crate) fn renewed(&mut self, server: Option<i64>, since: Instant, now: Instant) {
        // What is held may be out of date, even if nobody has it for more than a moment.
        let Some(server) = server else { return self.stand_by(now) };
        self.term.server = server;
        self.state = State::Ours { renew_at: now + self.pause(), until: Some(since + self.lease) };
        self.claims_at = now;
        self.role = Role::Unknown;
        self.activate();
    }

    pub(crate) fn claims_renewed(&mut self, now: Instant) {
        self.claims_at = now + self.pause();
    }

    /// Events can have records: until then nobody acts.
    pub(crate) fn prepared(&mut self) {
        self.prepared = true;
        self.activate();
    }

    fn activate(&mut self) {
        if let State::Ours { until: Some(until), .. } = self.state
            && self.prepared
        {
            self.role = Role::Active { term: self.term, until };
        }
    }

    fn stand_by(&mut self, look_at: Instant) {
        if self.wish == Wish::Once {
            self.wish = Wish::No;
        }
        self.state = State::Elsewhere { look_at };
        self.role = Role::Standby;
    }
}

#[cfg(test)]
mod tests;
