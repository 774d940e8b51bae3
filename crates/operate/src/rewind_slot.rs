//! Looks after the slot that trails behind, beside a relay.

use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use relay::access::{answered, backoff};
use relay::{Config, Error, Mode, RewindConfig, describe};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::sql::{ADVANCING, RewindReading, Store};

/// How often the slot is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How often it is looked for one that is not to be there.
const LOOK_WITHOUT_EVERY: Duration = Duration::from_mins(5);

/// How long a look may take. Most of it is the time for one step of the slot.
const LOOK_MAX: Duration = Duration::from_mins(6);

/// So often in a row a step is not finished before the slot is given up. Each begins where the step
/// before it did, and brings the slot no further.
const UNMOVED_MAX: u32 = 2;

/// How long a statement waits for others' locks.
const WAITS: &str = "1s";

const LOOKING: &str = "look at the rewind slot";

/// The rewind slot, as one process saw it last.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RewindStatus {
    /// Whether there is one.
    pub exists: bool,
    /// It brings what committed there or later.
    pub from_lsn: Option<String>,
    /// What committed then or later is in it, as far as a time is known.
    pub from: Option<Timestamp>,
    /// Bytes of log that it keeps.
    pub retained_bytes: u64,
    /// How many of them the relay's own slot does not keep.
    pub extra_bytes: u64,
    /// How often it was made, by any process.
    pub made_total: u64,
    /// Why it cannot be kept, if so.
    pub failure: Option<String>,
    /// Looks of this process that failed.
    pub failures_total: u64,
}

impl RewindStatus {
    fn see(&mut self, reading: &RewindReading) {
        let slot = reading.slot.as_ref();
        self.exists = slot.is_some_and(|it| !it.is_lost());
        self.from_lsn = slot.map(|it| it.confirmed.to_string());
        self.from = slot.and_then(|it| it.from);
        self.retained_bytes = slot.map_or(0, |it| it.retained_bytes);
        self.extra_bytes = slot.map_or(0, |it| it.extra_bytes);
        self.made_total = reading.notes.made;
    }
}

/// What is to be done about the slot.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Nothing, or nothing yet.
    Rest,
    /// There is to be none.
    Drop,
    /// Its log is gone or is about to go.
    DropLost,
    Make(&'static str),
    Trail(u64),
    /// It cannot be moved on, and keeps more than it may.
    Replace,
    /// Another program's slot has its name.
    Refuse,
}

/// `retain` is how much it may keep; `None` if there is to be no such slot. `unmoved` is how often in a
/// row it could not be moved on in time.
fn next(retain: Option<u64>, reading: &RewindReading, unmoved: u32) -> Step {
    match (retain, &reading.slot) {
        (None, Some(_)) => Step::Drop,
        (None, None) => Step::Rest,
        (Some(_), None) if reading.is_others => Step::Refuse,
        // It goes before anything else has to.
        (Some(_), Some(slot)) if slot.is_lost() => Step::DropLost,
        // What the relay's own slot keeps too is not freed by dropping this one.
        (Some(retain), Some(slot))
            if unmoved >= UNMOVED_MAX
                && slot.extra_bytes > retain
                && reading.has_source
                && reading.notes.held_by.is_none() =>
        {
            Step::Replace
        }
        (Some(retain), Some(_)) => Step::Trail(retain),
        // One that begins where PostgreSQL is about to remove the log would not last.
        (Some(_), None) if !reading.has_source => Step::Rest,
        (Some(_), None) => match reading.lost_for {
            Some(seconds) => {
                let pause = backoff::REWIND.after(reading.losses.saturating_sub(1));
                match seconds >= pause.as_secs_f64() {
                    true => Step::Make("PostgreSQL had no room for its log"),
                    false => Step::Rest,
                }
            }
            None if reading.notes.made > 0 => Step::Make("it was gone"),
            None => Step::Make("there was none"),
        },
    }
}

