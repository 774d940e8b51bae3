use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use crate::{Column, Error, Event, Table};

/// Writes an event to `public.outbox_events`, in the caller's transaction.
///
/// It is published once the transaction commits, and never if it does not. See
/// [`Table::enqueue_all`] for another table. One round trip, without a prepared statement, so it
/// works behind a transaction pooler.
///
/// # Errors
///
/// [`Error::Enqueue`]; the transaction is aborted, as after any failed statement.
///
/// # Cancel safety
///
/// When cancelled, whether the row was written is unknown: roll the transaction back.
pub async fn enqueue(tx: &Transaction<'_>, event: &Event) -> Result<(), Error> {
    enqueue_all(tx, std::slice::from_ref(event)).await
}

/// Writes several events, in their order, with one statement. Otherwise as [`enqueue`].
///
/// # Errors
///
/// [`Error::Enqueue`]; the transaction is aborted, as after any failed statement.
pub async fn enqueue_all(tx: &Transaction<'_>, events: &[Event]) -> Result<(), Error> {
    Table::default().enqueue_all(tx, events).await
}

impl Table {
    /// Writes events to this table. Otherwise as the function [`enqueue_all`].
    ///
    /// # Errors
    ///
    /// [`Error::Enqueue`]; the transaction is aborted, as after any failed statement.
    pub async fn enqueue_all(&self, tx: &Transaction<'_>, events: &[Event]) -> Result<(), Error> {
        if events.is_empty() {
            return Ok(());
        }
        self.insert(tx, events)
            .await
            .map_err(|source| Error::Enqueue { table: self.to_string(), source })
    }

    async fn insert(
        &self,
        tx: &Transaction<'_>,
        events: &[Event],
    ) -> Result<(), tokio_postgres::Error> {
        // `ORDER BY` makes `seq` follow the order of the slice. JSON goes as bytes, so that what is
        // not UTF-8 is refused by the server instead of mended here.
        let columns = Column::ALL.map(|column| self.column(column)).join(", ");
        let sql = format!(
            "INSERT INTO {} ({columns}) \
             SELECT id, aggregate_type, aggregate_id, event_type, event_version, \
             convert_from(payload, 'UTF8')::jsonb, \
             occurred_at, correlation_id, causation_id, \
             convert_from(headers, 'UTF8')::jsonb \
             FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::int[], $6::bytea[], \
             $7::timestamptz[], $8::uuid[], $9::uuid[], $10::bytea[]) WITH ORDINALITY \
             AS event (id, aggregate_type, aggregate_id, event_type, event_version, payload, \
             occurred_at, correlation_id, causation_id, headers, position) ORDER BY position",
            self.quoted()
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
            (&column(events, |event| event.id), Type::UUID_ARRAY),
            (&column(events, |event| &*event.aggregate_type), Type::TEXT_ARRAY),
            (&column(events, |event| &*event.aggregate_id), Type::TEXT_ARRAY),
            (&column(events, |event| &*event.event_type), Type::TEXT_ARRAY),
            (&column(events, |event| event.event_version), Type::INT4_ARRAY),
            (&column(events, |event| &*event.payload), Type::BYTEA_ARRAY),
            (&column(events, |event| event.occurred_at), Type::TIMESTAMPTZ_ARRAY),
            (&column(events, |event| event.correlation_id), Type::UUID_ARRAY),
            (&column(events, |event| event.causation_id), Type::UUID_ARRAY),
            (&column(events, |event| event.headers.as_deref()), Type::BYTEA_ARRAY),
        ];
        tx.execute_typed(&sql, &parameters).await?;
        Ok(())
    }
}

fn column<'a, T>(events: &'a [Event], value: impl FnMut(&'a Event) -> T) -> Vec<T> {
    events.iter().map(value).collect()
}
