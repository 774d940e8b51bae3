//! When to make up for marks that are owed: those of rows that somebody had locked.

use std::time::Duration;

/// How often it is tried while there are any.
const TRIED_EVERY: Duration = Duration::from_secs(1);

/// How often it is looked whether another connection, or an earlier session, left some.
const LOOKED_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(crate) enum OwedMarks {
    Resting {
        due: Duration,
    },
    /// A statement is under way. With `more`, it may not have seen all of them.
    MakingUp {
        more: bool,
    },
}

impl OwedMarks {
    /// An earlier session may have left some.
    pub(crate) fn new() -> Self {
        Self::Resting { due: Duration::ZERO }
    }

    /// There are some.
    pub(crate) fn some(&mut self, now: Duration) {
        match self {
            Self::Resting { due } => *due = (*due).min(now + TRIED_EVERY),
            Self::MakingUp { more } => *more = true,
        }
    }

    /// Whether a statement is to be begun.
    pub(crate) fn begin_if_due(&mut self, now: Duration) -> bool {
        let is_due = matches!(self, Self::Resting { due } if *due <= now);
        if is_due {
            *self = Self::MakingUp { more: false };
        }
        is_due
    }

    /// The statement ended; `None` left is not known.
    pub(crate) fn ended(&mut self, now: Duration, left: Option<u64>) {
        let more = matches!(self, Self::MakingUp { more: true });
        let pause = if left == Some(0) && !more { LOOKED_EVERY } else { TRIED_EVERY };
        *self = Self::Resting { due: now + pause };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn what_an_earlier_session_left_is_looked_for_at_once_and_then_seldom() {
        let mut owed = OwedMarks::new();
        assert!(owed.begin_if_due(START));
        assert!(!owed.begin_if_due(START), "one at a time");
        owed.ended(START, Some(0));
        assert!(!owed.begin_if_due(START + LOOKED_EVERY / 2));
        assert!(owed.begin_if_due(START + LOOKED_EVERY));
    }

    #[test]
    fn what_is_left_or_came_meanwhile_or_is_not_known_is_tried_soon() {
        for (more, left) in [(false, Some(1)), (true, Some(0)), (false, None)] {
            let mut owed = OwedMarks::new();
            assert!(owed.begin_if_due(START));
            if more {
                owed.some(START);
            }
            owed.ended(START, left);
            assert!(!owed.begin_if_due(START), "{left:?}");
            assert!(owed.begin_if_due(START + TRIED_EVERY), "{left:?}");
        }
    }

    #[test]
    fn a_row_found_locked_is_not_left_until_the_next_look() {
        let mut owed = OwedMarks::new();
        assert!(owed.begin_if_due(START));
        owed.ended(START, Some(0));
        owed.some(START);
        assert!(owed.begin_if_due(START + TRIED_EVERY));
    }
}
