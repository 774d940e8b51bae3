//! Looks what operators want of the consumer: once for all of its partitions that the worker has.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::{Mutex, broadcast, watch};
use tracing::warn;
use uuid::Uuid;

use crate::Error;
use crate::controls::Control;
use crate::postgres::attended::asked;
use crate::postgres::sql::control;
use crate::postgres::sqlstate::is_forbidden;
use crate::worker::work::Context;

/// How often.
const LOOK: Duration = Duration::from_secs(1);

/// Of so many looks a session that is held up misses nothing.
const LOOKS_KEPT: usize = 64;

const LOOKING: &str = "look what is wanted of the consumer";

/// What a session is told.
pub(crate) struct Wanted {
    /// What operators want.
    pub(crate) control: watch::Receiver<Control>,
    /// What the engine knows of that.
    pub(crate) known: Control,
    /// Events that are to be looked at again at once, if they wait for another attempt.
    pub(crate) decided: broadcast::Receiver<Arc<[Uuid]>>,
    /// The handler may work again.
    pub(crate) mended: watch::Receiver<u64>,
}

pub(super) struct Controlling {
    context: Arc<Context>,
    looked: Mutex<Looked>,
    wanted: watch::Sender<Control>,
    /// Events about which somebody decided.
    decided: broadcast::Sender<Arc<[Uuid]>>,
}

/// The last look.
#[derive(Default)]
struct Looked {
    at: Option<Instant>,
    /// Up to when, by the clock of the database, it is known what was decided.
    decided_to: Option<Timestamp>,
    /// It was said that a pause cannot be seen.
    is_told: bool,
}

impl Controlling {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let decided = broadcast::Sender::new(LOOKS_KEPT);
        Self { context, looked: Mutex::default(), wanted: watch::Sender::default(), decided }
    }

    /// What is wanted before a session, and in it.
    pub(super) async fn begin(&self) -> Result<Wanted, Error> {
        self.look(Instant::now()).await?;
        let (control, decided) = (self.wanted.subscribe(), self.decided.subscribe());
        let (known, mended) = (control.borrow().clone(), self.context.mended.clone());
        Ok(Wanted { control, known, decided, mended })
    }

    /// Tells what is wanted, until it is dropped.
    pub(super) async fn watch(&self) {
        loop {
            let since = Instant::now();
            tokio::time::sleep(LOOK).await;
            // A database that is away is reported and waited for by others.
            let _ = self.look(since).await;
        }
    }

    /// Looks, unless somebody has after `since`.
    async fn look(&self, since: Instant) -> Result<(), Error> {
        let mut looked = self.looked.lock().await;
        if looked.at.is_some_and(|it| it >= since) {
            return Ok(());
        }
        let now = Instant::now();
        let Context { config, pool, .. } = &*self.context;
        let sql = control::find_control(&config.quoted_schema());
        let wanted = match asked(pool, LOOKING, &sql, &[&config.consumer]).await {
            Err(error) if is_forbidden(&error) => {
                // It would look as if nobody had paused it.
                if !mem::replace(&mut looked.is_told, true) {
                    warn!(
                        "this role may not read inbox_controls: a pause has no effect. GRANT SELECT \
                         on it, see `tailpost doctor --only inbox`"
                    );
                }
                Control::default()
            }
            found => found?.first().map(Control::of).unwrap_or_default(),
        };
        self.wanted.send_if_modified(|it| mem::replace(it, wanted.clone()) != wanted);
        looked.at = Some(now);
        // A session that begins looks at all its events.
        let known = looked.decided_to.filter(|_| self.decided.receiver_count() > 0);
        let sql = control::find_decided(&config.quoted_schema());
        // If nobody can say what was decided, the next look does.
        if let Ok(found) = asked(pool, LOOKING, &sql, &[&config.consumer, &known]).await {
            let (decided, to): (Vec<Uuid>, _) = (found[0].get(0), found[0].get(1));
            looked.decided_to = Some(to);
            if !decided.is_empty() {
                let _ = self.decided.send(decided.into());
            }
        }
        Ok(())
    }
}
