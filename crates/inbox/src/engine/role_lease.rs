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

/// What this worker may do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// Nothing: the database is not there, so nobody knows.
    #[default]
    Unknown,
    /// Nothing: another worker has the consumer.
    Standby,
    /// Everything, until then by our clock. It is renewed.
    Active { term: Term, until: Instant },
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
    pub(crate) owner: String,
    /// Workers before it that it may not have ended.
    pub(crate) unended: Vec<String>,
}

impl Former {
    fn workers(self) -> impl Iterator<Item = String> {
        self.unended.into_iter().chain([self.owner])
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

/// The lease that makes a worker the only one of its consumer.
#[derive(Debug)]
pub(crate) struct RoleLease {
    lease: Duration,
    state: State,
    role: Role,
    /// As of the last taking, and the last renewal.
    term: Term,
    /// When to connect, while there is no connection.
    connect_at: Option<Instant>,
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
            state: State::Elsewhere { look_at: now },
            role: Role::Unknown,
            term: Term::default(),
            connect_at: Some(now),
            claims_at: now,
            unended: BTreeSet::new(),
            prepared: false,
        }
    }

    pub(crate) fn role(&self) -> Role {
        self.role
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
        match &mut self.state {
            State::Elsewhere { look_at: at } | State::Ours { renew_at: at, .. } => *at = now,
            State::Free { .. } | State::Taken { .. } => {}
        }
    }

