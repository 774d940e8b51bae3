use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::Error;
use crate::connection::Connect;
use crate::engine::Backoff;
use crate::error::describe;
use crate::postgres::store::{Scope, Store};

/// How long opening a connection and preparing the statements may take.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// Different reasons that are logged while the database is away.
const SAID_MAX: usize = 16;

/// Connections, opened when needed and kept. How many there are at most is up to those who ask.
pub(crate) struct Pool {
    connect: Connect,
    scope: Scope,
    idle: Mutex<Vec<Store>>,
    /// Why the database cannot be reached, while it cannot.
    trouble: watch::Sender<Option<String>>,
    /// What was logged of it since then.
    said: Mutex<BTreeSet<String>>,
}

impl Pool {
    pub(crate) fn new(connect: Connect, scope: Scope) -> Self {
        Self {
            connect,
            scope,
            idle: Mutex::default(),
            trouble: watch::Sender::default(),
            said: Mutex::default(),
        }
    }

    pub(crate) fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.subscribe()
    }

    /// A connection that worked when it was used last. Waits for the database for as long as it
    /// takes.
    pub(crate) async fn get(&self) -> Store {
        let mut failures = 0_u32;
        loop {
            match self.try_get().await {
                Ok(store) => return store,
                Err(error) => self.note_trouble(&error),
            }
            failures = failures.saturating_add(1);
            tokio::time::sleep(Backoff::DATABASE.after(failures)).await;
        }
    }

    /// As [`Pool::get`], and says so if the database cannot be reached.
    pub(crate) async fn try_get(&self) -> Result<Store, Error> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(store) = idle() {
            if !store.is_closed() {
                return Ok(store);
            }
        }
        let opening = async {
            let connection = (self.connect)().await.map_err(Error::Connect)?;
            let store = Store::new(connection, self.scope.clone()).await;
            store.map_err(Error::sql("prepare the statements of the inbox"))
        };
        let opened = timeout(CONNECT_DEADLINE, opening).await;
        let doing = "open a connection";
        let store = opened.map_err(|_| Error::Silent { doing, within: CONNECT_DEADLINE })??;
        self.note_answer();
        Ok(store)
    }

    /// Closes the connections that nobody uses: the network may have forgotten them.
    pub(crate) fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The database has answered somebody.
    pub(crate) fn note_answer(&self) {
        if self.trouble.send_if_modified(|trouble| trouble.take().is_some()) {
            self.said.lock().unwrap_or_else(PoisonError::into_inner).clear();
            info!(consumer = self.scope.consumer, "the database is back");
        }
    }

    /// Takes a connection back. Only if no transaction is open on it.
    pub(crate) fn put(&self, store: Store) {
        if !store.is_closed() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(store);
        }
    }

    pub(crate) fn note_trouble(&self, error: &Error) {
        let text = describe(error);
        self.trouble
            .send_if_modified(|trouble| trouble.replace(text.clone()).as_ref() != Some(&text));
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        // What ends connections is no reason why no other is made, and may be said too.
        let is_new = match error {
            Error::Connect(_) => said.len() < SAID_MAX && !said.contains(&text),
            _ => said.is_empty(),
        };
        if is_new && said.insert(text.clone()) {
            warn!(consumer = self.scope.consumer, error = text, "the database is away, waiting");
        }
    }
}
