//! Load, and the reckoning after it.

use std::time::{Duration, Instant};

use lab::{Ledger, Pauses, Tally, Workload, WorkloadOptions, Written};
use outbox::Table;

use crate::broker::Broker;
use crate::test_env::TestEnv;
use crate::wait::{DEADLINE, until};

/// How long the relay may take to catch up when the load and the faults are over.
const CATCH_UP: Duration = DEADLINE;

/// Writers at work on the environment's database, some of whose transactions roll back.
///
/// They go straight to the server, not through a proxy, and come back when it does.
pub struct Load(Workload);

impl Load {
    /// How many events are committed by now.
    pub fn committed(&self) -> u64 {
        self.0.committed()
    }

    /// Waits until `n` further events are committed.
    ///
    /// # Panics
    ///
    /// When they are not within [`DEADLINE`].
    pub async fn wait_committed(&self, n: u64) {
        let goal = self.committed() + n;
        let what = format!("{goal} events are committed");
        until(DEADLINE, &what, async || self.committed() >= goal).await;
    }

    /// Lets the writers finish; returns what they wrote.
    ///
    /// # Panics
    ///
    /// When a writer met an error that no reconnecting mends.
    pub async fn stop(self) -> Written {
        self.0.stop().await.expect("the writers do their work")
    }
}

impl<B: Broker> TestEnv<B> {
    /// Starts writers that commit about `rate` events a second.
    ///
    /// # Panics
    ///
    /// When the database is not there.
    pub async fn load(&self, seed: u64, rate: f64) -> Load {
        let options = WorkloadOptions { rate: Some(rate), seed, ..WorkloadOptions::default() };
        let url = self.postgres.url("postgres");
        Load(Workload::start(&url, options).await.expect("start the writers"))
    }

    /// Ends the load, waits until the relay has caught up, and checks that every committed event is
    /// in the stream once and in order, nothing else is, and every row is marked.
    ///
    /// # Panics
    ///
    /// When it is not so, naming the first offending events.
    pub async fn finish(&self, load: Load) -> Tally {
        let written = load.stop().await;
        self.assert_exact(&written).await
    }

    /// As [`TestEnv::finish`], for what was `written` by then and all other rows there are.
    ///
    /// # Panics
    ///
    /// As [`TestEnv::finish`].
    pub async fn assert_exact(&self, written: &Written) -> Tally {
        let ended = self.caught_up().await;
        let tally = self.tally(written).await;
        tally.assert_exact();
        assert!(ended && tally.is_marked(), "the relay did not catch up in {CATCH_UP:?}: {tally}");
        tally
    }

    /// Compares table and stream as they are now.
    ///
    /// # Panics
    ///
    /// When a server does not answer.
    pub async fn tally(&self, written: &Written) -> Tally {
        let client = self.client().await;
        let jetstream = self.nats.jetstream().await;
        let streams = self.streams();
        let ledger = Ledger::collect(&client, &Table::default(), &jetstream, &streams[0]).await;
        let mut ledger = ledger.expect("collect rows and messages");
        for stream in &streams[1..] {
            ledger = ledger.and_stream(&jetstream, stream).await.expect("collect messages");
        }
        let tally = ledger.report(written);
        eprintln!("{tally}");
        tally
    }

    /// Whether every row is marked and the slot confirmed in time. What is missing is for the ledger
    /// to say.
    async fn caught_up(&self) -> bool {
        let end = self.wal_end().await;
        let (started, mut pauses) = (Instant::now(), Pauses::default());
        while self.unmarked().await > 0 || self.confirmed().await < end {
            if started.elapsed() > CATCH_UP {
                return false;
            }
            pauses.pass().await;
        }
        true
    }
}
