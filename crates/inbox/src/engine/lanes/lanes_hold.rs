//! What holds of the lanes after each turn.

use std::collections::BTreeSet;

use super::{Lane, Lanes, Path};
use crate::engine::assertions::is_checked_whole;
use crate::message::MessageId;

impl Lanes {
    pub(in crate::engine) fn assert_holds(&self) {
        assert!(self.busy <= self.known.len(), "more events are at work than are held");
        assert_eq!(self.at_work.len(), self.busy, "two at work have one id");
        assert!(self.alone_at_work.is_none() || self.busy == 1, "not alone at work");
        if is_checked_whole(self.lanes.len()) {
            self.assert_sums();
            self.lanes.iter().for_each(|(key, lane)| self.assert_lane(*key, lane));
        }
    }

    fn assert_sums(&self) {
        let sum = |of: fn(&Lane) -> usize| self.lanes.values().map(of).sum::<usize>();
        assert_eq!(sum(|it| it.items().count()), self.known.len(), "events that are held");
        assert_eq!(sum(|it| it.busy), self.busy, "events that are at work");
        if self.left <= 1_000 {
            assert_eq!(sum(|it| it.left.len()), self.left, "events that are left in the stream");
        }
        let bytes = sum(|it| it.items().map(|item| item.message.bytes()).sum());
        assert_eq!(bytes, self.bytes, "bytes that are held");
    }

    /// Each lane that waits for nothing but its turn is listed once, by its first event.
    fn assert_lane(&self, key: u64, lane: &Lane) {
        let ids: Vec<MessageId> = lane.queue.iter().map(super::Item::id).collect();
        assert!(ids.is_sorted_by(|one, next| one < next), "a lane is out of order");
        let taken: BTreeSet<MessageId> =
            lane.taken.iter().filter(|(_, item)| item.is_some()).map(|(id, _)| *id).collect();
        assert!(lane.busy > 0 || taken.is_empty(), "events have ended, and are not in their lane");
        let is_ready = ids.first().is_some_and(|id| self.ready.get(id) == Some(&key));
        let is_waiting = self.waiting.iter().any(|(_, it)| *it == key);
        let is_listed = usize::from(is_ready) + usize::from(is_waiting);
        let is_due = lane.busy == 0 && !ids.is_empty();
        assert_eq!(is_listed, usize::from(is_due), "a lane that is due is not listed, or twice");
        let is_alone = is_ready && lane.queue[0].path == Path::Alone;
        assert_eq!(is_alone, ids.first().is_some_and(|id| self.alone.contains(id)), "alone");
        assert!(lane.busy > 0 || !ids.is_empty() || !lane.left.is_empty(), "a lane without events");
    }
}
