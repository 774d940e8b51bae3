//! Every statement that operators run on the outbox and its companions, and a relay does not.

mod ask_replay;
mod convert;
pub(crate) mod create_index;
mod decide;
mod explain_replays;
mod find;
mod forget_replays;
mod give;
mod list_partitions;
mod look_up;
mod partitions;
pub(crate) mod records;
mod retain;
mod retire_slot;
mod rewind;
mod setup_lock;
pub(crate) mod stay;
mod swap;
mod verify_rows;

use std::ops::{Deref, DerefMut};

use relay::{Config, Error, access};

pub(crate) use self::convert::Kind;
pub(crate) use self::explain_replays::KnownEvent;
pub use self::explain_replays::{ReplayOutcome, ReplayStory};
pub use self::list_partitions::{PartitionEntry, inbox_partitions, outbox_partitions};
pub(crate) use self::partitions::Detached;
pub(crate) use self::retain::{AT_ONCE, Beside, Gate, PAGES_AT_ONCE, Removable};
pub use self::rewind::RewindNotes;
pub(crate) use self::rewind::{ADVANCING, RewindReading, RewindSlot};
pub(crate) use self::verify_rows::{ComparedRow, LeftOut, ReadRange, TableCut};

/// A connection of the relay's kind, and what operators run over it.
pub(crate) struct Store(access::Store);

impl Deref for Store {
    type Target = access::Store;

    fn deref(&self) -> &access::Store {
        &self.0
    }
}

impl DerefMut for Store {
    fn deref_mut(&mut self) -> &mut access::Store {
        &mut self.0
    }
}

impl Store {
    /// For statements that their callers bound.
    pub(crate) async fn connect(config: &Config, name: &str) -> Result<Self, Error> {
        access::Store::connect(config, name).await.map(Self)
    }

    /// For statements that do not wait for others.
    pub(crate) async fn brief(config: &Config, name: &str) -> Result<Self, Error> {
        access::Store::brief(config, name).await.map(Self)
    }

    /// For statements that may wait for others. The log says so.
    pub(crate) async fn patient(config: &Config, name: &str) -> Result<Self, Error> {
        access::Store::patient(config, name).await.map(Self)
    }
}
