//! Looks whether messages left the stream before the consumer was given them.

use async_nats::jetstream::consumer::Info;
use tokio_postgres::types::ToSql;
use tracing::warn;

use crate::Error;
use crate::message::Origin;
use crate::nats::durable_consumer;
use crate::postgres::attended::{asked, looked};
use crate::postgres::sql::{seen_stream, unread_words};
use crate::unhandled::Unhandled;
use crate::unread::Seen;
use crate::worker::acked_floor::Floor;
use crate::worker::work::Context;

const LOOKING: &str = "look what left the stream";

/// Tells of messages that may never be handled, as the row does until that is settled.
pub(super) async fn tell(Context { config, pool, .. }: &Context, why: &str) {
    warn!(consumer = config.durable(), "{why}");
    let sql = unread_words::note_unread(&config.quoted_schema());
    // A worker may not be allowed to.
    let _ = asked(pool, LOOKING, &sql, &[&config.consumer, &why]).await;
}

impl Floor<'_> {
    /// Looks, and tells what it found once. A session does so before anything is delivered, now and
    /// then, and when `is_over`: then what is not acknowledged counts as not delivered.
    pub(super) async fn look(&mut self, is_over: bool) -> Result<(), Error> {
        let Context { config, pool, term, .. } = self.context;
        // From other streams messages go when they are acknowledged.
        if !durable_consumer::keeps_messages(&self.stream) {
            return Ok(());
        }
        // Asked for before the consumer: what is stored in between comes behind it.
        let state = self.stream.get_info().await.map_err(Error::jetstream(LOOKING))?.state;
        let Some(found) = durable_consumer::find(&self.stream, config).await? else {
            return Ok(());
        };
        let before = state.first_sequence.saturating_sub(1);
        // An answer may be lost, and this be dropped: then the row says what was written.
        let (seen, written_to) = match self.seen.take() {
            Some(known) => known,
            None => {
                // What was gone before the first look of all was nobody's to miss.
                let first = Seen { to: before, given: found.delivered.consumer_sequence };
                let seen = self.written(&found).await?.unwrap_or(first);
                (seen, seen.to)
            }
        };
        let missed = seen.missed(state.first_sequence, &found.delivered);
        let floor = found.ack_floor;
        let is_idle = found.num_pending == 0 && found.num_ack_pending == 0;
        let told = if missed > 0 { before } else { 0 };
        let reached = if is_idle { state.last_sequence } else { floor.stream_sequence };
        // A stream that came back without its end has been told of.
        let to = written_to.max(told).max(reached).min(state.last_sequence);
        // Of a worker that dies, what it had in hand counts as handled: much of it may be.
        let given = if is_over { found.delivered } else { floor }.consumer_sequence;
        let (consumer, schema) = (&config.consumer, config.quoted_schema());
        let parameters: [&(dyn ToSql + Sync); 7] = [
            consumer,
            &term.token,
            &to.cast_signed(),
            &given.cast_signed(),
            &is_idle,
            &missed.cast_signed(),
            &term.server,
        ];
        let rows = looked(pool, LOOKING, &seen_stream::write_seen(&schema), &parameters).await?;
        let (at, given) = (found.delivered.stream_sequence, found.delivered.consumer_sequence);
        self.seen = Some((Seen { to: to.max(at), given }, to));
        if let Some(row) = rows.first().filter(|it| it.get(1)) {
            let why: String = row.get(0);
            tell(self.context, &why).await;
        }
        Ok(())
    }

    /// What the sessions before have seen of this stream.
    async fn written(&self, found: &Info) -> Result<Option<Seen>, Error> {
        let Context { config, pool, .. } = self.context;
        let _turn = pool.turns.looks.acquire().await;
        let (store, origin) = (pool.try_get().await?, Origin::of(config, &self.stream));
        let (on, nats) = (store.client(), self.nats);
        let known = Unhandled { on, nats, config, origin: &origin, found };
        let (seen, _) = known.seen().await?;
        pool.put(store);
        Ok(seen)
    }
}