/// Keeps the rewind slot of a shard as [`Config::rewind`] says, for as long as the future is polled. Of
/// several processes one does it. Where there is to be none, one that is left is dropped. `status` is
/// told of it; `None` without such a slot.
///
/// A failure is logged when it begins and when it has passed, and is no reason to end anything.
///
/// # Cancel safety
///
/// Dropping the future ends it after the statement that runs.
pub async fn keep(config: &Config, status: &watch::Sender<Option<RewindStatus>>) -> Infallible {
    let retain = retained(config);
    let (mut store, mut unmoved) = (None, 0);
    loop {
        let mut pause = LOOK_EVERY;
        let looked = timeout(LOOK_MAX, look(config, &mut store, status, &mut unmoved)).await;
        let looked = looked.unwrap_or(Err(Error::Silent { doing: LOOKING }));
        let has_failed = status.borrow().as_ref().is_some_and(|it| it.failure.is_some());
        match looked {
            Ok(true) => continue,
            Ok(false) => {
                if has_failed {
                    info!(slot = config.slot, "the rewind slot can be kept again");
                    status.send_modify(|it| it.get_or_insert_default().failure = None);
                }
                if retain.is_none() {
                    status.send_if_modified(|it| it.take_if(|it| it.from_lsn.is_none()).is_some());
                    // Another process, which does not know of it yet, may make one meanwhile.
                    store = None;
                    pause = LOOK_WITHOUT_EVERY;
                }
            }
            Err(error) => {
                let why = describe_with_hint(&error);
                match has_failed {
                    false => warn!(error = why, slot = config.slot, "cannot keep the rewind slot"),
                    true => debug!(error = why, slot = config.slot, "cannot keep the rewind slot"),
                }
                // Its statement may still run, or its transaction be broken.
                store = None;
                tell_failure(config, &why).await;
                status.send_modify(|it| {
                    let status = it.get_or_insert_default();
                    status.failure = Some(why);
                    status.failures_total += 1;
                });
            }
        }
        sleep(pause).await;
    }
}

/// PostgreSQL keeps nothing of such a step.
fn is_late_step(error: &Error) -> bool {
    error.is_cancelled() && matches!(error, Error::Sql { doing: ADVANCING, .. })
}

/// A relay that reads no slot has none that could trail behind.
fn retained(config: &Config) -> Option<u64> {
    config.rewind.retain.filter(|_| config.mode != Mode::Poll)
}

fn describe_with_hint(error: &Error) -> String {
    let hint = error.hint().map(|it| format!(": {it}")).unwrap_or_default();
    format!("{}{hint}", describe(error))
}

/// For `tailpost status`. Without the database it is only logged.
async fn tell_failure(config: &Config, why: &str) {
    let told = async {
        let store = Store::connect(config, "tailpost rewind").await?;
        answered(LOOKING, store.note_rewind_failure(&config.slot, Some(why))).await
    };
    if let Err(error) = told.await {
        debug!(error = describe(&error), "cannot write down why there is no rewind slot");
    }
}

/// Says whether there is more to do at once.
async fn look(
    config: &Config,
    kept: &mut Option<Store>,
    status: &watch::Sender<Option<RewindStatus>>,
    unmoved: &mut u32,
) -> Result<bool, Error> {
    if kept.is_none() {
        let store = Store::connect(config, "tailpost rewind").await?;
        answered("configure the session", store.wait_for_locks(Some(WAITS))).await?;
        answered("look for the outbox", store.check_tables()).await?;
        *kept = Some(store);
    }
    let Some(store) = kept else { return Ok(false) };
    let (slot, name) = (&config.slot, RewindConfig::slot(&config.slot));
    if !answered(LOOKING, store.try_lock_rewind(slot)).await? {
        let reading = answered(LOOKING, store.rewind_slot(slot, &name)).await?;
        status.send_modify(|it| it.get_or_insert_default().see(&reading));
        return Ok(false);
    }
    let done = step(config, store, &name, status, unmoved).await;
    if done.is_ok() {
        answered(LOOKING, store.note_rewind_failure(slot, None)).await?;
        answered(LOOKING, store.unlock_rewind(slot)).await?;
    }
    done // the lock ends with the connection
}

