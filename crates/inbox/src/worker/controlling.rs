//! Looks what operators want of the consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;
use uuid::Uuid;

use crate::Error;
use crate::controls::Control;
use crate::feed::Feed;
use crate::postgres::attended::looked;
use crate::postgres::sql::control;
use crate::postgres::sqlstate::is_forbidden;
use crate::worker::work::Context;

/// How often.
const LOOK: Duration = Duration::from_secs(1);

const LOOKING: &str = "look what is wanted of the consumer";

type Wanted = (watch::Sender<Control>, watch::Receiver<Control>);

pub(super) struct Controlling {
    context: Arc<Context>,
    find: String,
    find_hastened: String,
    /// The handler's.
    revision: Box<dyn Fn() -> u64 + Send + Sync>,
    /// It was said that a pause cannot be seen.
    is_told: AtomicBool,
}

impl Controlling {
    pub(super) fn new(
        context: Arc<Context>,
        revision: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        let schema = context.config.quoted_schema();
        let find = control::find_control(&schema);
        let find_hastened = control::find_hastened(&schema);
        Self {
            context,
            find,
            find_hastened,
            revision: Box::new(revision),
            is_told: AtomicBool::new(false),
        }
    }

    /// What is wanted before the session, and the way of what is wanted in it.
    pub(super) async fn begin(&self) -> Result<(Control, Wanted), Error> {
        let control = self.look().await?;
        Ok((control.clone(), watch::channel(control)))
    }

    async fn look(&self) -> Result<Control, Error> {
        let Context { config, pool, .. } = &*self.context;
        let found = looked(pool, LOOKING, &self.find, &[&config.consumer]).await;
        if found.as_ref().is_err_and(is_forbidden) {
            // It would look as if nobody had paused it.
            if !self.is_told.swap(true, Ordering::Relaxed) {
                warn!(
                    "this role may not read inbox_controls: a pause has no effect. GRANT SELECT on \
                     it, see `tailpost doctor --only inbox`"
                );
            }
            return Ok(<_>::default());
        }
        let found = found?;
        let wanted = found.first().map(Control::of).unwrap_or_default();
        Ok(Control { revision: (self.revision)(), ..wanted })
    }

    /// Which events are to be looked at again. If nobody can say, they wait for their time.
    async fn hastened(&self) -> Vec<Uuid> {
        let Context { config, pool, .. } = &*self.context;
        let found = looked(pool, LOOKING, &self.find_hastened, &[&config.consumer]).await;
        found.unwrap_or_default().iter().map(|row| row.get(0)).collect()
    }

    /// Tells what is wanted, until it is dropped.
    pub(super) async fn watch(&self, wanted: watch::Sender<Control>, feed: Feed) {
        loop {
            tokio::time::sleep(LOOK).await;
            // A database that is away is reported and waited for by others.
            if let Ok(now) = self.look().await {
                wanted.send_if_modified(|it| std::mem::replace(it, now.clone()) != now);
            }
            for event in self.hastened().await {
                feed.hasten(event).await;
            }
        }
    }
}
