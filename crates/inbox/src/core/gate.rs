use std::time::{Duration, Instant};

/// Misconfigured verdicts in a row that pause the consumer.
const IN_A_ROW_MAX: u32 = 5;

/// The first pause; each further one without a success in between is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Whether handlers may be started: not while all of them say that the set-up is wrong, for that
/// would use up the attempts of every event there is.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    in_a_row: u32,
    pauses: u32,
    paused_until: Option<Instant>,
    reason: Option<String>,
}

impl Gate {
    /// How many may be started at most: after a pause one, as a probe.
    pub(crate) fn room(&self, now: Instant) -> usize {
        match self.paused_until {
            Some(until) if now < until => 0,
            Some(_) => 1,
            None => usize::MAX,
        }
    }

    /// Why nothing is started, and until when.
    pub(crate) fn pause(&self, now: Instant) -> Option<(&str, Instant)> {
        let until = self.paused_until.filter(|until| now < *until)?;
        Some((self.reason.as_deref().unwrap_or_default(), until))
    }

    /// A handler says that the set-up is wrong. Returns whether a pause begins.
    pub(crate) fn misconfigured(&mut self, reason: &str, now: Instant) -> bool {
        self.in_a_row += 1;
        self.reason = Some(reason.to_owned());
        let probe_failed = self.paused_until.is_some_and(|until| now >= until);
        if self.in_a_row < IN_A_ROW_MAX && !probe_failed {
            return false;
        }
        if self.pause(now).is_some() {
            return false; // started before the pause
        }
        let pause = PAUSE_MIN.saturating_mul(1 << self.pauses.min(8)).min(PAUSE_MAX);
        self.pauses += 1;
        self.paused_until = Some(now + pause);
        true
    }

    /// A handler said anything else: it can be reached.
    pub(crate) fn works(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_in_a_row_pause_then_one_probe_decides() {
        let mut gate = Gate::default();
        let start = Instant::now();
        for _ in 1..IN_A_ROW_MAX {
            assert!(!gate.misconfigured("404", start));
            assert_eq!(gate.room(start), usize::MAX);
        }
        assert!(gate.misconfigured("404", start));
        assert_eq!((gate.room(start), gate.pause(start).unwrap().0), (0, "404"));
        // Handlers that were started before have nothing new to say.
        assert!(!gate.misconfigured("404", start));

        let later = start + PAUSE_MIN;
        assert_eq!(gate.room(later), 1, "a probe");
        assert!(gate.misconfigured("404", later));
        assert_eq!(gate.room(later + PAUSE_MIN), 0, "twice as long");
        assert_eq!(gate.room(later + 2 * PAUSE_MIN), 1);
        gate.works();
        assert_eq!(gate.room(later), usize::MAX);
    }

    #[test]
    fn a_success_in_between_starts_the_count_anew() {
        let mut gate = Gate::default();
        let now = Instant::now();
        for _ in 0..10 {
            for _ in 1..IN_A_ROW_MAX {
                assert!(!gate.misconfigured("404", now));
            }
            gate.works();
        }
    }
}
