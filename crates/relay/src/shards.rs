//! Several relays for one outbox: each has its share of the aggregates, its own slot and stream.
//!
//! An aggregate is in one shard, for as long as the number of shards stays what it is: so the order
//! of its events, and that each is stored once, are matters of one shard alone, and nothing has to be
//! agreed upon between them. Which shard that is, one expression says ([`Shard::owns`]): as the row
//! filter of the shard's publication, and in every statement that looks for rows.

/// One share of the aggregates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Which: from 0 on.
    pub number: u32,
    /// How many there are.
    pub of: u32,
}

impl Shard {
    /// The shard that a row is in, as SQL: a `bigint` from 0 to `of - 1`. `kind` and `id` are the
    /// columns of the aggregate's type and id, of a type of text.
    ///
    /// Made of what PostgreSQL allows in a row filter: built-in and immutable. The hash of the type
    /// is the seed for that of the id, so that no separator can be mistaken. Whatever the columns
    /// hold, null included, a row is in exactly one shard, and byte by byte decides, not a collation.
    pub fn of_row(of: u32, kind: &str, id: &str) -> String {
        let text = |column: &str| format!(r#"coalesce({column}::text, ''::text) COLLATE "C""#);
        format!(
            "((hashtextextended({}, hashtextextended({}, '0'::bigint)) \
             & '{}'::bigint) % '{of}'::bigint)",
            text(id),
            text(kind),
            i64::MAX
        )
    }

    /// Whether a row is in this shard, as SQL.
    pub fn owns(self, kind: &str, id: &str) -> String {
        format!("({} = '{}'::bigint)", Self::of_row(self.of, kind, id), self.number)
    }

    /// What its slot and publication are called.
    pub(crate) fn name(self, base: &str) -> String {
        format!("{base}_{}of{}", self.number, self.of)
    }

    /// Takes such a name apart.
    pub(crate) fn parse(name: &str) -> Option<(&str, Self)> {
        let (base, place) = name.rsplit_once('_')?;
        let (number, of) = place.split_once("of")?;
        let shard = Self { number: number.parse().ok()?, of: of.parse().ok()? };
        let is_one = shard.of > 1 && shard.number < shard.of && shard.name(base) == name;
        is_one.then_some((base, shard))
    }
}

/// How many shards there are, and which of them is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shards {
    pub(crate) count: u32,
    pub(crate) one: Option<u32>,
}

impl Shards {
    /// All of `count` shards, 1 at least.
    pub fn new(count: u32) -> Self {
        Self { count, one: None }
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        self.count
    }
}

impl Default for Shards {
    /// One, which has everything.
    fn default() -> Self {
        Self::new(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shards_name_is_taken_apart_as_it_was_made() {
        let shard = Shard { number: 3, of: 16 };
        assert_eq!(shard.name("tail_post"), "tail_post_3of16");
        assert_eq!(Shard::parse("tail_post_3of16"), Some(("tail_post", shard)));
        for other in
            ["tailpost", "tailpost_3of", "tailpost_3of3", "tailpost_0of1", "tailpost_03of16"]
        {
            assert_eq!(Shard::parse(other), None, "{other}");
        }
    }
}
