use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use outbox::spans::SpanSink;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::connection::{BoxError, Connect, ConnectNats, Connection};
use crate::engine::{Pauses, Rate};
use crate::nats::durable_consumer;
use crate::worker::leased::{self, UnderLeases};
use crate::worker::transactional::InTransactions;
use crate::worker::{self, Settings};
use crate::{Error, LeasedHandler, Status, Summary, TransactionalHandler};

/// One consumer of a stream: takes events, gives each to the handler, and keeps the record.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example<H: inbox::TransactionalHandler>(
/// #     handler: H, nats: async_nats::Client, shutdown: tokio_util::sync::CancellationToken,
/// # ) -> Result<(), inbox::Error> {
/// let inbox = inbox::Inbox::builder("billing")
///     .postgres(|| async {
///         let (client, connection) =
///             tokio_postgres::connect("postgres://localhost/shop", tokio_postgres::NoTls).await?;
///         tokio::spawn(connection);
///         Ok(inbox::Connection::new(client))
///     })
///     .nats(nats)
///     .stream("OUTBOX")
///     .filter_subjects(["outbox.order.*"])
///     .max_attempts(5)
///     .transactional(handler);
/// let summary = inbox.run(shutdown).await?;
/// # Ok(())
/// # }
/// ```
pub struct Inbox<M> {
    mode: M,
    settings: Builder,
    status: watch::Sender<Status>,
}

/// A [`TransactionalHandler`] at work.
pub struct Transactional<H>(Arc<H>);

/// A [`LeasedHandler`] at work.
pub struct Leased<H>(Arc<H>);

/// The settings of an [`Inbox`]. All but `postgres`, `nats` and `stream` have defaults.
pub struct Builder {
    config: Config,
    connect: Option<Connect>,
    nats: Option<async_nats::Client>,
    reconnect_nats: Option<ConnectNats>,
    status: Option<watch::Sender<Status>>,
    mended: Option<watch::Receiver<u64>>,
}

impl Inbox<()> {
    /// Begins the set-up of the consumer with this name. It names the durable consumer of the
    /// stream and is part of the key of every record: never change it.
    #[must_use]
    pub fn builder(consumer: impl Into<String>) -> Builder {
        Builder {
            config: Config::new(consumer.into()),
            connect: None,
            nats: None,
            reconnect_nats: None,
            status: None,
            mended: None,
        }
    }
}

impl Builder {
    /// How to open a connection to the database that the inbox is in. Called for each connection
    /// that is needed, and again when one is lost.
    #[must_use]
    pub fn postgres<F, C>(mut self, connect: F) -> Self
    where
        F: Fn() -> C + Send + Sync + 'static,
        C: Future<Output = Result<Connection, BoxError>> + Send + 'static,
    {
        self.connect = Some(Arc::new(move || Box::pin(connect())));
        self
    }

    /// The connection to the broker.
    #[must_use]
    pub fn nats(mut self, client: async_nats::Client) -> Self {
        self.nats = Some(client);
        self
    }

    /// How to connect to the broker anew when the client has ended.
    ///
    /// The client reconnects by itself, but its task does not survive some header bytes that a
    /// broker takes from anybody (a lone carriage return). Without this, [`Inbox::run`] then returns
    /// [`Error::Refused`]. Give each inbox a client of its own: others that share it end
    /// with it.
    #[must_use]
    pub fn reconnect_nats<F, C>(mut self, connect: F) -> Self
    where
        F: Fn() -> C + Send + Sync + 'static,
        C: Future<Output = Result<async_nats::Client, BoxError>> + Send + 'static,
    {
        self.reconnect_nats = Some(Arc::new(move || Box::pin(connect())));
        self
    }

    /// Where the inbox tells what it is doing: for somebody who watches that before there is a
    /// connection to the broker. Without this, [`Inbox::status`] alone has it.
    #[must_use]
    pub fn status(mut self, status: watch::Sender<Status>) -> Self {
        self.status = Some(status);
        self
    }

    /// What changes when the handler may work again, such as
    /// [`HttpHandler::changes`](crate::http::HttpHandler::changes): if it could not, an event is tried
    /// at once.
    #[must_use]
    pub fn mended(mut self, mended: watch::Receiver<u64>) -> Self {
        self.mended = Some(mended);
        self
    }

    /// The subjects to take; all of the stream's if there are none. When they change, the durable
    /// consumer does: of a new subject it gets what is stored behind its position from then on.
    #[must_use]
    pub fn filter_subjects<S: Into<String>>(
        mut self,
        subjects: impl IntoIterator<Item = S>,
    ) -> Self {
        self.config.filter_subjects = subjects.into_iter().map(Into::into).collect();
        self
    }

    /// Makes the durable consumers that are missing; says whether any was. One that is configured
    /// otherwise is changed. Needs no database.
    ///
    /// # Errors
    ///
    /// If there is no such stream, the broker does not answer, or the consumer is there and cannot
    /// be used.
    pub async fn create_consumer(self) -> Result<bool, Error> {
        self.config.check()?;
        let nats = self.nats.ok_or_else(|| no_nats(&self.config))?;
        let stream = durable_consumer::stream(&nats, &self.config).await?;
        let mut is_new = false;
        for part in self.config.parts() {
            // A worker has it go back before it adds what was left out.
            let found = durable_consumer::find(&stream, &part).await?;
            if found.is_none_or(|it| durable_consumer::left_out(&it.config, &part).is_none()) {
                is_new |= durable_consumer::open(&stream, &part).await?.1;
            }
        }
        Ok(is_new)
    }

