//! The broker has something for the consumer, and there is room for it, and nothing comes.

use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::Info;
use jiff::Timestamp;

/// What a status begins with that says so.
pub const SILENT: &str = "the broker delivers nothing";

/// What was asked for and did not come.
pub(super) struct Silence {
    /// When something came last.
    heard_at: Instant,
    /// Since when more is pending, at every look.
    pending_since: Option<Instant>,
    why: Option<String>,
}

impl Silence {
    pub(super) fn new() -> Self {
        Self { heard_at: Instant::now(), pending_since: None, why: None }
    }

    pub(super) fn heard(&mut self) {
        *self = Self::new();
    }

    /// What came was nothing, and this is what the broker knows. What has only just been stored may be
    /// on its way, so that two looks count, `apart` from each other.
    pub(super) fn look(&mut self, info: &Info, apart: Duration) {
        if info.num_pending == 0 {
            (self.pending_since, self.why) = (None, None);
            return;
        }
        let since = *self.pending_since.get_or_insert_with(Instant::now);
        let pause = pause(info);
        if pause.is_none() && since.elapsed() < apart {
            return;
        }
        let pause = pause.map(|it| format!(": {it}")).unwrap_or_default();
        let (pending, seconds) = (info.num_pending, self.heard_at.elapsed().as_secs());
        self.why =
            Some(format!("{SILENT}: {pending} events wait, and none came for {seconds} s{pause}"));
    }

    pub(super) fn why(&self) -> Option<String> {
        self.why.clone()
    }
}

/// That somebody paused the consumer at the broker, and how it goes on.
#[must_use]
pub fn pause(info: &Info) -> Option<String> {
    let until = info.config.pause_until.filter(|_| info.paused)?;
    let until = Timestamp::from_nanosecond(until.unix_timestamp_nanos()).unwrap_or_default();
    Some(format!("the consumer is paused until {until}, `{}` ends that", resume(info)))
}

/// What lets a consumer go on.
#[must_use]
pub fn resume(info: &Info) -> String {
    format!("nats consumer resume {} {}", info.stream_name, info.name)
}
