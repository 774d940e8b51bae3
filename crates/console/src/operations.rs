//! Work on many dead letters that was begun here. A relay does it, and does not list it.

/// So many are remembered.
const OPERATIONS_MAX: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) source: String,
    pub(crate) number: u64,
    /// What it does, in words.
    pub(crate) what: String,
}

#[derive(Debug, Default)]
pub(crate) struct Operations {
    /// The newest first.
    all: Vec<Operation>,
}

impl Operations {
    pub(crate) fn add(&mut self, operation: Operation) {
        self.all.insert(0, operation);
        self.all.truncate(OPERATIONS_MAX);
    }

    pub(crate) fn all(&self) -> Vec<Operation> {
        self.all.clone()
    }

    /// The relay does not know it any more.
    pub(crate) fn forget(&mut self, gone: &Operation) {
        self.all.retain(|it| it != gone);
    }
}
