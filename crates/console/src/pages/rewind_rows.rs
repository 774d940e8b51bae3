//! Rewinds in a list.

use crate::state::figures::{count, counted};
use crate::state::operator_answers::Rewind;
use crate::state::plan::escape;

/// A rewind in a list.
pub(crate) struct RewindRow {
    pub(crate) source: String,
    pub(crate) it: Rewind,
}

impl RewindRow {
    pub(crate) fn path(&self) -> String {
        format!("/consumers/{}/{}", escape(&self.source), escape(&self.it.consumer))
    }

    pub(crate) fn what(&self) -> String {
        let Rewind { from_sequence, again, aggregate_type, aggregate_id, event_type, .. } =
            &self.it;
        let aggregate = aggregate_type.as_ref().zip(aggregate_id.as_ref());
        let of = aggregate.map(|(kind, id)| format!("{kind}:{id}")).into_iter();
        let of: Vec<_> = of.chain(event_type.clone()).collect();
        let again = if *again { ", effects repeat" } else { "" };
        let of = if of.is_empty() { String::new() } else { format!(" of {}", of.join(" ")) };
        format!("to sequence {}{again}{of}", count(*from_sequence))
    }

    pub(crate) fn state(&self) -> String {
        match (&self.it.outcome, self.it.begun_at) {
            (Some(outcome), _) if outcome == "rewound" && self.it.again => {
                format!("rewound, {} handled again", counted(self.it.removed, "event", "events"))
            }
            (Some(outcome), _) => outcome.clone(),
            (None, Some(_)) => "under way".into(),
            (None, None) => "waits for a worker".into(),
        }
    }

    pub(crate) fn can_be_cancelled(&self) -> bool {
        self.it.outcome.is_none() && self.it.begun_at.is_none()
    }
}
