//! What operators read about a consumer.

use tracing::{info, warn};

use crate::config::Config;
use crate::engine::{Full, Notice, Pause, TroubleKind};
use crate::nats::durable_consumer::ACK_PENDING_MAX;

pub(super) fn tell(config: &Config, notice: Notice) {
    let consumer = &config.consumer;
    match notice {
        Notice::TookOver => {
            info!(consumer, "another worker took over, or the database was started anew")
        }
        Notice::BreakerOpen { reason } => {
            warn!(consumer, reason, "the consumer pauses: breaker open");
        }
        Notice::BreakerClosed => info!(consumer, "the handler answers again: breaker closed"),
        Notice::BreakerReset => info!(consumer, "somebody closed the breaker"),
        Notice::Held => info!(consumer, "the consumer is paused: no event is begun"),
        Notice::Released => info!(consumer, "the consumer goes on"),
        Notice::AtFault { stream_seq, reason } => {
            warn!(consumer, stream_seq, reason, "only this event fails: its attempt counts");
        }
        Notice::Full { full, left } => {
            let reason = full_in_words(config, full, left);
            warn!(consumer, reason, "nothing more is taken in");
        }
        Notice::LeftInStream => {
            info!(consumer, "events behind one without progress are left in the stream");
        }
        Notice::NothingLeft => info!(consumer, "all that was left in the stream has been read"),
        Notice::EndingHandlers { busy } => {
            warn!(consumer, busy, "handlers are at work: ending them");
        }
        Notice::LeftHandlers { busy } => warn!(consumer, busy, "left handlers at work"),
    }
}

pub(super) fn in_words(config: &Config, pause: Pause<'_>) -> String {
    match pause {
        Pause::Database(None) => "the database is away".into(),
        Pause::Database(Some(trouble)) => format!("the database is away: {trouble}"),
        Pause::Handler(TroubleKind::Away, reason) => format!("the handler is away: {reason}"),
        Pause::Handler(TroubleKind::Misconfigured, reason) => {
            format!("the handler is not set up right: {reason}")
        }
        Pause::Operator(by) => format!("paused by {by}"),
        Pause::Broker(trouble) => trouble.to_owned(),
        Pause::Full { full, left } => full_in_words(config, full, left),
    }
}

fn full_in_words(config: &Config, full: Full, left: usize) -> String {
    let reason =
        format!("too much is left in the stream: {left} events behind some that fail or wait");
    let mend = "mend what fails, or make dead letters of it by a lower max_attempts";
    match full {
        Full::Left { max } => format!("{reason}, as there may be no more than {max}; {mend}"),
        Full::Unacknowledged { max } => {
            let (stream, consumer) = (&config.stream, config.durable());
            format!(
                "{reason}, as the durable consumer's max_ack_pending is {max}; {mend}, or raise \
                 it: `nats consumer edit {stream} {consumer} --max-pending={ACK_PENDING_MAX}`"
            )
        }
    }
}
