//! An inbox on the lab, the service that it calls, and what an operator does about both.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use inbox::Inbox;
use uuid::Uuid;

use super::{DATABASE, Lab, STREAM};
use crate::chaos::daemon::{self, Daemon};
use crate::chaos::outcome::Edges;
use crate::chaos::shipping::{Effects, Shipping};
use crate::chaos::wait::DEADLINE;

pub(in crate::chaos) const CONSUMER: &str = "shipping";

/// What a worker had when it died comes again after so long: within a scenario.
const ACK_WAIT: Duration = Duration::from_secs(2);

const ACKNOWLEDGED_POLL: Duration = Duration::from_millis(50);

/// Dead letters that a failure names.
const OFFENDERS_MAX: i64 = 5;

/// Events of the load; nothing is to be wrong with any of them.
const TO_BE_SHIPPED: &str = "
    SELECT count(*) FROM outbox_events
    WHERE aggregate_type = 'order' AND event_type = 'OrderChanged'";

const UNEXPECTED: &str = "
    WITH dead AS (
        SELECT format('dead letter of the outbox: %s: %s', id, reason) AS what
        FROM outbox_dead_letter WHERE aggregate_type = 'order' AND event_type = 'OrderChanged'
        UNION ALL
        SELECT format('dead letter of the inbox: %s: %s: %s', message_id, cause, reason)
        FROM inbox_dead_letter WHERE subject = 'outbox.order.OrderChanged'
    )
    SELECT what, count(*) OVER () FROM dead LIMIT $1";

const RESOLVED: &str = "
    SELECT stream_seq, message_id FROM inbox_messages
    WHERE consumer = $1 AND status IN ('PROCESSED', 'DEAD', 'REJECTED')
    UNION
    SELECT stream_seq, message_id FROM inbox_dead_letter WHERE consumer = $1";

impl Lab {
    /// Opens the service that inboxes will call. From now on every event is to have an effect.
    pub(in crate::chaos) async fn open_shipping(&mut self) -> Result<()> {
        self.set("TAILPOST_ADMIN__INBOX_LISTEN", "off");
        self.set("TAILPOST_INBOX__ACK_WAIT", &format!("{}s", ACK_WAIT.as_secs()));
        self.operate(&["inbox", "setup"]).await?;
        self.create_consumer().await?;
        // Not through a proxy: nobody cuts the service off.
        let url = self.postgres.url(DATABASE);
        self.shipping = Some(Shipping::open(&self.database().await?, url).await?);
        Ok(())
    }

    /// The service; there is one after [`Lab::open_shipping`].
    pub(in crate::chaos) fn shipping(&mut self) -> Result<&mut Shipping> {
        self.shipping.as_mut().context("no service was opened")
    }

    /// An inbox that calls the service.
    pub(in crate::chaos) fn start_inbox(&mut self) -> Result<Daemon> {
        let url = self.shipping()?.url();
        self.inboxes_started += 1;
        let name = format!("inbox-{}", self.inboxes_started);
        Daemon::inbox(name, CONSUMER, &url, &self.env, &self.logs)
    }

    /// Commits an order of this aggregate, with one event; returns the event's id.
    pub(in crate::chaos) async fn place_order(&mut self, aggregate_id: &str) -> Result<Uuid> {
        let sql = format!(
            "WITH o AS (INSERT INTO orders (id, aggregate) \
                 VALUES (gen_random_uuid(), '{aggregate_id}') RETURNING id) \
             SELECT outbox_emit('order', '{aggregate_id}', 'OrderChanged', \
                 jsonb_build_object('order', id, 'counter', 0)) FROM o"
        );
        let id = self.query(&sql).await?;
        self.wrote(1);
        Ok(id)
    }

    /// Runs a command of this program, as an operator would.
    pub(in crate::chaos) async fn operate(&self, args: &[&str]) -> Result<()> {
        daemon::run_to_end(args, &self.env).await
    }

    /// Makes the effect of an event by hand.
    pub(in crate::chaos) async fn mend_by_hand(&mut self, event: Uuid) -> Result<()> {
        let database = self.database().await?;
        self.shipping()?.by_hand(&database, event).await
    }

