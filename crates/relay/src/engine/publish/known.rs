//! What earlier sessions have written down of single events.

use std::collections::{HashMap, HashSet};

use uuid::Uuid;

use crate::engine::window::{Outgoing, Tried};

/// What earlier sessions have written down of single events.
#[derive(Debug, Clone)]
pub(super) struct Known {
    /// Events that are resolved although the stream does not have them.
    dead: HashSet<Uuid>,
    /// Events that earlier sessions have tried, and that the log brings again.
    tried: HashMap<Uuid, Tried>,
}

impl Known {
    pub(super) fn new(dead: HashSet<Uuid>, tried: HashMap<Uuid, Tried>) -> Self {
        Self { dead, tried }
    }

    pub(super) fn is_dead(&self, id: &Uuid) -> bool {
        self.dead.contains(id)
    }

    /// Whatever the log brings of the event is resolved.
    pub(super) fn requeued(&mut self, id: Uuid) {
        self.dead.insert(id);
    }

    /// What earlier sessions have tried of an event that comes now.
    pub(super) fn take_tried(&mut self, outgoing: &Outgoing) -> Tried {
        match self.tried.is_empty() {
            true => outgoing.tried,
            false => self.tried.remove(&outgoing.event.id).unwrap_or(outgoing.tried),
        }
    }
}