    /// What was set, and the broker, for what operators do beside the consumer.
    ///
    /// # Errors
    ///
    /// If a setting is missing or makes no sense.
    pub fn into_parts(self) -> Result<(Config, async_nats::Client), Error> {
        self.config.check()?;
        let nats = self.nats.ok_or_else(|| no_nats(&self.config))?;
        Ok((self.config, nats))
    }

    /// What was set, to be compared with what there is.
    #[must_use]
    pub fn into_config(self) -> Config {
        self.config
    }

    /// Handles events in the database's transactions.
    pub fn transactional<H: TransactionalHandler>(self, handler: H) -> Inbox<Transactional<H>> {
        Inbox::new(self, Transactional(Arc::new(handler)))
    }

    /// Handles events under a lease.
    pub fn leased<H: LeasedHandler>(self, handler: H) -> Inbox<Leased<H>> {
        Inbox::new(self, Leased(Arc::new(handler)))
    }
}

/// A setting of the configuration for each line. What is behind `=>` makes of it what is kept: one
/// with `Some` has no value unless it is set.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident: $kind:ty $(=> $kept:path)?,)*) => {
        impl Builder {
            $($(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $name: $kind) -> Self {
                self.config.$name = $($kept)?($name);
                self
            })*
        }
    };
}

settings! {
    /// The stream to take events from.
    stream: impl Into<String> => Into::into,
    /// The schema that holds the tables of the inbox: `public`.
    schema: impl Into<String> => Into::into,
    /// Into how many partitions the events of the stream are divided by their subjects. Every filter
    /// names a partition by `{partition}`. Workers of the consumer then share the partitions.
    partitions: NonZeroU32 => Some,
    /// How many handlers run at a time: 8. Events of one aggregate never do.
    ///
    /// A transactional inbox has a connection for each, and up to seven more; a leased one up to ten in
    /// all.
    lanes: usize,
    /// The most events that share a transaction of a transactional inbox: 64. An event that fails
    /// undoes its transaction, so while many do, fewer share one.
    batch: usize,
    /// How long an event belongs to a worker that gives no sign of life: 30 s.
    lease: Duration,
    /// After how many attempts an event becomes a dead letter: 5.
    max_attempts: u32,
    /// After how long without a sign of life the broker delivers an event again: 30 s.
    ack_wait: Duration,
    /// How long to wait between attempts, at most: [`Pauses`], or a [`Backoff`](crate::Backoff) for
    /// pauses that double. From 1 s to 5 min, unless this is set.
    pauses: impl Into<Pauses> => Into::into,
    /// How long after it failed first an event that fails becomes a dead letter, whatever the
    /// number of attempts, and also while what the handler needs is away: never, if this is not set.
    give_up_after: Duration => Some,
    /// How many events are begun in a time: as many as can be, if this is not set.
    rate: Rate => Some,
    /// For how long the records of events are kept: for ever, if this is not set. An older event is
    /// never handled: it becomes a dead letter. Has to be more than the stream's `max_age` and a
    /// lease: a stream without one never forgets, and the inbox must not either. The record of a
    /// dead letter stays for as long as the dead letter.
    retention: Duration => Some,
    /// For how long `inbox_decisions` says what was decided about dead letters: for ever, if this is
    /// not set.
    decisions_retention: Duration => Some,
    /// How often the active worker looks after the tables: every hour.
    upkeep_interval: Duration,
    /// Who takes a span of each attempt at an event whose trace is recorded: nobody, if this is not
    /// set.
    spans: SpanSink => Some,
}

impl Builder {
    fn checked(self) -> Result<Settings, Error> {
        self.config.check()?;
        let postgres = || self.config.refused("no connection to PostgreSQL is given");
        Ok(Settings {
            connect: self.connect.ok_or_else(postgres)?,
            nats: self.nats.ok_or_else(|| no_nats(&self.config))?,
            reconnect_nats: self.reconnect_nats,
            config: Arc::new(self.config),
            mended: self.mended.unwrap_or_else(|| watch::channel(0).1),
        })
    }
}

fn no_nats(config: &Config) -> Error {
    config.refused("no connection to NATS is given")
}

impl<M> Inbox<M> {
    fn new(mut settings: Builder, mode: M) -> Self {
        let status = settings.status.take().unwrap_or_default();
        Self { mode, settings, status }
    }

    /// What it is doing, as it changes. May be asked for before [`Inbox::run`].
    #[must_use]
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }
}

impl<H: TransactionalHandler> Inbox<Transactional<H>> {
    /// Handles events until `shutdown`, then lets the handlers finish and gives the rest back.
    ///
    /// # Errors
    ///
    /// Only what waiting does not mend; a database or broker that is away is waited for.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Summary, Error> {
        let Self { mode: Transactional(handler), settings, status } = self;
        let work = |_: &_| InTransactions { handler: Arc::clone(&handler) };
        Box::pin(worker::run(settings.checked()?, status, shutdown, work)).await
    }
}

impl<H: LeasedHandler> Inbox<Leased<H>> {
    /// Handles events until `shutdown`, then lets the handlers finish and gives the rest back.
    ///
    /// # Errors
    ///
    /// Only what waiting does not mend; a database or broker that is away is waited for.
    pub async fn run(self, shutdown: CancellationToken) -> Result<Summary, Error> {
        let Self { mode: Leased(handler), settings, status } = self;
        let (recorder, ended) = mpsc::channel(leased::GROUP_MAX);
        let mut ended = Some(ended);
        let mut writer = JoinSet::new();
        let work = |context: &Arc<_>| {
            if let Some(ended) = ended.take() {
                writer.spawn(leased::record(Arc::clone(context), ended));
            }
            UnderLeases { handler: Arc::clone(&handler), recorder: recorder.clone() }
        };
        Box::pin(worker::run(settings.checked()?, status, shutdown, work)).await
    }
}
