//! What operators are told, in the log and in the status.

use tracing::field::display;
use tracing::{error, info, warn};

use super::Reporter;
use crate::engine::{About, Ignored, Notice, SlotNotice};
use crate::status::SlotStatus;

impl Reporter {
    /// Tells operators what any session may have to tell.
    pub(crate) fn tell(&mut self, notice: Notice) {
        match notice {
            Notice::ReadingTail { why, unresolved } => {
                warn!(why, unresolved, "reading the stream's tail");
                self.trouble(why);
            }
            Notice::Parking { about, reason } => self.parking(about, &reason),
            Notice::NotReplayed { copy } => {
                if let Some(spans) = &mut self.spans {
                    spans.failed(copy, "refused");
                }
            }
            Notice::TryingAgain { about, attempts, reason, pause } => {
                let About { event_id, lsn, trace_id } = about;
                let (lsn, trace_id) = (lsn.map(display), trace_id.map(display));
                let taken = self.id_taken.take_if(|(id, _)| *id == event_id);
                let reason = taken.map_or(reason, |(_, why)| why);
                warn!(
                    %event_id, lsn, trace_id, attempts, reason,
                    "the stream does not take an event: trying again in {pause:?}"
                );
                self.trouble(reason);
            }
            Notice::Stranger { why } => self.stranger(why),
            Notice::Stopping { why, unresolved } => info!(unresolved, "stopping: {why}"),
            Notice::Uncounted => warn!(
                "the stream has lost messages, and nothing that is written down tells which events \
                 it had: those that are not confirmed are published, some perhaps once more \
                 (docs/limits.md)"
            ),
            Notice::Counted { counted, uncertain: 0 } => info!(
                counted,
                "the stream has lost messages of events that the log brings again: they are \
                 published, by the number of sequences that the stream has given out"
            ),
            Notice::Counted { counted, uncertain } => warn!(
                counted,
                uncertain,
                "events that the log brought again are published, some of them perhaps once more"
            ),
            Notice::ScanFound => {
                info!("the scanner found rows that the log does not bring: publishing them");
            }
            Notice::FirstScanDone => info!("the scanner is done; following the log"),
            Notice::Swept { rows } => {
                info!(swept = rows, "marked rows whose marks were lost or late");
            }
            Notice::Unlogged { rows } => error!(
                rows,
                "rows came into the outbox without passing the log, and the stream, read from its \
                 beginning, does not have them: publishing them from the table"
            ),
            Notice::Slot { status, notice } => {
                self.tell_of_slot(&status, notice);
                self.status.slot = Some(status);
            }
            Notice::StaysFenced => error!(
                stream = self.stream,
                "others keep writing to the stream, and each of their messages makes the relay read \
                 the stream's end again: nothing is lost or doubled, but it is slow. Give the relay \
                 a stream of its own, or set relay.mark = \"row\" and relay.mode = \"keyed\", and \
                 run `tailpost setup`"
            ),
            Notice::IgnoringMessages { why } => self.tell_of_ignored(why),
        }
    }

    fn parking(&mut self, about: About, reason: &str) {
        let About { event_id, lsn, trace_id } = about;
        let (lsn, trace_id) = (lsn.map(display), trace_id.map(display));
        let hint = "see `tailpost outbox dlq show` with its id; mend the cause, then requeue it";
        warn!(
            %event_id, lsn, trace_id, reason, hint,
            "parking an event that cannot be published"
        );
        if let Some(spans) = &mut self.spans {
            spans.failed(event_id, "dead_letter");
        }
    }

    fn stranger(&mut self, why: String) {
        if self.status.stranger.is_none() {
            warn!(
                stream = self.stream,
                why,
                "another client answers in the stream's place: such answers are passed over. \
                         Let no client that reads the events' subjects publish on the relay's inbox \
                         (docs/security.md)"
            );
        }
        self.status.stranger = Some(why);
    }

    fn tell_of_ignored(&self, why: Ignored) {
        let prefix = &self.wal_prefix;
        match why {
            Ignored::Off => error!(
                prefix,
                "the log has messages with the outbox's prefix, which are not published and do not \
                 come again: events of outbox_emit_wal need relay.wal_messages = true; find out who \
                 wrote these"
            ),
            Ignored::NotTransactional => warn!(
                prefix,
                "somebody writes messages with the outbox's prefix outside of transactions: they \
                 are ignored; call outbox_emit_wal, or pg_logical_emit_message with another prefix"
            ),
        }
    }

    fn tell_of_slot(&self, status: &SlotStatus, notice: Option<SlotNotice>) {
        let (slot, retained_bytes) = (&self.slot, status.retained_bytes);
        match notice {
            Some(SlotNotice::OverLimit) => {
                error!(slot, retained_bytes, "the slot keeps more of the log than relay.wal_limit");
            }
            Some(SlotNotice::LimitIn(left)) => warn!(
                slot,
                retained_bytes,
                wal_headroom_bytes = status.wal_headroom_bytes.unwrap_or(0),
                "the slot keeps more and more of the log: its limit is reached in {left:?}"
            ),
            Some(SlotNotice::Recovered) => {
                info!(slot, retained_bytes, "the slot keeps less of the log again");
            }
            None => {}
        }
    }
}
