//! Looks again at what seems wrong: it may have changed since it was read.

use std::time::{Duration, Instant};

use relay::{Error, Mode};
use uuid::Uuid;

use super::table_reading::Names;
use super::{Read, Run};
use crate::verify_rules::judge::Candidate;
use crate::verify_rules::second_look::Now;
use crate::verify_rules::{Kind, LISTED_MAX, second_look};

/// Events looked at by one statement.
const AT_ONCE: usize = 1_000;

/// How long something may go on looking wrong that a relay at work, or a standby, sees to.
const PATIENCE: Duration = Duration::from_secs(15);

const PAUSE: Duration = Duration::from_millis(500);

/// Sees what is true now.
pub(super) struct LookingAgain<'a> {
    run: &'a Run<'a>,
    names: &'a Names,
    has_relay: bool,
    waits_for_standbys: bool,
    /// What may pass by itself.
    passing: Vec<Candidate>,
}

impl<'a> LookingAgain<'a> {
    pub(super) fn new(run: &'a Run<'a>, names: &'a Names, read: &Read) -> Self {
        let waits_for_standbys = read.table.waits_for_standbys;
        Self { run, names, has_relay: read.has_relay, waits_for_standbys, passing: Vec::new() }
    }

    /// Those that still are findings. What may pass by itself is kept for [`finish`](Self::finish).
    pub(super) async fn look(
        &mut self,
        candidates: Vec<Candidate>,
    ) -> Result<Vec<Candidate>, Error> {
        let mut stand = self.again(candidates).await?;
        let (has_relay, waits) = (self.has_relay, self.waits_for_standbys);
        let passing = &mut self.passing;
        stand.retain(|it| {
            let may_pass = match it.kind {
                Kind::Unmarked => has_relay,
                // A relay finds rows that did not pass the log.
                Kind::Gap => has_relay && it.named.is_none(),
                Kind::Phantom => waits,
                _ => false,
            };
            let is_kept = may_pass && passing.len() < LISTED_MAX;
            if is_kept {
                passing.push(*it);
            }
            !is_kept
        });
        Ok(stand)
    }

    /// Those of the rest that go on being findings.
    pub(super) async fn finish(&mut self) -> Result<Vec<Candidate>, Error> {
        let began = Instant::now();
        let mut passing = std::mem::take(&mut self.passing);
        while !passing.is_empty() && began.elapsed() < PATIENCE {
            tokio::time::sleep(PAUSE).await;
            passing = self.again(passing).await?;
        }
        Ok(passing)
    }

    async fn again(&self, candidates: Vec<Candidate>) -> Result<Vec<Candidate>, Error> {
        let polls = self.run.config.mode == Mode::Poll;
        let mut stand = Vec::new();
        for some in candidates.chunks(AT_ONCE) {
            let ids: Vec<Uuid> = some.iter().filter_map(|it| it.id).collect();
            let named =
                |stream: Option<String>, sequence| self.names.named(stream.as_deref(), sequence);
            let events = self.run.present.events_now(&ids, polls, named).await?;
            let now = |it: &Candidate| {
                it.id.and_then(|id| events.get(&id)).copied().unwrap_or_else(Now::default)
            };
            stand.extend(some.iter().filter_map(|it| second_look::again(*it, now(it))));
        }
        Ok(stand)
    }
}
