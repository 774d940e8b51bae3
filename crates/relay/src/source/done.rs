//! What jobs bring, and how the engine is told of it.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;
use uuid::Uuid;

use super::Source;
use super::replication::{OpenReplay, Page};
use crate::engine::{
    Blocked, BrokerInput, ClaimsInput, Engine, Found, Input, ReplayStart, ReplayUnread, RowsInput,
    Tail,
};
use crate::error::Error;
use crate::postgres::Store;
use crate::postgres::sql::{Marks, Rows, ScannedRow, Scanner, Stuck, SweepCursor};
use crate::reporter::Reporter;
use crate::status::HistoryStatus;

/// What a job brought: what came of an effect, with what it needs of the shell's.
pub(crate) enum Done {
    Input(Input),
    /// The same, and why not all could be done.
    HeldUp(Input, String),
    /// The same of an event whose id another writer's message has, with what is to be said of that.
    Taken(Input, Uuid, String),
    /// What came of a statement that marks rows, and why it failed.
    Marked(Input, Option<String>),
    /// Nothing comes of it.
    Nothing,
    Compared(HistoryStatus),
    /// Whether a server that is silent is at work, and what keeps it from sending, if it waits for others.
    Asked((bool, Option<String>)),
    /// `None` if it could not be found out.
    Stuck(Option<Stuck>),
    /// Another connection for marks; `None` if it could not be made.
    SecondWriter(Option<Arc<Marks>>),
    /// With what brings more. `None` if the statement failed.
    Unmarked(Option<(Found, Option<Box<SweepCursor>>)>),
    Scanned(Scanned),
    /// The slot is there, and locked over this connection.
    SlotMade(Box<Store>),
    Replaying(Box<(ReplayStart, OpenReplay)>),
    ReplayRead((Uuid, i64), Result<Page, ReplayUnread>),
    /// Rows are claimed over this connection; without any there is no claim.
    Claimed {
        claim: u32,
        store: Arc<Rows>,
        rows: Vec<ScannedRow>,
    },
    /// With a connection that has no claim now.
    Freed(Arc<Rows>, Box<Done>),
}

/// What a scan read.
pub(crate) struct Scanned {
    pub(super) scanner: Box<Scanner>,
    pub(super) rows: Vec<ScannedRow>,
    /// With the first batch of a scan: the aggregates that are blocked.
    pub(super) blocked: Option<Vec<Blocked>>,
    /// With the first batch of a session: the stream's end.
    pub(super) seen: Option<Tail>,
}

impl<T: Into<Input>> From<T> for Done {
    fn from(input: T) -> Self {
        Self::Input(input.into())
    }
}

impl Source {
    /// Tells the engine what came of a job.
    pub(crate) fn finish(
        &mut self,
        done: Done,
        engine: &mut Engine,
        now: Duration,
        reporter: &mut Reporter,
    ) -> Result<(), Error> {
        let Some(input) = self.input(done, engine, reporter)? else { return Ok(()) };
        let mut failed = None;
        if let Input::Broker(BrokerInput::TailFailed(why)) = &input {
            failed = Some(why.clone());
        } else if let Input::Claims(ClaimsInput::LookFailed(why)) = &input {
            warn!(error = why, "the stream does not answer, trying again");
        }
        let known = self.last_event();
        *known = input.last_event(*known);
        engine.apply(now, input);
        if let Some(why) = failed {
            let wait = engine.publishing().breaker().1.unwrap_or_default();
            warn!(error = why, "the stream does not answer, trying again in {wait:.1?}");
            reporter.trouble(why);
        }
        Ok(())
    }

    /// Keeps what is the shell's of what a job brought. `None` if nothing of it is the engine's.
    fn input(
        &mut self,
        done: Done,
        engine: &Engine,
        reporter: &mut Reporter,
    ) -> Result<Option<Input>, Error> {
        Ok(Some(match done {
            Done::Input(input) => input,
            Done::HeldUp(input, why) => {
                reporter.trouble(why);
                input
            }
            Done::Taken(input, id, why) => {
                reporter.id_taken(id, why);
                input
            }
            Done::Marked(input, failed) => {
                reporter.marks_failing(failed);
                input
            }
            Done::Nothing => return Ok(None),
            Done::Compared(found) => {
                reporter.compared(found);
                return Ok(None);
            }
            Done::Asked((is_at_work, held_back)) => {
                if is_at_work || held_back.is_some() {
                    self.replication()?.lives();
                }
                if let Some(what) = held_back {
                    reporter.held_back(what);
                }
                return Ok(None);
            }
            Done::Stuck(found) => {
                let owed = found.as_ref().map(|it| it.owed);
                if let Some(stuck) = found {
                    reporter.stuck(stuck);
                }
                RowsInput::Owed(owed).into()
            }
            Done::SecondWriter(store) => {
                self.replication()?.second_opened(store, engine.marks_waiting()).into()
            }
            Done::Unmarked(found) => self.replication()?.unmarked(found).into(),
            Done::Scanned(scanned) => self.replication()?.scanned(scanned)?.into(),
            Done::SlotMade(store) => self.replication()?.slot_made(store)?.into(),
            Done::Replaying(begun) => self.replication()?.replaying(*begun).into(),
            Done::ReplayRead(of, page) => self.replication()?.replay_page(of, page).into(),
            Done::Claimed { claim, store, rows } => {
                self.polling()?.claimed(claim, store, &rows)?.into()
            }
            Done::Freed(store, done) => {
                self.polling()?.free(store);
                return self.input(*done, engine, reporter);
            }
        }))
    }
}
