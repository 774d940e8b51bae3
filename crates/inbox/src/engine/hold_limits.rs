//! The limits of what is held of the events of a consumer.

/// What a worker may hold of a consumer, and what each of the parts of it may that the worker can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldLimits {
    /// Events in memory.
    pub(crate) events: usize,
    /// What they may take; one more request's worth, which is as much, comes on top.
    pub(crate) bytes: usize,
    /// Events of which only the sequences are kept, about 25 bytes each at worst. At the broker they
    /// are among those that are not acknowledged, of which it allows
    /// `durable_consumer::ACK_PENDING_MAX`.
    pub(crate) left: usize,
}

impl HoldLimits {
    /// Of one that is not divided.
    pub(crate) const fn of(events: usize) -> Self {
        Self { events, bytes: 16 * 1024 * 1024, left: 1_250_000 }
    }

    /// What each of so many parts has of it. With less than this it would get nowhere.
    pub(crate) fn divided(self, parts: usize) -> Self {
        let Self { events, bytes, left } = self;
        let each = |all: usize, least: usize| (all / parts).max(least.min(all));
        Self { events: each(events, 16), bytes: each(bytes, 256 * 1024), left: each(left, 1_000) }
    }
}
