//! What bounds the steps that open a session.
//!
//! A statement may wait for others for as long as those take: a new slot for the oldest
//! transaction, anything for a lock. A server that fell silent looks the same from the connection
//! that waits. So another connection looks whether the server still works on the statement, and at
//! what it waits for.

use std::sync::Arc;
use std::time::Duration;

use servers::PostgresTarget;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::config::Config;
use crate::error::Error;

/// How long a step may take before the relay looks what it waits for, and how long between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// How long a look may take, connecting not included.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// How often the server may say in a row that it does nothing for us. Once proves nothing: the
/// answer may be on its way.
const IDLE_LOOKS_MAX: u32 = 2;

/// How often in a row the server may have no connection left to ask over: some ten minutes. It lives,
/// and whoever gives up a connection then may get none again.
const UNKNOWN_LOOKS_MAX: u32 = 200;

/// What the process does on the server, and who holds it up. A blocker without a process is a
/// prepared transaction. A process to which only a part of a request came is active as well, and
/// waits for the rest.
const LOOK: &str = "
    SELECT coalesce(a.state = 'active', false)
               AND coalesce(a.wait_event, '') NOT IN ('ClientRead', 'ClientWrite'),
           a.wait_event, b.blocker, b.application_name, b.age
    FROM pg_stat_activity a
    LEFT JOIN LATERAL (
        SELECT blocker, o.application_name,
               extract(epoch FROM clock_timestamp() - o.xact_start)::float8 AS age
        FROM unnest(pg_blocking_pids(a.pid)) AS blocker
        LEFT JOIN pg_stat_activity o ON o.pid = blocker
        ORDER BY o.xact_start LIMIT 1
    ) b ON true
    WHERE a.pid = $1";

/// Whom PostgreSQL makes a slot wait for, the one with the oldest transaction: `pid`, 0 if it is
/// prepared, and `who` in words. `NULL` for a slot that is made. `s` is of `pg_replication_slots`.
pub const SLOT_WAITS_FOR: &str = "(
    SELECT jsonb_build_object('pid', blocker, 'who', CASE blocker
        WHEN 0 THEN 'a prepared transaction, see pg_prepared_xacts'
        ELSE concat('process ', blocker, ' (' || nullif(o.application_name, '') || ')',
            ', whose transaction is '
                || extract(epoch FROM clock_timestamp() - o.xact_start)::bigint || ' s old') END)
    FROM unnest(pg_blocking_pids(s.active_pid)) AS blocker
    LEFT JOIN pg_stat_activity o ON o.pid = blocker
    WHERE s.confirmed_flush_lsn IS NULL ORDER BY o.xact_start LIMIT 1)";

/// Watches over the steps of opening a session, one at a time.
#[derive(Clone)]
pub struct Opening {
    server: Arc<PostgresTarget>,
    slot: Arc<str>,
    waits: watch::Sender<Option<String>>,
}

impl Opening {
    /// The log says what is waited for.
    pub(crate) fn new(config: &Config) -> Self {
        let (server, slot) = (Arc::new(config.postgres.clone()), config.slot.as_str().into());
        Self { server, slot, waits: watch::Sender::new(None) }
    }

    /// Is told what is waited for, as long as it is.
    pub(crate) fn waits(&self) -> watch::Receiver<Option<String>> {
        self.waits.subscribe()
    }

    /// Does `work`, statements of the server's process `pid`, for as long as the server works on
    /// them.
    ///
    /// # Errors
    ///
    /// [`Error::Silent`] if the server cannot be asked for long, or says that it does nothing for us;
    /// whatever `work` ends with.
    pub(crate) async fn step<T>(
        &self,
        pid: i32,
        doing: &'static str,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let mut work = Box::pin(work);
        let (mut idle_looks, mut unknown_looks) = (0, 0);
        loop {
            if let Ok(done) = timeout(LOOK_EVERY, &mut work).await {
                self.say(None);
                return done;
            }
            let looked = tokio::select! {
                biased;
                done = &mut work => {
                    self.say(None);
                    return done;
                }
                looked = self.look(pid) => looked,
            };
            match looked {
                Look::Works(evidence) => {
                    (idle_looks, unknown_looks) = (0, 0);
                    self.say(Some(format!("to {doing}: {evidence}")));
                }
                Look::Unknown => {
                    unknown_looks += 1;
                    self.say(Some(format!(
                        "to {doing}: PostgreSQL has no connection left to ask why"
                    )));
                }
                Look::Idle => idle_looks += 1,
                Look::Silent => return Err(self.silent(doing)),
            }
            if idle_looks == IDLE_LOOKS_MAX || unknown_looks == UNKNOWN_LOOKS_MAX {
                return Err(self.silent(doing));
            }
        }
    }

    fn silent(&self, doing: &'static str) -> Error {
        self.say(None);
        Error::Silent { doing }
    }

    fn say(&self, what: Option<String>) {
        self.waits.send_if_modified(|known| {
            if known.is_none()
                && let Some(what) = &what
            {
                info!(slot = &*self.slot, "waiting {what}");
            }
            std::mem::replace(known, what.clone()) != what
        });
    }

    async fn look(&self, pid: i32) -> Look {
        let target = &self.server;
        let looked = async {
            let client = target.session("tailpost watch").await?;
            let row = client.query_opt(LOOK, &[&pid]).await.map_err(Error::sql("look"))?;
            let Some(row) = row.filter(|row| row.get(0)) else { return Ok(Look::Idle) };
            let blocker = row.get::<_, Option<i32>>(2);
            Ok(Look::Works(evidence(row.get(1), blocker, row.get(3), row.get(4))))
        };
        let late = Err(Error::Silent { doing: "look" });
        match timeout(target.connect_timeout() + LOOK_MAX, looked).await.unwrap_or(late) {
            Ok(look) => look,
            // The server answers: it has no connection left, for instance.
            Err(Error::Connect(servers::Error::Postgres { source, .. }))
                if source.code().is_some() =>
            {
                Look::Unknown
            }
            Err(Error::Sql { source, .. }) if source.code().is_some() => Look::Unknown,
            Err(error) => {
                warn!(error = crate::describe(&error), "the server cannot be asked");
                Look::Silent
            }
        }
    }
}

enum Look {
    /// The server works on the statement, or waits with it for others.
    Works(String),
    /// The server does nothing for us, or does not know us.
    Idle,
    /// It answers, but not that.
    Unknown,
    Silent,
}

fn evidence(
    wait_event: Option<String>,
    blocker: Option<i32>,
    name: Option<String>,
    age: Option<f64>,
) -> String {
    let name = name.filter(|it| !it.is_empty()).map(|it| format!(" ({it})")).unwrap_or_default();
    match (blocker, age) {
        (Some(0), _) => "for a prepared transaction, see pg_prepared_xacts".into(),
        (Some(pid), Some(age)) => {
            format!("for process {pid}{name}, whose transaction is {age:.0} s old")
        }
        (Some(pid), None) => format!("for process {pid}{name}"),
        (None, _) => match wait_event {
            Some(event) => format!("PostgreSQL is at it, and waits for {event}"),
            None => "PostgreSQL is at it".into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_evidence_names_who_is_waited_for() {
        let name = || Some("psql".to_owned());
        assert_eq!(
            evidence(None, Some(17), name(), Some(92.4)),
            "for process 17 (psql), whose transaction is 92 s old"
        );
        assert_eq!(evidence(None, Some(17), None, None), "for process 17");
        assert!(evidence(None, Some(0), None, None).contains("prepared"));
        assert!(evidence(Some("IO".into()), None, None, None).ends_with("waits for IO"));
    }
}
