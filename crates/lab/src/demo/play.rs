//! Producer, relay, consumer, and inbox, all at once, until everything has arrived.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use relay::{Reports, Role, Status};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval_at, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::consumer::consume;
use super::journal::{Journal, Latencies, Received};
use super::servers::Servers;
use super::{Options, Running, shipments};
use crate::workload::{Workload, WorkloadOptions, Written};

/// Between two lines that say how things stand.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Between two looks at what has not arrived.
const TICK: Duration = Duration::from_millis(50);

/// Give up on what has not arrived when nothing has moved for this long.
const STANDSTILL_MAX: Duration = Duration::from_secs(15);

/// The share of transactions that the producer rolls back.
const ROLLED_BACK: f64 = 0.1;

/// What happened.
pub(super) struct Played {
    pub(super) written: Written,
    pub(super) received: Vec<Received>,
    pub(super) latencies: Latencies,
    /// From the first transaction until everything had arrived, had its effect, and was marked.
    pub(super) elapsed: Duration,
}

/// The tasks beside the producer; they end with this.
struct Cast {
    relay: JoinHandle<Result<(), relay::Error>>,
    status: watch::Receiver<Status>,
    consumer: JoinHandle<Result<()>>,
    journal: Arc<Journal>,
    inbox: JoinHandle<Result<inbox::Summary, inbox::Error>>,
    inbox_status: watch::Receiver<inbox::Status>,
    /// For relay and inbox.
    stop: CancellationToken,
}

pub(super) async fn play(
    options: &Options,
    servers: &Servers,
    stop: &CancellationToken,
) -> Result<Played> {
    let mut cast = Cast::gather(servers).await?;
    cast.show(options, servers).await?;
    let workload = WorkloadOptions {
        writers: usize::try_from(options.rate / 250)?.clamp(4, 32),
        rate: Some(f64::from(options.rate)),
        rolled_back: ROLLED_BACK,
        before_commit: Some({
            let journal = Arc::clone(&cast.journal);
            Arc::new(move |ids| journal.committing(ids))
        }),
        ..WorkloadOptions::default()
    };
    let started = Instant::now();
    let workload = Workload::start(&servers.database_url(), workload).await?;
    let mut lines = interval_at(started + LINE_EVERY, LINE_EVERY);
    loop {
        tokio::select! {
            _ = lines.tick() => {}
            () = sleep_until(started + options.duration) => break,
            () = stop.cancelled() => break,
        }
        cast.check().await?;
        options.say(&cast.line(started.elapsed(), &workload));
    }
    let written = workload.stop().await?;
    options.say("the producer has ended; waiting until everything has arrived and is marked");
    cast.drain(servers, written.committed.len() as u64).await?;
    let elapsed = started.elapsed();
    let (received, latencies) = cast.end().await?;
    Ok(Played { written, received, latencies, elapsed })
}

impl Cast {
    async fn gather(servers: &Servers) -> Result<Self> {
        let config = servers.relay_config()?;
        operate::setup(&config, operate::Storage::default()).await?;
        let journal = Arc::new(Journal::new());
        let stream = config.stream.name.clone();
        let consumer =
            tokio::spawn(consume(servers.jetstream().await?, stream.clone(), Arc::clone(&journal)));
        let inbox = shipments::inbox(servers, stream).await?;
        let inbox_status = inbox.status();
        let stop = CancellationToken::new();
        let inbox = tokio::spawn(inbox.run(stop.clone()));
        let (sender, status) = watch::channel(Status::default());
        let relay = tokio::spawn(relay::run(config, false, stop.clone(), Reports::to(sender)));
        let mut cast = Self { relay, status, consumer, journal, inbox, inbox_status, stop };
        // Only then, so that the figures show them at work and not their start.
        let active = cast.status.wait_for(|it| it.role == Role::Active);
        let began = timeout(STANDSTILL_MAX, active).await.map(drop);
        cast.check().await?;
        began.with_context(|| {
            let error = cast.status.borrow().last_error.clone();
            format!("the relay did not begin: {}", error.as_deref().unwrap_or("no reason known"))
        })?;
        let active = cast.inbox_status.wait_for(|it| it.state == inbox::State::Active);
        let began = timeout(STANDSTILL_MAX, active).await.map(drop);
        cast.check().await?;
        began.with_context(|| {
            let paused = cast.inbox_status.borrow().paused.clone();
            format!("the inbox did not begin: {}", paused.as_deref().unwrap_or("no reason known"))
        })?;
        Ok(cast)
    }