    /// The database did not answer, or refused.
    pub(crate) fn failed(&mut self, now: Instant) {
        self.role = Role::Unknown;
        // Only one that was there is tried again at once.
        let had_connection = self.connect_at.is_none();
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
        self.state = State::Elsewhere { look_at };
        self.role = Role::Standby;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    fn former() -> Former {
        Former { token: Uuid::from_u128(1), owner: "other".into(), unended: Vec::new() }
    }

    fn token(number: u128) -> Option<Uuid> {
        Some(Uuid::from_u128(number))
    }

    fn term(token: u128, server: i64) -> Term {
        Term { token: Uuid::from_u128(token), server }
    }

    fn active(now: Instant) -> RoleLease {
        let mut lease = RoleLease::new(LEASE, now);
        lease.prepared();
        lease.connected(now);
        lease.looked(Found::Free(None), now);
        assert_eq!(lease.next(now), Step::Take(None));
        lease.taken(token(2), now);
        assert_eq!(lease.next(now), Step::Renew);
        assert_eq!(lease.role(), Role::Unknown, "not before the first renewal");
        lease.renewed(Some(1), now, now);
        assert_eq!(lease.role(), Role::Active { term: term(2, 1), until: now + LEASE });
        assert_eq!(lease.next(now), Step::RenewClaims);
        lease.claims_renewed(now);
        lease
    }

    #[test]
    fn a_standby_looks_until_the_role_is_free_and_ends_the_former_worker() {
        let mut now = Instant::now();
        let mut lease = RoleLease::new(LEASE, now);
        assert_eq!(lease.next(now), Step::Connect);
        lease.connected(now);
        assert_eq!(lease.next(now), Step::Look);
        lease.looked(Found::Held, now);
        assert_eq!(lease.role(), Role::Standby);
        lease.claims_renewed(now);
        assert_eq!(lease.next(now), Step::Wait { until: now + LOOK });
        now += LOOK;
        lease.looked(Found::Free(Some(former())), now);
        assert_eq!(lease.next(now), Step::Take(Some(former())));
        lease.taken(token(2), now);
        assert_eq!(lease.next(now), Step::Evict("other".into()));
        lease.evicted(now);
        assert_eq!(lease.next(now), Step::Renew);
        lease.renewed(Some(1), now, now);
        assert_eq!(lease.role(), Role::Unknown, "the tables have not been looked at");
        lease.prepared();
        assert_eq!(lease.role(), Role::Active { term: term(2, 1), until: now + LEASE });
    }

    #[test]
    fn who_is_too_slow_stands_by() {
        let now = Instant::now();
        let mut lease = RoleLease::new(LEASE, now);
        lease.connected(now);
        lease.looked(Found::Free(Some(former())), now);
        lease.taken(None, now);
        assert_eq!(lease.role(), Role::Standby);
    }

    #[test]
    fn the_lease_counts_from_before_the_renewal_was_asked_for() {
        let now = Instant::now();
        let mut lease = active(now);
        assert_eq!(lease.next(now), Step::Wait { until: now + SECOND });
        let (since, late) = (now + SECOND, now + 4 * SECOND);
        assert_eq!(lease.next(since), Step::Renew);
        lease.renewed(Some(1), since, late);
        assert_eq!(lease.role(), Role::Active { term: term(2, 1), until: since + LEASE });
        lease.claims_renewed(late);
        assert_eq!(lease.next(late), Step::Wait { until: late + SECOND });
    }

    #[test]
    fn a_role_that_was_not_renewed_is_another_workers() {
        let now = Instant::now();
        let mut lease = active(now);
        lease.renewed(None, now, now);
        assert_eq!((lease.role(), lease.next(now)), (Role::Standby, Step::Look));
    }

    #[test]
    fn a_role_that_is_taken_again_within_a_moment_has_another_term() {
        let now = Instant::now();
        let mut lease = active(now);
        lease.renewed(None, now, now);
        lease.looked(Found::Free(Some(former())), now);
        lease.taken(token(3), now);
        lease.evicted(now);
        lease.renewed(Some(1), now, now);
        assert_eq!(lease.role(), Role::Active { term: term(3, 1), until: now + LEASE });
    }

    #[test]
    fn a_role_that_another_server_renews_has_another_term() {
        let now = Instant::now();
        let mut lease = active(now);
        lease.failed(now);
        lease.connected(now);
        lease.renewed(Some(2), now, now);
        assert_eq!(lease.role(), Role::Active { term: term(2, 2), until: now + LEASE });
    }

    #[test]
    fn whom_the_former_worker_had_not_ended_is_ended() {
        let now = Instant::now();
        let mut lease = RoleLease::new(LEASE, now);
        lease.connected(now);
        let former = Former { unended: vec!["hangs".into()], ..former() };
        lease.looked(Found::Free(Some(former)), now);
        lease.taken(token(2), now);
        assert_eq!(lease.next(now), Step::Evict("hangs".into()));
        lease.evicted(now);
        assert_eq!(lease.next(now), Step::Evict("other".into()));
    }

    #[test]
    fn without_a_connection_nobody_knows_and_the_next_renewal_says() {
        let now = Instant::now();
        let mut lease = active(now);
        lease.failed(now);
        assert_eq!((lease.role(), lease.next(now)), (Role::Unknown, Step::Connect));
        lease.failed(now);
        assert_eq!(lease.next(now), Step::Wait { until: now + LOOK }, "not again at once");
        lease.connected(now + LOOK);
        lease.prepared();
        assert_eq!(lease.role(), Role::Unknown, "the last renewal may be out of date");
        assert_eq!(lease.next(now + LOOK), Step::Renew);
    }

    #[test]
    fn a_former_worker_is_ended_even_if_the_connection_fails_meanwhile() {
        let now = Instant::now();
        let mut lease = RoleLease::new(LEASE, now);
        lease.connected(now);
        lease.looked(Found::Free(Some(former())), now);
        lease.taken(token(2), now);
        lease.failed(now);
        lease.connected(now);
        assert_eq!(lease.next(now), Step::Evict("other".into()));
    }

    #[test]
    fn a_former_worker_is_ended_even_if_nobody_heard_that_the_role_was_taken_from_it() {
        let now = Instant::now();
        let mut lease = RoleLease::new(LEASE, now);
        lease.connected(now);
        lease.looked(Found::Free(Some(former())), now);
        lease.failed(now);
        lease.connected(now);
        assert_eq!(lease.next(now), Step::Look);
        let own = Former { token: Uuid::from_u128(2), owner: "this".into(), unended: Vec::new() };
        lease.looked(Found::Free(Some(own)), now);
        lease.taken(token(2), now);
        assert_eq!(lease.next(now), Step::Evict("other".into()));
        lease.evicted(now);
        assert_eq!(lease.next(now), Step::Evict("this".into()));
        lease.evicted(now);
        assert_eq!(lease.next(now), Step::Renew);
    }

    #[test]
    fn however_often_no_answer_comes_all_former_workers_are_ended() {
        let now = Instant::now();
        let mut lease = RoleLease::new(LEASE, now);
        for (number, owner) in [(1, "other"), (2, "this"), (3, "this")] {
            lease.connected(now);
            let former =
                Former { token: Uuid::from_u128(number), owner: owner.into(), unended: Vec::new() };
            lease.looked(Found::Free(Some(former)), now);
            lease.failed(now);
        }
        lease.connected(now);
        lease.looked(Found::Free(Some(former())), now);
        lease.taken(token(2), now);
        assert_eq!(lease.next(now), Step::Evict("other".into()));
        lease.evicted(now);
        assert_eq!(lease.next(now), Step::Evict("this".into()));
    }

    #[test]
    fn claims_are_renewed_by_a_standby_too() {
        let now = Instant::now();
        let mut lease = RoleLease::new(Duration::from_millis(300), now);
        lease.connected(now);
        lease.looked(Found::Held, now);
        assert_eq!(lease.next(now), Step::RenewClaims, "handlers may still be at work");
        lease.claims_renewed(now);
        let until = now + Duration::from_millis(100);
        assert_eq!(lease.next(now), Step::Wait { until });
    }
}
