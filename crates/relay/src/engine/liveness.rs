//! Whether the two servers still do their work.

use std::time::Duration;

/// Silence of PostgreSQL after which it is asked to say something.
const HEARTBEAT_AFTER: Duration = Duration::from_secs(5);

/// Silence of PostgreSQL after which the connection counts as dead. TCP would take minutes.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The broker stored nothing for so long: another of its servers is tried. An election takes up to
/// 9 seconds.
const FAILOVER_AFTER: Duration = Duration::from_secs(10);

/// What PostgreSQL's silence asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    Bearable,
    /// A statement that puts something into the log: a server that is there sends it.
    AskForSign,
    TooLong,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Liveness {
    is_asked: bool,
    resolved: u64,
    progressed: Duration,
}

impl Liveness {
    /// Tells a server that has nothing to say from one that is no longer there.
    pub(crate) fn listen(&mut self, silence: Duration) -> Silence {
        if silence > SILENCE_MAX {
            return Silence::TooLong;
        }
        if silence < HEARTBEAT_AFTER {
            self.is_asked = false;
        } else if !std::mem::replace(&mut self.is_asked, true) {
            return Silence::AskForSign;
        }
        Silence::Bearable
    }

    /// Whether the broker's server is to be left: one that lost the others of its cluster may answer
    /// what is asked, and store nothing.
    pub(crate) fn needs_failover(&mut self, now: Duration, resolved: u64, is_idle: bool) -> bool {
        let has_progressed = std::mem::replace(&mut self.resolved, resolved) != resolved;
        let needs_failover =
            !is_idle && !has_progressed && now.saturating_sub(self.progressed) > FAILOVER_AFTER;
        if is_idle || has_progressed || needs_failover {
            self.progressed = now;
        }
        needs_failover
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_server_is_asked_once_and_given_up_later() {
        let mut liveness = Liveness::default();
        assert_eq!(liveness.listen(Duration::from_secs(1)), Silence::Bearable);
        assert_eq!(liveness.listen(HEARTBEAT_AFTER), Silence::AskForSign);
        assert_eq!(liveness.listen(SILENCE_MAX), Silence::Bearable, "asked already");
        assert_eq!(liveness.listen(SILENCE_MAX + Duration::from_millis(1)), Silence::TooLong);
        assert_eq!(liveness.listen(Duration::ZERO), Silence::Bearable);
        assert_eq!(liveness.listen(HEARTBEAT_AFTER), Silence::AskForSign, "once per silence");
    }

    #[test]
    fn a_server_that_stores_nothing_is_left_again_and_again() {
        let mut liveness = Liveness::default();
        let at = Duration::from_secs;
        assert!(!liveness.needs_failover(at(100), 5, false), "five were stored just now");
        assert!(!liveness.needs_failover(at(110), 5, false));
        assert!(liveness.needs_failover(at(111), 5, false));
        assert!(!liveness.needs_failover(at(112), 5, false), "the next server has its time");
        assert!(liveness.needs_failover(at(122), 5, false));
        assert!(!liveness.needs_failover(at(140), 5, true), "nothing waits to be stored");
        assert!(!liveness.needs_failover(at(150), 5, false));
    }
}
