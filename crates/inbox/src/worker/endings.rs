//! Writes down how claims end. What a trigger keeps out is not taken for written.

use std::collections::HashSet;

use tokio_postgres::GenericClient;
use tracing::warn;
use uuid::Uuid;

use crate::Error;
use crate::engine::{Decision, Item, Report};
use crate::message::Message;
use crate::postgres::store::{Statements, Store};
use crate::record::{Cause, Claim, End, Failed};
use crate::worker::work::{Context, Ending};

impl Context {
    /// Ends claims by one statement, and dead letters by one each. A claim without a decision is given
    /// back. Says of each event what its own row says: one that somebody else has, or that is gone,
    /// keeps no other from its end. `None` is an event that has none, since a trigger keeps it out.
    pub(crate) async fn end(
        &self,
        store: &Store,
        claims: &[Ending<'_>],
    ) -> Result<Vec<Option<Report>>, Error> {
        let ends = claims.iter().filter_map(|&(_, claim, decision)| {
            let end = match decision {
                None => End::GivenBack { failed: None },
                Some((Decision::Complete { outcome }, _)) => {
                    End::Processed { outcome: outcome.as_deref() }
                }
                Some((Decision::Fail { reason, delay }, took)) => {
                    End::Failed { reason, delay: *delay, took }
                }
                Some((Decision::GiveBack(trouble), took)) => {
                    let failed = took.map(|took| Failed { reason: &trouble.reason, took });
                    End::GivenBack { failed }
                }
                Some((Decision::Park { .. } | Decision::Expire(_), _)) => return None,
            };
            Some((claim, end))
        });
        let ends: Vec<_> = ends.collect();
        let ended = store.sql().end(store.client(), &ends).await;
        let ours: HashSet<Uuid> = ended.map_err(Error::sql("end claims"))?.into_iter().collect();
        let mut reports = Vec::with_capacity(claims.len());
        for &ending in claims {
            let id = ending.1.key.id;
            reports.push(match self.ended(store, ending, ours.contains(&id)).await {
                Ok(report) => {
                    self.tally.let_in(id);
                    Some(report)
                }
                Err(Error::KeptOut { .. }) => None,
                Err(error) => return Err(error),
            });
        }
        Ok(reports)
    }

    /// How a claim ended, of which the statement said whether it was ours; a dead letter is written.
    async fn ended(
        &self,
        store: &Store,
        (item, claim, decision): Ending<'_>,
        is_ours: bool,
    ) -> Result<Report, Error> {
        let answered = item.at_fault.is_none();
        let Some((decision, took)) = decision else {
            return Ok(Report::undone(item, item.path));
        };
        let report = match decision {
            Decision::GiveBack(trouble) => return Ok(Report::trouble(item, trouble.clone())),
            Decision::Park { cause, reason } => self
                .park(store, &item.message, Some((claim, took)), *cause, reason)
                .await?
                .then(|| Report { answered, ..Report::dead(item) }),
            Decision::Expire(trouble) => self
                .park(store, &item.message, Some((claim, took)), Cause::Expired, &trouble.reason)
                .await?
                .then(|| Report::expired(item, trouble.clone())),
            Decision::Complete { .. } => is_ours.then(|| Report::processed(item)),
            Decision::Fail { delay, .. } => {
                is_ours.then(|| Report { answered, ..Report::retried(item, *delay) })
            }
        };
        match report {
            Some(report) => Ok(report),
            None => {
                self.is_lost(store.sql(), store.client(), (item, claim)).await?;
                Ok(self.lost(item))
            }
        }
    }

    /// Of a claim that was not ended.
    ///
    /// # Errors
    ///
    /// [`Error::KeptOut`] if it is still ours: then a trigger is to blame.
    pub(crate) async fn is_lost(
        &self,
        sql: &Statements,
        on: &impl GenericClient,
        (item, claim): (&Item, Claim),
    ) -> Result<(), Error> {
        let is_ours = sql.is_ours(on, claim).await.map_err(Error::sql("look for a claim"))?;
        if !is_ours {
            return Ok(());
        }
        let kept = Error::kept_verdict();
        self.keep_out(&item.message, &kept);
        Err(kept)
    }

    pub(super) fn keep_out(&self, message: &Message, error: &Error) {
        if matches!(error, Error::KeptOut { .. }) && self.tally.keep_out(message.key.id, error) {
            warn!(
                consumer = self.config.consumer,
                event_id = %message.key.id,
                %error,
                hint = error.hint(),
                "a record is kept out, trying again"
            );
        }
    }
}
