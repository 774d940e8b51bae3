//! A slot that PostgreSQL makes. It waits for every older transaction of the cluster; what is visible is
//! published from the table meanwhile.
//!
//! Nobody else publishes: the slot is there from the moment its making begins, and PostgreSQL says
//! that the process which makes it reads it. From when it is made until this session is over, its lock
//! keeps others away.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::sync::watch;

use super::jobs::long_job;
use crate::config::Config;
use crate::error::Error;
use crate::postgres::{NewSlot, Rows, Slot, Store};
use crate::source::{Done, Job};

/// How long a slot may take to be made before rows are published without it.
const MADE_SOON: Duration = Duration::from_secs(1);

/// Brings a slot, with the connection over which it is locked.
pub(super) type Making = BoxFuture<'static, Result<(Slot, Store), Error>>;

/// What became of a slot that was to be made.
pub(super) enum Made {
    Now(Box<(Slot, Store)>),
    Later(Making),
}

pub(crate) struct AwaitedSlot {
    pub(super) rows: Rows,
    making: Option<Making>,
    /// What it waits for.
    waits: watch::Receiver<Option<String>>,
    /// The connection over which it is locked, once it is made.
    made: Option<Box<Store>>,
}

/// Has a slot made that is locked over `store`.
pub(super) async fn make(config: &Arc<Config>, new: NewSlot, store: Store) -> Result<Made, Error> {
    let config = Arc::clone(config);
    let making = async move {
        let slot = Slot::make(new, &config, &store).await?;
        Ok((slot, store))
    };
    let mut making = making.boxed();
    match tokio::time::timeout(MADE_SOON, &mut making).await {
        Ok(made) => made.map(|made| Made::Now(Box::new(made))),
        Err(_) => Ok(Made::Later(making)),
    }
}

impl AwaitedSlot {
    pub(super) fn new(rows: Rows, making: Making, waits: watch::Receiver<Option<String>>) -> Self {
        Self { rows, making: Some(making), waits, made: None }
    }

    pub(super) fn job(&mut self) -> Option<Job> {
        let making = self.making.take()?;
        Some(long_job(async move { making.await.map(|(_, store)| Done::SlotMade(store.into())) }))
    }

    pub(super) fn made(&mut self, store: Box<Store>) {
        self.made = Some(store);
    }

    pub(super) fn is_made(&self) -> bool {
        self.made.is_some()
    }

    /// For whom PostgreSQL makes it wait.
    pub(super) fn waits_for(&self) -> Option<String> {
        self.waits.borrow().clone()
    }
}
