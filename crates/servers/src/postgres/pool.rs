//! Connections for those who come and go: so many at most, opened when needed, closed when idle.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::Client;

use super::connection_task::ConnectionTask;
use crate::error::Error;

/// How long the server may take to say that an idle connection still works.
const PING_MAX: Duration = Duration::from_secs(1);

/// How long beyond the bound of a statement a connection may take to become usable again.
const RESET_MARGIN: Duration = Duration::from_secs(1);

/// After this long without use a connection is closed.
const IDLE_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// Fails within a transaction that somebody has left open. Outside of one a statement's time is its
/// transaction's. Forgets everything but the types that the client has prepared statements for.
const RESET: &str = "SELECT 1 / (now() = statement_timestamp())::int;
    CLOSE ALL; RESET ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD TEMP";

/// What bounds a pool of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolLimits {
    /// What its connections are called in `pg_stat_activity`.
    pub application_name: &'static str,
    /// Connections at a time.
    pub connections: usize,
    /// How long somebody waits for one.
    pub wait: Duration,
    /// How long the server works on a statement.
    pub statement: Duration,
}

/// Connections to one database, shared.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    limits: PoolLimits,
    /// Statements that set what a session begins with.
    settings: String,
    permits: Arc<Semaphore>,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    connections: Vec<Connected>,
    /// Whether somebody closes those that are idle for long.
    is_watched: bool,
}

struct Connected {
    client: Client,
    /// Ends the connection when dropped.
    _task: ConnectionTask,
    idle_since: Instant,
}

/// A connection, of a pool's or of its own. Dropped, it goes back or is closed.
pub struct Session {
    connected: Option<Connected>,
    /// Where it goes back to, and the place that it has there.
    home: Option<(Pool, OwnedSemaphorePermit)>,
}

impl Pool {
    pub(crate) fn new(limits: PoolLimits, settings: String) -> Self {
        let permits = Arc::new(Semaphore::new(limits.connections));
        Self(Arc::new(Shared { limits, settings, permits, idle: Mutex::default() }))
    }

    pub(crate) fn application_name(&self) -> &'static str {
        self.0.limits.application_name
    }

    /// A connection that answers. `connect` opens one if there is none.
    pub(crate) async fn take(
        &self,
        connect: impl Future<Output = Result<(Client, ConnectionTask), Error>> + Send + 'static,
    ) -> Result<Session, Error> {
        let limits = self.0.limits;
        let permit = timeout(limits.wait, Arc::clone(&self.0.permits).acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            return Err(Error::Busy { connections: limits.connections, waited: limits.wait });
        };
        while let Some(connected) = self.pop() {
            let answered = timeout(PING_MAX, connected.client.batch_execute("")).await;
            if matches!(answered, Ok(Ok(()))) {
                return Ok(Session::of(connected, Some((self.clone(), permit))));
            }
        }
        // Whoever asks may leave. A connection that is half open then would be one too many.
        let opening = tokio::spawn(self.clone().open(permit, connect));
        opening.await.unwrap_or_else(|error| match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(Error::Busy { connections: limits.connections, waited: limits.wait }),
        })
    }

    async fn open(
        self,
        permit: OwnedSemaphorePermit,
        connect: impl Future<Output = Result<(Client, ConnectionTask), Error>> + Send,
    ) -> Result<Session, Error> {
        let (client, task) = Box::pin(connect).await?;
        let (bound, connections) = (self.bound(), self.0.limits.connections);
        let session = Session::of(Connected::new(client, task), Some((self, permit)));
        match timeout(PING_MAX, session.batch_execute(&bound)).await {
            Ok(Ok(())) => Ok(session),
            // Whoever uses it meets the same and says more.
            _ if session.is_closed() => Ok(session),
            _ => Err(Error::Busy { connections, waited: PING_MAX }),
        }
    }

    fn bound(&self) -> String {
        format!("SET statement_timeout = {}", self.0.limits.statement.as_millis())
    }

    fn pop(&self) -> Option<Connected> {
        self.idle().connections.pop()
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Idle> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a connection as it was when it was new, and keeps it. It has its place until then: the
    /// server may still work on what nobody waits for any more.
    async fn take_back(self, connected: Connected, permit: OwnedSemaphorePermit) {
        let reset = format!("{RESET}; {}; {}", self.0.settings, self.bound());
        let within = self.0.limits.statement + RESET_MARGIN;
        let reset = timeout(within, connected.client.batch_execute(&reset)).await;
        if !matches!(reset, Ok(Ok(()))) {
            return;
        }
        let is_watched = {
            let mut idle = self.idle();
            idle.connections.push(Connected { idle_since: Instant::now(), ..connected });
            std::mem::replace(&mut idle.is_watched, true)
        };
        drop(permit);
        if !is_watched {
            self.close_idle().await;
        }
    }

    /// Until there are none.
    async fn close_idle(self) {
        loop {
            sleep(LOOK_EVERY).await;
            let mut idle = self.idle();
            idle.connections.retain(|it| it.idle_since.elapsed() < IDLE_MAX);
            if idle.connections.is_empty() {
                idle.is_watched = false;
                return;
            }
        }
    }
}

impl Connected {
    fn new(client: Client, task: ConnectionTask) -> Self {
        Self { client, _task: task, idle_since: Instant::now() }
    }
}

impl Session {
    /// One that is closed in the end.
    pub fn own((client, task): (Client, ConnectionTask)) -> Self {
        Self::of(Connected::new(client, task), None)
    }

    /// Whether others use it afterwards, and whoever has it may leave before it has answered.
    pub fn is_pooled(&self) -> bool {
        self.home.is_some()
    }

    fn of(connected: Connected, home: Option<(Pool, OwnedSemaphorePermit)>) -> Self {
        Self { connected: Some(connected), home }
    }
}

const THERE: &str = "the connection is there until it is dropped";

impl Deref for Session {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.connected.as_ref().expect(THERE).client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.connected.as_mut().expect(THERE).client
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (Some(connected), Some((pool, permit))) = (self.connected.take(), self.home.take())
        else {
            return;
        };
        if connected.client.is_closed() {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(pool.take_back(connected, permit));
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("pooled", &self.home.is_some()).finish_non_exhaustive()
    }
}

impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Pool {}