    /// Serves the console. The demo goes on without one: its port may be taken.
    async fn show(&self, options: &Options, servers: &Servers) -> Result<()> {
        if options.quiet {
            return Ok(());
        }
        let running = Running {
            database_url: servers.database_url(),
            nats_url: servers.nats_url(),
            stream: servers.relay_config()?.stream.name,
            relay: self.status.clone(),
            consumer: shipments::CONSUMER,
            inbox: self.inbox_status.clone(),
        };
        match (options.console)(running, self.stop.clone()).await {
            Ok(address) => options.say(&format!("the console is at {address}")),
            Err(error) => options.say(&format!("there is no console: {error:#}")),
        }
        Ok(())
    }

    /// Fails if relay, consumer, or inbox ended.
    async fn check(&mut self) -> Result<()> {
        if self.relay.is_finished() {
            (&mut self.relay).await.context("join the relay")??;
            bail!("the relay ended early");
        }
        if self.consumer.is_finished() {
            (&mut self.consumer).await.context("join the consumer")??;
        }
        if self.inbox.is_finished() {
            (&mut self.inbox).await.context("join the inbox")??;
            bail!("the inbox ended early");
        }
        Ok(())
    }

    /// How things stand.
    fn line(&self, elapsed: Duration, workload: &Workload) -> String {
        let (committed, rolled_back) = (workload.committed(), workload.rolled_back());
        let (received, effects) = (self.journal.received_count(), self.effects());
        let status = self.status.borrow();
        let (in_flight, confirmed) = (status.in_flight_events, status.confirmed_flush_lsn);
        format!(
            "{:>4} s: {committed} committed, {rolled_back} rolled back, {received} at the \
             consumer, {effects} effects, {in_flight} in flight, confirmed {confirmed}",
            elapsed.as_secs()
        )
    }

    fn effects(&self) -> u64 {
        self.inbox_status.borrow().counts.processed
    }

    /// Waits until the consumer has all committed events, all have had their effect, and no row is
    /// without its mark, or until nothing moves any more: what is missing then is found by the
    /// comparison.
    async fn drain(&mut self, servers: &Servers, committed: u64) -> Result<()> {
        let database = servers.database().await?;
        let unmarked = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL";
        let (mut last, mut moved) = ((0, 0, 0), Instant::now());
        let mut ticks = tokio::time::interval(TICK);
        while moved.elapsed() < STANDSTILL_MAX {
            ticks.tick().await;
            self.check().await?;
            let unmarked: i64 = database.query_one(unmarked, &[]).await?.get(0);
            let now = (self.journal.received_count(), self.effects(), unmarked);
            if now.0 >= committed && now.1 >= committed && unmarked == 0 {
                break;
            }
            if now != last {
                (last, moved) = (now, Instant::now());
            }
        }
        Ok(())
    }

    async fn end(mut self) -> Result<(Vec<Received>, Latencies)> {
        self.stop.cancel();
        (&mut self.relay).await.context("join the relay")??;
        (&mut self.inbox).await.context("join the inbox")??;
        Ok(self.journal.take())
    }
}

impl Drop for Cast {
    fn drop(&mut self) {
        self.consumer.abort();
        self.relay.abort();
        self.inbox.abort();
    }
}
