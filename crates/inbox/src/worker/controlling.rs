//! Looks what operators want of the consumer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tracing::warn;

use crate::Error;
use crate::controls::Control;
use crate::postgres::attended::looked;
use crate::postgres::sql::control;
use crate::postgres::sqlstate::is_forbidden;
use crate::worker::work::Context;

/// How often.
const LOOK: Duration = Duration::from_secs(1);

const LOOKING: &str = "look what is wanted of the consumer";

pub(super) struct Controlling {
    context: Arc<Context>,
    find: String,
    /// It was said that a pause cannot be seen.
    is_told: AtomicBool,
}

impl Controlling {
    pub(super) fn new(context: Arc<Context>) -> Self {
        let find = control::find_control(&context.config.quoted_schema());
        Self { context, find, is_told: AtomicBool::new(false) }
    }

    /// What is wanted now.
    pub(super) async fn look(&self) -> Result<Control, Error> {
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
            return Ok(Control::default());
        }
        Ok(found?.first().map(Control::of).unwrap_or_default())
    }

    /// Tells what is wanted, until it is dropped.
    pub(super) async fn watch(&self, wanted: watch::Sender<Control>) {
        loop {
            tokio::time::sleep(LOOK).await;
            // A database that is away is reported and waited for by others.
            if let Ok(now) = self.look().await {
                wanted.send_if_modified(|it| std::mem::replace(it, now.clone()) != now);
            }
        }
    }
}
