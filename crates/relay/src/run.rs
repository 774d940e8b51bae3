//! Sessions, one after the other, for as long as it takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use rand::RngExt;
use servers::NatsLink;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::Config;
use crate::describe;
use crate::engine::backoff;
use crate::error::Error;
use crate::nats::{has_ended, leave_server, unless_unheard};
use crate::postgres::Opening;
use crate::reporter::{Reporter, Reports};
use crate::session::Session;
use crate::source::{Ended, OpenWith, Source};
use crate::standby;
use crate::status::Role;

/// A session that lasted longer was a success.
const SESSION_GOOD_AFTER: Duration = Duration::from_secs(10);

/// A pause that is reached when the stream has been silent for several attempts.
const FAILOVER_AFTER: Duration = Duration::from_secs(1);

/// How often a relay says that it runs while a session is being opened, which others may delay.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Relays the events of one shard, see [`Config::each_shard`], from the outbox to its stream until
/// `stop` is cancelled, or, with `once`, until everything is published that was committed when the
/// first session began.
///
/// Broken connections, restarts of either server and lost slots are worked through, with pauses of
/// 100 ms to 10 s; while another relay reads the slot this one stands by. A credential that is read
/// anew for each connection may be refused for as long as it takes: it is tried every second.
///
/// # Errors
///
/// Only what an operator has to mend ([`Error::is_transient`] is false); with `once`, whatever
/// prevents the first session.
///
/// # Cancel safety
///
/// Dropping the future is like a crash: nothing is lost or published twice, what was not confirmed
/// comes again. To stop cleanly, cancel `stop`.
pub async fn run(
    config: Config,
    once: bool,
    stop: CancellationToken,
    reports: Reports,
) -> Result<(), Error> {
    if config.shards.count() > 1 && config.shard().is_none() {
        return Err(Error::Unusable {
            problem: "a relay publishes one shard".into(),
            fix: "run each of Config::each_shard by itself".into(),
        });
    }
    let config = Arc::new(config);
    let mut reporter = Reporter::new(reports, &config);
    let mut client = None;
    let mut failures = 0;
    // What helps, when it was said last: once is enough.
    let mut said: Option<String> = None;
    // Why the session before left fenced mode, for the next one.
    let mut unfenced: Option<String> = None;
    loop {
        let started = Instant::now();
        let (nats, report, left) = (&mut client, &mut reporter, unfenced.take());
        let error = match session(&config, nats, once, left, &stop, report).await {
            Ok(Ended::Stopped) => {
                reporter.role(Role::Stopped);
                return Ok(());
            }
            Ok(Ended::SlotIsThere) => {
                begins_anew(&mut reporter);
                continue;
            }
            Err(Error::SlotBusy { .. }) if !once => {
                reporter.role(Role::Standby);
                standby::wait(&config, &stop, &mut reporter).await;
                begins_anew(&mut reporter);
                continue;
            }
            Err(error) if is_followed(&config, &error, once, reporter.has_begun()) => error,
            Err(error) => {
                reporter.failed(told(&error));
                reporter.role(Role::Stopped);
                return Err(error);
            }
        };
        if started.elapsed() > SESSION_GOOD_AFTER {
            failures = 0;
        }
        failures += 1;
        let backoff =
            if error.is_renewable() { servers::Backoff::RENEWAL } else { backoff::SESSION };
        let pause = backoff.after(failures);
        // The one would never connect again, the other never hear an answer.
        let is_deaf = matches!(error, Error::Unheard { .. });
        client = client.filter(|(client, _)| !is_deaf && !has_ended(client));
        if let (Error::JetStream { .. }, Some((client, _))) = (&error, &client)
            && pause > FAILOVER_AFTER
        {
            leave_server(client).await;
        }
        unfenced = left_fence(&config, &error);
        let wait = pause.mul_f64(rand::rng().random_range(0.5..1.0));
        let hint = error.hint();
        let news = hint.as_ref().filter(|it| said.as_ref() != Some(it));
        warn!(error = describe(&error), hint = news, "starting anew in {wait:.1?}");
        said = hint;
        reporter.failed(told(&error));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Another session begins.
fn begins_anew(reporter: &mut Reporter) {
    reporter.waiting(None);
    reporter.role(Role::Starting);
}

/// Whether another session follows one that ended so. `has_begun` says that one ever began.
fn is_followed(config: &Config, error: &Error, once: bool, has_begun: bool) -> bool {
    // The next session works in keyed mode.
    left_fence(config, error).is_some()
        // A credential was good once, and may be about to be renewed.
        || !once && (error.is_transient() || error.is_renewable() && has_begun)
}

/// Why the next session is to work in keyed mode, if it is. Without ids nothing but the fence keeps
/// events single: it is tried again.
fn left_fence(config: &Config, error: &Error) -> Option<String> {
    match error {
        Error::Unfenced { reason } if !config.needs_fence() => Some(reason.clone()),
        _ => None,
    }
}

/// For operators who have no log at hand.
fn told(error: &Error) -> String {
    let is_told = error.is_renewable() || matches!(error, Error::NoLetter { .. });
    match error.hint().filter(|_| is_told) {
        Some(hint) => format!("{} ({hint})", describe(error)),
        None => describe(error),
    }
}

/// Opens a source and runs a session over it.
async fn session(
    config: &Arc<Config>,
    client: &mut Option<(Client, watch::Receiver<NatsLink>)>,
    once: bool,
    unfenced: Option<String>,
    stop: &CancellationToken,
    reporter: &mut Reporter,
) -> Result<Ended, Error> {
    let opening = Opening::new(config);
    let mut waits = opening.waits();
    let (connects, mut connected) = watch::channel(reporter.link());
    let opened = async {
        let (client, link) = match client {
            Some(client) => client,
            None => {
                let (connected, link) = config.nats.connect_watched("tailpost").await?;
                connects.send_replace(link.clone());
                client.insert((connected, link))
            }
        };
        let link = &*link;
        let with = OpenWith { config, opening: &opening, client, link, once };
        unless_unheard(link, Source::open(with, unfenced)).await
    };
    let mut opened = Box::pin(opened);
    let mut alive = tokio::time::interval(ALIVE_EVERY);
    let mut opened = loop {
        tokio::select! {
            // First, so that no attempt is made any more.
            biased;
            () = stop.cancelled() => return Ok(Ended::Stopped),
            Ok(()) = connected.changed() => reporter.watch(connected.borrow_and_update().clone()),
            opened = &mut opened => break opened?,
            _ = alive.tick() => reporter.alive(),
            Ok(()) = waits.changed() => reporter.waiting(waits.borrow_and_update().clone()),
        }
    };
    reporter.begin(opened.source.timeline(), std::mem::take(&mut opened.news));
    Box::pin(Session::new(opened).run(stop, reporter)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{MarkBy, MarkConfig};

    #[test]
    fn once_goes_on_in_keyed_mode_and_after_nothing_else() {
        let row = crate::config::tests::config();
        let mark = MarkConfig { by: MarkBy::Lean, ..row.mark };
        let lean = Config { mark, ..row.clone() };
        let (unfenced, broken) =
            (Error::Unfenced { reason: "no batches".into() }, Error::Stalled("it fell silent"));
        assert!(is_followed(&row, &unfenced, true, true));
        assert_eq!(left_fence(&row, &unfenced).as_deref(), Some("no batches"));
        assert!(!is_followed(&lean, &unfenced, true, true), "without ids there is no keyed mode");
        assert_eq!(left_fence(&lean, &unfenced), None);
        assert!(is_followed(&row, &broken, false, true) && !is_followed(&row, &broken, true, true));
    }
}