async fn step(
    config: &Config,
    store: &Store,
    name: &str,
    status: &watch::Sender<Option<RewindStatus>>,
    unmoved: &mut u32,
) -> Result<bool, Error> {
    let slot = &config.slot;
    let reading = answered(LOOKING, store.rewind_slot(slot, name)).await?;
    let is_behind = match next(retained(config), &reading, *unmoved) {
        Step::Rest => false,
        Step::Refuse => {
            let problem = format!(
                "replication slot \"{name}\" is not one that a relay made, and is left alone: drop it, \
                 or configure another name as postgres.slot"
            );
            return Err(Error::Conflict(problem));
        }
        Step::Drop => {
            store.drop_slot(name).await?;
            store.forget_rewind(slot).await?;
            info!(slot = name, "dropped the rewind slot: rewind.retain is off");
            false
        }
        Step::DropLost => {
            store.drop_lost_rewind(slot, name).await?;
            warn!(slot = name, "dropped the rewind slot: PostgreSQL has no room for its log");
            false
        }
        Step::Make(because) => {
            store.make_rewind(slot, name, because).await?;
            info!(slot = name, because, "made the rewind slot");
            true // a time is noted at once
        }
        Step::Replace => {
            let because = "it could not be moved on in time";
            store.drop_slot(name).await?;
            store.make_rewind(slot, name, because).await?;
            *unmoved = 0;
            warn!(slot = name, because, "made the rewind slot anew");
            true
        }
        Step::Trail(retain) => {
            let trailed = store.trail(slot, name, retain, config.rewind.max_age).await;
            *unmoved = match &trailed {
                Err(error) => *unmoved + u32::from(is_late_step(error)),
                Ok(_) => 0,
            };
            trailed?
        }
    };
    let reading = answered(LOOKING, store.rewind_slot(slot, name)).await?;
    status.send_modify(|it| it.get_or_insert_default().see(&reading));
    Ok(is_behind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::{RewindNotes, RewindSlot};

    fn reading(wal_status: Option<&str>) -> RewindReading {
        let slot = wal_status.map(|it| RewindSlot {
            confirmed: pgoutput::Lsn(7),
            wal_status: Some(it.to_owned()),
            from: None,
            retained_bytes: 9,
            extra_bytes: 8,
        });
        RewindReading { slot, has_source: true, ..RewindReading::default() }
    }

    #[test]
    fn the_slot_is_made_and_moved_and_goes_first() {
        assert_eq!(next(Some(1), &reading(None), 0), Step::Make("there was none"));
        let mut made = reading(None);
        made.notes.made = 1;
        assert_eq!(next(Some(1), &made, 0), Step::Make("it was gone"));
        for kept in ["reserved", "extended"] {
            assert_eq!(next(Some(1), &reading(Some(kept)), 0), Step::Trail(1));
        }
        for lost in ["unreserved", "lost"] {
            assert_eq!(next(Some(1), &reading(Some(lost)), 0), Step::DropLost);
        }
        assert_eq!(next(None, &reading(Some("reserved")), 0), Step::Drop);
        assert_eq!(next(None, &reading(None), 0), Step::Rest);
    }

    #[test]
    fn one_that_cannot_be_moved_is_made_anew_when_it_keeps_too_much() {
        let slow = reading(Some("extended"));
        assert_eq!(next(Some(7), &slow, UNMOVED_MAX - 1), Step::Trail(7));
        assert_eq!(next(Some(7), &slow, UNMOVED_MAX), Step::Replace);
        assert_eq!(next(Some(8), &slow, UNMOVED_MAX), Step::Trail(8), "it may keep that");
        let mut held = slow.clone();
        held.notes.held_by = Some(uuid::Uuid::nil());
        assert_eq!(next(Some(7), &held, UNMOVED_MAX), Step::Trail(7), "it does not move then");
        let tight = RewindReading { has_source: false, ..slow };
        assert_eq!(next(Some(7), &tight, UNMOVED_MAX), Step::Trail(7));
    }

    #[test]
    fn none_is_made_where_the_relays_own_slot_is_missing_or_about_to_go() {
        let tight = RewindReading { has_source: false, ..reading(None) };
        assert_eq!(next(Some(1), &tight, 0), Step::Rest);
    }

    #[test]
    fn a_slot_of_somebody_else_is_neither_dropped_nor_moved() {
        let others = RewindReading { is_others: true, ..reading(None) };
        assert_eq!(next(Some(1), &others, 0), Step::Refuse);
        assert_eq!(next(None, &others, 0), Step::Rest);
    }

    #[test]
    fn one_that_is_lost_again_and_again_is_made_less_and_less_often() {
        let lost = |losses, seconds| RewindReading {
            notes: RewindNotes { made: 1, ..RewindNotes::default() },
            losses,
            lost_for: Some(f64::from(seconds)),
            ..reading(None)
        };
        let made = Step::Make("PostgreSQL had no room for its log");
        assert_eq!(next(Some(1), &lost(1, 0), 0), made, "the first time at once");
        assert_eq!(next(Some(1), &lost(2, 29), 0), Step::Rest);
        assert_eq!(next(Some(1), &lost(2, 30), 0), made);
        assert_eq!(next(Some(1), &lost(3, 59), 0), Step::Rest);
        assert_eq!(next(Some(1), &lost(40, 599), 0), Step::Rest);
        assert_eq!(next(Some(1), &lost(40, 600), 0), made);
    }
}
