//! What divides the outbox into shards, and what is left of another division.

use tokio_postgres::Row;

use super::Store;
use crate::config::Config;
use crate::error::Error;
use crate::postgres::publication::FILTERS_SINCE;

/// A slot of another number of shards, of which there is a record beside the outbox.
pub struct OtherSlot {
    pub name: String,
    /// PostgreSQL still has it: somebody may publish from it.
    exists: bool,
}

/// Why nothing may be published beside these slots, and what to do. `None` if there are none.
fn refusal(others: &[OtherSlot], config: &Config) -> Option<Error> {
    // Those that exist come first: the others can be seen to.
    let some_exist = others.iter().any(|it| it.exists);
    let named: Vec<_> = others.iter().filter(|it| it.exists == some_exist).collect();
    let (was, now) = (Config::shards_of_slot(&named.first()?.name), config.shards.count());
    let names: Vec<_> = named.iter().map(|it| format!("\"{}\"", it.name)).collect();
    let (s, are) = if names.len() == 1 { ("", "is") } else { ("s", "are") };
    let slots = format!("replication slot{s} {} {are} of relay.shards = {was}", names.join(", "));
    // Another name is nothing that a number of shards would tell.
    let is_renamed = !config.has_base_of(&named.first()?.name);
    let name = if is_renamed { " and postgres.slot as it was" } else { "" };
    let (problem, fix) = if some_exist {
        (
            format!("{slots}: beside that, relay.shards = {now} would publish rows twice"),
            format!(
                "stop every relay; with relay.shards = {was}{name} run `tailpost relay --once` and \
                 then `tailpost slot drop`; then run `tailpost setup` with relay.shards = {now}"
            ),
        )
    } else {
        (
            format!("{slots}, and what was published from there may not be marked yet"),
            format!(
                "run `tailpost setup` with relay.shards = {now}: it marks that before it makes what \
                 is missing"
            ),
        )
    };
    Some(Error::Unusable { problem, fix })
}

fn row_filters(number: i32, version: &str) -> Result<(), Error> {
    if number >= FILTERS_SINCE {
        return Ok(());
    }
    Err(Error::Unusable {
        problem: format!("relay.shards above 1 needs PostgreSQL 15 or later: this is {version}"),
        fix: "set relay.shards = 1: row filters of publications came with PostgreSQL 15".into(),
    })
}

impl Store {
    /// Refuses a server without row filters, where there are several shards.
    pub async fn check_row_filters(&self) -> Result<(), Error> {
        if self.shard.is_none() {
            return Ok(());
        }
        let sql =
            "SELECT current_setting('server_version_num')::int, current_setting('server_version')";
        let row = self.query_one("ask for the server's version", sql, &[]).await?;
        row_filters(row.get(0), row.get(1))
    }

    /// Makes sure that no slot of another number of shards is on record.
    ///
    /// # Errors
    ///
    /// [`Error::Unusable`], with what to do.
    pub async fn check_shards(&self, config: &Config) -> Result<(), Error> {
        let others = self.slots_of_other_shards(config).await?;
        refusal(&others, config).map_or(Ok(()), Err)
    }

    /// The slots of another number of shards that were dropped, but are on record.
    ///
    /// # Errors
    ///
    /// [`Error::Unusable`] if one of them exists.
    pub async fn dropped_slots_of_other_shards(
        &self,
        config: &Config,
    ) -> Result<Vec<OtherSlot>, Error> {
        let others = self.slots_of_other_shards(config).await?;
        match refusal(&others, config) {
            Some(refusal) if others.iter().any(|it| it.exists) => Err(refusal),
            _ => Ok(others),
        }
    }

    async fn slots_of_other_shards(&self, config: &Config) -> Result<Vec<OtherSlot>, Error> {
        let sql = format!(
            "SELECT slot::text, slot_name IS NOT NULL FROM {} LEFT JOIN pg_replication_slots
                 ON slot_name = slot AND database = current_database()
             ORDER BY 1",
            self.table.companion("tailpost_state")
        );
        let rows = self.query("look for slots of other shards", &sql, &[]).await?;
        let other = |row: &Row| OtherSlot { name: row.get(0), exists: row.get(1) };
        let mut others: Vec<_> = rows.iter().map(other).collect();
        others.retain(|it| config.is_of_other_shards(&it.name));
        Ok(others)
    }

    /// Publications of the outbox that were made for another number of shards. They cost nothing and do
    /// no harm.
    pub async fn publications_of_other_shards(
        &self,
        config: &Config,
    ) -> Result<Vec<String>, Error> {
        let sql = "SELECT pubname::text FROM pg_publication_tables
                   WHERE schemaname = $1 AND tablename = $2 ORDER BY 1";
        let table = [self.table.schema(), self.table.name()];
        let doing = "look for publications of other shards";
        let rows = self.query(doing, sql, &[&table[0], &table[1]]).await?;
        let names = rows.iter().map(|row| row.get::<_, String>(0));
        Ok(names.filter(|it| config.is_publication_of_other_shards(it)).collect())
    }

    /// Writes down a slot that is about to be created, unless one of another number of shards is on
    /// record: of two set-ups that do not know of each other, one sees the other's record.
    pub(crate) async fn announce_beside_no_others(
        &self,
        config: &Config,
        system_identifier: &str,
        timeline: i32,
        reason: &str,
    ) -> Result<(), Error> {
        let key = format!("tailpost shards {}", self.table.quoted());
        let lock = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
        let unlock = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        let doing = "lock the record of slots";
        self.execute(doing, lock, &[&key]).await?;
        let announced = async {
            self.check_shards(config).await?;
            self.announce_epoch(&config.slot, system_identifier, timeline, reason).await
        };
        let announced = announced.await;
        self.execute(doing, unlock, &[&key]).await?;
        announced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_row_filters_is_refused_by_its_version() {
        let error = row_filters(140_011, "14.11 (Debian)").expect_err("too old");
        assert!(error.to_string().contains("this is 14.11"), "{error}");
        assert!(!error.is_transient() && error.hint().is_some());
        assert!(row_filters(150_000, "15.0").is_ok());
    }
}
