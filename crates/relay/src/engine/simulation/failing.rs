//! Statements that fail, and what is told of them.

use rand::RngExt;

use super::World;
use crate::engine::{
    BooksEffect, BooksInput, BrokerEffect, BrokerInput, Effect, Input, MarkingEffect, MarkingInput,
    ReplayEffect, ReplayInput, ReplayUnread, RowsEffect, RowsInput, ScanEffect, ScanInput,
};

impl World {
    /// A statement fails, before or after it was executed; or somebody has what it needs locked.
    pub(super) fn fail(&mut self, effect: Effect) -> Option<Input> {
        if self.faults.claims {
            return self.fail_of_claims(effect);
        }
        let is_executed = self.rng.random_bool(0.5);
        Some(match effect {
            Effect::Broker(BrokerEffect::ReadTail { .. }) => {
                BrokerInput::TailFailed("silent".into()).into()
            }
            Effect::Broker(BrokerEffect::LookUp { epoch, index, seq, .. }) => {
                BrokerInput::LookedUp { epoch, index, seq, is_there: false }.into()
            }
            Effect::Rows(RowsEffect::Park { batch, .. }) => {
                let done = if batch.is_empty() { 0 } else { self.rng.random_range(0..batch.len()) };
                let mut left = batch;
                let done = left.drain(..done).collect();
                RowsInput::NotParked { parked: self.park_all(done), left }.into()
            }
            Effect::Scan(ScanEffect::Mark { batches, published }) => {
                ScanInput::Marked { batches, published, marked: None }.into()
            }
            Effect::Rows(RowsEffect::MakeUpForMarks) => RowsInput::Owed(None).into(),
            effect @ Effect::Books(BooksEffect::Checkpoint { .. }) => {
                let _ = is_executed.then(|| self.execute(effect));
                BooksInput::Checkpointed(None).into()
            }
            Effect::Scan(ScanEffect::NoteGapFilled { .. }) => ScanInput::GapNoted(false).into(),
            Effect::Scan(ScanEffect::Open(_) | ScanEffect::Read(_)) => {
                self.relay.cursor = None;
                ScanInput::Postponed.into()
            }
            effect @ (Effect::Books(_)
            | Effect::Rows(_)
            | Effect::Marking(_)
            | Effect::Scan(_)
            | Effect::Replay(_)
            | Effect::Claims(_)
            | Effect::Broker(_)
            | Effect::Confirm(_)
            | Effect::Measure(_)
            | Effect::Tell(_)
            | Effect::End(_)) => {
                let failure = failure(&effect);
                let outcome =
                    if is_executed || failure.is_none() { self.execute(effect) } else { None };
                return failure.or(outcome);
            }
        })
    }
}

/// What is told of a statement of which nobody knows whether it was executed.
fn failure(effect: &Effect) -> Option<Input> {
    match effect {
        Effect::Marking(effect) => Some(marking_failure(effect).into()),
        Effect::Replay(effect) => replay_failure(effect).map(Input::from),
        Effect::Books(_)
        | Effect::Rows(_)
        | Effect::Scan(_)
        | Effect::Claims(_)
        | Effect::Broker(_)
        | Effect::Confirm(_)
        | Effect::Measure(_)
        | Effect::Tell(_)
        | Effect::End(_) => None,
    }
}

fn marking_failure(effect: &MarkingEffect) -> MarkingInput {
    match effect {
        MarkingEffect::Mark { statement, .. } => {
            MarkingInput::Marked { statement: *statement, marked: None }
        }
        MarkingEffect::OpenSecondWriter => MarkingInput::SecondWriter(false),
        MarkingEffect::TakeWatermark => MarkingInput::Watermark(None),
        MarkingEffect::StoreWatermark(_)
        | MarkingEffect::SweepOn { .. }
        | MarkingEffect::ReadStreamBack { .. } => MarkingInput::Unmarked(None),
        MarkingEffect::Seek { .. } | MarkingEffect::MarkSwept { .. } => MarkingInput::Swept(None),
        MarkingEffect::CloseSecondWriter | MarkingEffect::NoteSweep => {
            panic!("not a job: {effect:?}")
        }
    }
}

fn replay_failure(effect: &ReplayEffect) -> Option<ReplayInput> {
    Some(match effect {
        ReplayEffect::LookFor => ReplayInput::Found(None),
        ReplayEffect::Begin(_) => ReplayInput::Begun(None),
        ReplayEffect::Read { id, after } => {
            let page = Err(ReplayUnread::Failed("no answer".to_owned()));
            ReplayInput::Read { of: (*id, *after), page }
        }
        ReplayEffect::Note(note) => {
            ReplayInput::Noted { problems: note.problems.len(), wish: None }
        }
        ReplayEffect::End => return None,
    })
}
