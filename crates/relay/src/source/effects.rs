//! What the engine wants done becomes jobs beside the session's loop.
//!
//! Every match here names every effect: one that is added and not carried out does not compile.

use std::time::Duration;

use super::{Done, Job, STREAM_IS_SHORTER, Source, other_messages, within};
use crate::engine::{BrokerEffect, BrokerInput, Effect, End, LastEvent, Notice, Resolved};
use crate::error::Error;
use crate::nats::{LookedUp, TailReader};
use crate::reporter::Reporter;

/// How long going to another server of the cluster may take.
const LEAVE_MAX: Duration = Duration::from_secs(60);

impl Source {
    /// Does what the engine says, or makes a job of it. `None` if it is done, and nothing comes of it.
    ///
    /// # Errors
    ///
    /// What ends the session.
    pub(crate) fn carry_out(
        &mut self,
        effect: Effect,
        reporter: &mut Reporter,
    ) -> Result<Option<Job>, Error> {
        match effect {
            Effect::Books(effect) => self.replication()?.books_job(effect),
            Effect::Rows(effect) => match self {
                Self::Log(log) => Ok(Some(log.rows_job(effect))),
                Self::Table(table) => table.rows_job(effect),
            },
            Effect::Marking(effect) => Ok(self.replication()?.marking_job(effect)),
            Effect::Scan(effect) => self.replication()?.scan_job(effect),
            Effect::Replay(effect) => self.replication()?.replay_job(effect, reporter),
            Effect::Claims(effect) => self.polling()?.job(effect).map(Some),
            Effect::Broker(effect) => Ok(Some(self.broker_job(effect))),
            Effect::Confirm(lsn) => self.replication()?.confirm(lsn).map(|()| None),
            Effect::Measure(resolved) => {
                let known = self.last_event();
                *known = LastEvent::later(Resolved::last_of(&resolved), *known);
                reporter.resolved(&resolved);
                Ok(None)
            }
            Effect::Tell(notice) => {
                if let (Notice::Slot { .. }, Self::Log(log)) = (&notice, &*self) {
                    log.tell_waits(reporter);
                }
                reporter.tell(notice);
                Ok(None)
            }
            Effect::End(end) => Err(ended(end)),
        }
    }

    fn broker_job(&self, effect: BrokerEffect) -> Job {
        match effect {
            BrokerEffect::ReadTail { from, delay } => match self {
                Self::Log(log) => log.read_tail(from, delay),
                Self::Table(table) => table.read_tail(from, delay),
            },
            BrokerEffect::LookUp { epoch, index, seq, id } => {
                let tail = self.tail();
                // The client bounds the time of the request. Without an answer the event is sent again.
                Box::pin(async move {
                    let found = tail.look_up(seq, id).await.unwrap_or(LookedUp::Nothing);
                    let is_there = found == LookedUp::Event;
                    let input = BrokerInput::LookedUp { epoch, index, seq, is_there }.into();
                    Ok(match found {
                        LookedUp::Another => Done::Taken(input, id, other_messages::said(id, seq)),
                        LookedUp::Event | LookedUp::Nothing => Done::Input(input),
                    })
                })
            }
            BrokerEffect::LeaveServer => leave_server(self.tail()),
        }
    }

    fn tail(&self) -> TailReader {
        match self {
            Self::Log(log) => log.tail(),
            Self::Table(table) => table.tail(),
        }
    }
}

/// Goes to another server of the broker's cluster.
fn leave_server(tail: TailReader) -> Job {
    within(LEAVE_MAX, async move {
        tail.leave_server().await;
        Ok(Done::Nothing)
    })
}

fn ended(end: End) -> Error {
    match end {
        End::Refused(reason) => Error::Refused(reason),
        End::Silence => Error::Stalled("the server fell silent"),
        End::StreamIsShorter => Error::Stalled(STREAM_IS_SHORTER),
        End::LeaveFence(reason) => Error::Unfenced { reason },
        End::ClaimLost => Error::Stalled("a claim was not renewed in time"),
        End::Bug(what) => Error::bug(what),
    }
}

#[cfg(test)]
mod tests;