    /// Forgets what was delivered: the stream is delivered anew, from its beginning.
    pub(in crate::chaos) async fn redeliver(&self) -> Result<()> {
        let stream = self.nats.jetstream().await?.get_stream(STREAM).await?;
        stream.delete_consumer(CONSUMER).await.context("delete the consumer")?;
        self.create_consumer().await
    }

    async fn create_consumer(&self) -> Result<()> {
        let nats = self.nats.client().await?;
        let inbox = Inbox::builder(CONSUMER).stream(STREAM).ack_wait(ACK_WAIT).nats(nats);
        inbox.create_consumer().await.map(drop).context("create the consumer")
    }

    /// Waits until the inbox has acknowledged all that the stream holds now, for as long as it gets
    /// on.
    pub(in crate::chaos) async fn wait_acknowledged(&self) -> Result<()> {
        let mut stream = self.nats.jetstream().await?.get_stream(STREAM).await?;
        let last = stream.info().await?.state.last_sequence;
        let (mut furthest, mut since) = (0, Instant::now());
        loop {
            let floor = self.acknowledged().await.unwrap_or_default();
            if floor >= last {
                return Ok(());
            }
            if floor > furthest {
                (furthest, since) = (floor, Instant::now());
            }
            if since.elapsed() > DEADLINE {
                bail!(
                    "the inbox has acknowledged {furthest} of {last}, and nothing for {DEADLINE:?}"
                );
            }
            tokio::time::sleep(ACKNOWLEDGED_POLL).await;
        }
    }

    /// Up to where the inbox has acknowledged everything.
    async fn acknowledged(&self) -> Result<u64> {
        let stream = self.nats.jetstream().await?.get_stream(STREAM).await?;
        Ok(stream.consumer_info(CONSUMER).await?.ack_floor.stream_sequence)
    }

    /// How often this event has had its effect.
    pub(in crate::chaos) async fn effects_of(&self, event: Uuid) -> Result<i64> {
        self.query(&format!("SELECT count(*) FROM shipments WHERE event_id = '{event}'")).await
    }

    /// What the events have brought about, if something was to, once that is all; and how many
    /// events were to bring something about.
    pub(in crate::chaos) async fn effects(&self) -> Result<(Option<Effects>, usize)> {
        let Some(shipping) = &self.shipping else { return Ok((None, 0)) };
        self.say("waiting until every event has had its effect");
        let acknowledged = self.wait_acknowledged().await;
        let effects = shipping.count(&self.database().await?).await?;
        let expected = usize::try_from(self.query::<i64>(TO_BE_SHIPPED).await?)?;
        // What has no effect is for the ledger to count; here is the rest.
        if effects.is_exact(expected) {
            acknowledged?;
        }
        Ok((Some(effects), expected))
    }

    /// What must not have happened besides.
    pub(in crate::chaos) async fn edges(&self) -> Result<Edges> {
        let client = self.database().await?;
        let unexpected = client.query(UNEXPECTED, &[&OFFENDERS_MAX]).await?;
        let count = unexpected.first().map_or(0, |row| row.get::<_, i64>(1));
        let resolved = client.query(RESOLVED, &[&CONSUMER]).await?;
        let ids: HashSet<Uuid> = resolved.iter().map(|row| row.get(1)).collect();
        let seqs: HashSet<Option<i64>> = resolved.iter().map(|row| row.get(0)).collect();
        let mut unsettled = self.messages().await?;
        // A record keeps the sequence of a message that a stream has lost, and has again elsewhere; one
        // of a message that cannot be read has an id of its own.
        unsettled.retain(|(seq, id)| {
            let is_known = id.is_some_and(|id| ids.contains(&id));
            !is_known && !seqs.contains(&Some(seq.cast_signed()))
        });
        let blocked = self.waits.blocked();
        let mut offenders: Vec<String> = unexpected.iter().map(|row| row.get(0)).collect();
        if let Some((first, _)) = unsettled.first() {
            offenders.push(format!("unsettled: {first} and {} more", unsettled.len() - 1));
        }
        offenders.extend(blocked.iter().map(|it| format!("producers waited for {it}")));
        Ok(Edges {
            dead_letters_unexpected: usize::try_from(count)?,
            unsettled: unsettled.len(),
            producers_blocked: blocked.len(),
            offenders,
        })
    }
}
