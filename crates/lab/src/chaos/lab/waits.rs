//! Whether producers wait for a lock, and whose.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, NoTls};

/// What the writers call themselves in `pg_stat_activity`.
pub(super) const PRODUCER: &str = "producer";

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// A look that takes longer tells nothing about the time since the last one.
const LOOK_MAX: Duration = Duration::from_secs(1);

/// A statement of a relay or an inbox may take so long on a busy machine, with a change of a table
/// and a producer behind it.
const BLOCKED_MAX: Duration = Duration::from_secs(5);

/// Who is at the head of a queue in which a producer waits, if that is a relay or an inbox.
const LOOK: &str = "
    WITH RECURSIVE behind AS (
        SELECT pid AS producer, unnest(pg_blocking_pids(pid)) AS pid
        FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'
        UNION
        SELECT producer, unnest(pg_blocking_pids(pid)) FROM behind
    )
    SELECT format('%s (%s, in a transaction since %s, %s): %s', a.application_name, a.state,
        a.xact_start, a.wait_event, left(a.query, 200))
    FROM behind JOIN pg_stat_activity a USING (pid)
    WHERE a.application_name LIKE 'tailpost%' AND cardinality(pg_blocking_pids(a.pid)) = 0
    LIMIT 1";

/// Looks at the producers until this is dropped.
#[derive(Default)]
pub(super) struct Waits {
    blocked: Arc<Mutex<Vec<String>>>,
    task: Option<JoinHandle<()>>,
}

impl Waits {
    /// Begins to look at the producers in the database at `url`.
    pub(super) fn watch(&mut self, url: String) {
        let blocked = Arc::clone(&self.blocked);
        self.task.get_or_insert_with(|| tokio::spawn(watch(url, blocked)));
    }

    /// For whom producers have waited longer than for a statement.
    pub(super) fn blocked(&self) -> Vec<String> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn watch(url: String, blocked: Arc<Mutex<Vec<String>>>) {
    let mut client = None;
    let mut since: Option<Instant> = None;
    let mut told = false;
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        let began = Instant::now();
        let found = timeout(LOOK_MAX, look(&url, &mut client)).await;
        let Ok(Ok(Some(culprit))) = found else {
            // The server may be away, or stopped: then nobody waits for a lock.
            if !matches!(found, Ok(Ok(_))) {
                client = None;
            }
            (since, told) = (None, false);
            continue;
        };
        let since = *since.get_or_insert(began);
        if since.elapsed() > BLOCKED_MAX && !told {
            blocked.lock().unwrap_or_else(PoisonError::into_inner).push(culprit);
            told = true;
        }
    }
}

async fn look(url: &str, client: &mut Option<Client>) -> Result<Option<String>> {
    let open = match client {
        Some(open) => open,
        None => {
            let (fresh, connection) =
                tokio_postgres::connect(url, NoTls).await.context("look at the producers")?;
            tokio::spawn(connection);
            client.insert(fresh)
        }
    };
    let row = open.query_opt(LOOK, &[&PRODUCER]).await.context("look at the producers")?;
    Ok(row.map(|it| it.get(0)))
}
