//! Events under leases, claimed in groups, ahead of their handlers.
//!
//! ```text
//!   taken ──▶ being claimed ──▶ waiting ──▶ handled ──▶ its verdict is being written
//!                                  └──▶ withdrawn: the claim is given back
//! ```
//!
//! A group is what is ready when a statement can run, and waits for nothing else. How many events are
//! claimed ahead follows from how the handlers fare: more when some had nothing to do while a claim
//! was written, fewer when an event waits for its handler.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::message::MessageId;

/// Claims that are written at a time, each on a connection of its own.
const CLAIMING_MAX: usize = 2;

/// Events that are claimed and have no handler, at most. A worker that is killed leaves them to
/// their leases.
const AHEAD_MAX: usize = 512;

/// An event that waits for longer was claimed too early.
const WAITED_MAX: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Groups {
    /// Handlers at a time, as of now.
    places: usize,
    claiming: usize,
    /// Since when.
    waiting: BTreeMap<MessageId, Instant>,
    handled: BTreeSet<MessageId>,
    /// How many more than there are handlers may be under way.
    ahead: usize,
    /// Since the last claim an event has waited for too long.
    has_waited: bool,
}

impl Groups {
    pub(super) fn new(lanes: usize) -> Self {
        let (waiting, handled) = (BTreeMap::new(), BTreeSet::new());
        Self { places: lanes, claiming: 0, waiting, handled, ahead: 0, has_waited: false }
    }

    /// Others share the handlers: there are so many now.
    pub(super) fn set_places(&mut self, places: usize) {
        self.places = places;
    }

    /// How many events the next group may have, where so many are under way in any stage. One may wait
    /// for a place that others have.
    pub(super) fn room(&self, busy: usize) -> usize {
        let may_claim = self.claiming < CLAIMING_MAX;
        if may_claim { (self.places.max(1) + self.ahead).saturating_sub(busy) } else { 0 }
    }

    pub(super) fn begun(&mut self) {
        self.claiming += 1;
    }

    /// These of a group are claimed. `has_more` says that others could have been.
    pub(super) fn claimed(&mut self, ids: Vec<MessageId>, has_more: bool, now: Instant) {
        self.claiming -= 1;
        self.has_waited = false;
        let idle = self.places.saturating_sub(self.handled.len() + self.waiting.len());
        if has_more && idle >= self.places.div_ceil(4) {
            self.ahead = (2 * self.ahead).max(idle).min(AHEAD_MAX);
        }
        self.waiting.extend(ids.into_iter().map(|id| (id, now)));
    }

    /// The oldest of those that wait, as far as there are handlers for them.
    pub(super) fn hand_over(&mut self, now: Instant) -> Vec<MessageId> {
        let mut handed = Vec::new();
        while self.handled.len() < self.places
            && let Some((id, since)) = self.waiting.pop_first()
        {
            let has_waited = now.saturating_duration_since(since) > WAITED_MAX;
            if has_waited && !std::mem::replace(&mut self.has_waited, true) {
                self.ahead -= self.ahead.div_ceil(4);
            }
            self.handled.insert(id);
            handed.push(id);
        }
        handed
    }

    /// Takes those that wait, and may not begin, out of the way.
    pub(super) fn withdraw(&mut self, may_begin: impl Fn(MessageId) -> bool) -> Vec<MessageId> {
        self.waiting.extract_if(.., |id, _| !may_begin(*id)).map(|(id, _)| id).collect()
    }

    /// No handler has it any more, or will.
    pub(super) fn left(&mut self, id: MessageId) {
        if !self.handled.remove(&id) {
            self.waiting.remove(&id);
        }
    }

    /// Whether some are claimed and have no handler.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Events that handlers have.
    pub(super) fn handled(&self) -> usize {
        self.handled.len()
    }

    pub(super) fn assert_holds(&self, busy: usize) {
        let under_way = self.handled.len() + self.waiting.len();
        assert!(self.handled.len() <= self.places, "more handlers than there are places");
        assert!(under_way <= busy, "{under_way} wait or are handled, of {busy} under way");
        assert!(self.claiming <= CLAIMING_MAX, "too many claims at a time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::simulation::id;

    fn ids(seqs: std::ops::Range<u64>) -> Vec<MessageId> {
        seqs.map(id).collect()
    }

    #[test]
    fn more_is_claimed_ahead_when_handlers_have_nothing_to_do_and_less_when_events_wait() {
        let (mut groups, mut now) = (Groups::new(4), Instant::now());
        assert_eq!(groups.room(0), 4);
        groups.begun();
        groups.claimed(ids(1..5), true, now);
        assert_eq!(groups.room(4), 4, "all four had nothing to do");
        assert_eq!(groups.hand_over(now), ids(1..5));
        groups.begun();
        groups.claimed(ids(5..9), true, now);
        assert_eq!(groups.room(8), 0, "the handlers were at work");
        now += 2 * WAITED_MAX;
        groups.left(id(1));
        assert_eq!(groups.hand_over(now), ids(5..6));
        assert_eq!(groups.room(7), 0, "one of four ahead was one too many");
    }

    #[test]
    fn nothing_is_claimed_ahead_of_what_there_is() {
        let (mut groups, now) = (Groups::new(4), Instant::now());
        groups.begun();
        groups.claimed(ids(1..2), false, now);
        assert_eq!(groups.room(1), 3);
    }

    #[test]
    fn an_event_whose_lease_is_lost_while_it_waits_takes_no_place() {
        let (mut groups, now) = (Groups::new(4), Instant::now());
        groups.begun();
        groups.claimed(ids(1..6), true, now);
        assert_eq!(groups.hand_over(now), ids(1..5));
        groups.left(id(5));
        groups.left(id(1));
        assert_eq!((groups.hand_over(now), groups.handled()), (Vec::new(), 3));
    }

    #[test]
    fn a_claim_waits_for_no_more_than_the_one_before_the_last() {
        let mut groups = Groups::new(4);
        (0..CLAIMING_MAX).for_each(|_| groups.begun());
        assert_eq!(groups.room(2), 0);
        groups.claimed(Vec::new(), true, Instant::now());
        assert!(groups.room(1) > 0);
    }

    #[test]
    fn who_may_not_begin_is_withdrawn_and_the_rest_goes_on() {
        let (mut groups, now) = (Groups::new(4), Instant::now());
        groups.begun();
        groups.claimed(ids(1..4), true, now);
        assert_eq!(groups.withdraw(|it| it == id(2)), [id(1), id(3)]);
        assert_eq!(groups.hand_over(now), [id(2)]);
        assert_eq!((groups.handled(), groups.withdraw(|_| false)), (1, Vec::new()));
    }
}
