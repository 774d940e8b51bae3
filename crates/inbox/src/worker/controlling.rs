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
        let find = control::find_control(&context.config.quoted_schema());
        Self { context, find, revision: Box::new(revision), is_told: AtomicBool::new(false) }
    }

    /// What is wanted before the session, and the way of what is wanted in it.
    pub(super) async fn begin(&self) -> Result<(Control, Wanted), Error> {
        let (control, _) = self.look().await?;
        Ok((control.clone(), watch::channel(control)))
    }

    /// What is wanted now, and which events are to be looked at again.
    async fn look(&self) -> Result<(Control, Vec<Uuid>), Error> {
        let Context { config, pool, .. } = &*self.context;
        let found = looked(pool, LOOKING, &self.find, &[&config.consumer]).await;
        if found.as_ref().is_err_and(is_forbidden) {
            // It would look as if nobody had paused it.
            if !self.is_told.swap(true, Ordering::Relaxed) {
                warn!(
                    "this role may not read inbox_controls or inbox_decisions: a pause has no \
                     effect. GRANT SELECT on them, see `tailpost doctor --only inbox`"
                );
            }
            return Ok(<_>::default());
        }
        let found = found?;
        let (wanted, at_once) =
            found.first().map(|it| (Control::of(it), it.get("at_once"))).unwrap_or_default();
        Ok((Control { revision: (self.revision)(), ..wanted }, at_once))
    }

    /// Tells what is wanted, until it is dropped.
    pub(super) async fn watch(&self, wanted: watch::Sender<Control>, feed: Feed) {
        loop {
            tokio::time::sleep(LOOK).await;
            // A database that is away is reported and waited for by others.
            if let Ok((now, at_once)) = self.look().await {
                wanted.send_if_modified(|it| std::mem::replace(it, now.clone()) != now);
                for event in at_once {
                    feed.hasten(event).await;
                }
            }
        }
    }
}
