//! How old it is what is known of the stream.
//!
//! Relays that had rows before may have published them, and ended before they marked them. The
//! broker knows such messages by their ids for a minute at least; older ones have to be read. A whole
//! reading goes back far enough for all of them. A look brings what came since.

use std::time::Duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    Resting,
    UnderWay {
        since: Duration,
    },
    /// The process was held up meanwhile: what is read may be from before.
    Stale,
}

#[derive(Debug, Clone)]
pub(super) struct Readings {
    whole: Whole,
    /// When the look that is under way was begun.
    look: Option<Duration>,
    /// Nothing is sent before it is over.
    is_awaited: bool,
    /// When the reading was begun that told most.
    known_at: Duration,
    /// Up to where that was.
    last_seq: u64,
}

impl Readings {
    /// The stream was read up to `last_seq`, from the session's first moment on.
    pub(super) fn new(last_seq: u64) -> Self {
        let (look, is_awaited, known_at) = (None, false, Duration::ZERO);
        Self { whole: Whole::Resting, look, is_awaited, known_at, last_seq }
    }

    pub(super) fn begin_whole(&mut self, now: Duration) {
        self.whole = Whole::UnderWay { since: now };
    }

    /// What a whole reading under way brings is not believed.
    pub(super) fn distrust(&mut self) {
        if self.whole != Whole::Resting {
            self.whole = Whole::Stale;
        }
    }

    /// A whole reading came, and takes the place of all before. Says whether it can be believed.
    pub(super) fn came(&mut self, last_seq: u64) -> bool {
        let whole = std::mem::replace(&mut self.whole, Whole::Resting);
        let Whole::UnderWay { since } = whole else { return false };
        (self.known_at, self.last_seq) = (since, last_seq);
        true
    }

    pub(super) fn failed(&mut self) {
        self.whole = Whole::Resting;
    }

    pub(super) fn is_older(&self, now: Duration, age: Duration) -> bool {
        now.saturating_sub(self.known_at) > age
    }

    /// Begins a look, if there is none under way. Says from which sequence on.
    pub(super) fn begin_look(&mut self, now: Duration, is_awaited: bool) -> Option<u64> {
        self.is_awaited |= is_awaited;
        if self.look.is_some() {
            return None;
        }
        self.look = Some(now);
        Some(self.last_seq + 1)
    }

    /// A look is over. `last_seq` is up to where it came; `None` if it failed.
    pub(super) fn looked(&mut self, last_seq: Option<u64>) {
        self.is_awaited = false;
        if let (Some(since), Some(last_seq)) = (self.look.take(), last_seq) {
            self.known_at = self.known_at.max(since);
            self.last_seq = self.last_seq.max(last_seq);
        }
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.is_awaited
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_known_is_as_old_as_the_beginning_of_its_reading() {
        let mut readings = Readings::new(7);
        assert!(readings.is_older(at(21), at(20)));
        assert_eq!(readings.begin_look(at(21), false), Some(8));
        assert_eq!(readings.begin_look(at(22), false), None, "one is under way");
        readings.looked(Some(9));
        assert!(!readings.is_older(at(41), at(20)));
        assert!(readings.is_older(at(42), at(20)));
        assert_eq!(readings.begin_look(at(42), false), Some(10), "only what came since");
        readings.looked(None);
        assert!(readings.is_older(at(42), at(20)), "it failed");
    }

    #[test]
    fn a_whole_reading_takes_the_place_of_a_later_look() {
        let mut readings = Readings::new(7);
        readings.begin_whole(at(10));
        readings.begin_look(at(15), false);
        readings.looked(Some(12));
        assert!(readings.came(9));
        assert!(readings.is_older(at(31), at(20)));
        assert_eq!(readings.begin_look(at(31), false), Some(10));
    }

    #[test]
    fn a_reading_from_before_a_pause_is_not_believed() {
        let mut readings = Readings::new(7);
        readings.begin_whole(at(10));
        readings.distrust();
        assert!(!readings.came(9));
        assert_eq!(readings.begin_look(at(31), true), Some(8));
        assert!(readings.is_awaited());
        readings.looked(Some(9));
        assert!(!readings.is_awaited());
    }
}
