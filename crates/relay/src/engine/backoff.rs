//! The back-off table: how long the relay waits before it tries again. An event's next
//! attempt is decided in `publish/retry.rs`.

use std::time::Duration;

use servers::Backoff;

/// An event that the stream refuses. Ten attempts take 21 s: in fenced mode all others wait for
/// it, since nothing may overtake. That is less than it takes to be called unready (30 s), and
/// enough for whoever is just changing the stream.
pub(crate) const EVENT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// A broker that stores nothing: the breaker's longest pause.
pub(crate) const BROKER: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(10));

/// A session that ended with an error.
pub(crate) const SESSION: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(10));

/// The checkpoint of a relay that has no events: it writes to the log that it confirms, and
/// would keep an idle server busy.
pub(crate) const CHECKPOINT: Backoff =
    Backoff::new(Duration::from_millis(250), Duration::from_secs(5));

/// Reading what is to be replayed, which holds up nothing but its replay.
pub(crate) const REPLAY: Backoff =
    Backoff::new(Duration::from_millis(250), Duration::from_secs(10));

/// A rewind slot that PostgreSQL gives up again and again.
pub const REWIND: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(10));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_attempts_of_an_event_take_less_than_half_a_minute() {
        let waited: Duration = (1..10).map(|it| EVENT.after(it)).sum();
        assert_eq!(waited, Duration::from_millis(21_300));
    }
}
