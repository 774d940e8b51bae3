//! The snapshot at a new slot's consistent point, in a form that PostgreSQL reads.

/// PostgreSQL prints such a snapshot with an end before its beginning when the last transactions
/// before the consistent point were rolled back: the beginning is the oldest running transaction,
/// the end follows the last *committed* one. `pg_snapshot` does not take that as input. Everything
/// before the beginning is visible whatever the end is, so the end may be moved up to it.
pub(super) fn readable(snapshot: String) -> String {
    let mut parts = snapshot.splitn(3, ':');
    let mut number = || parts.next()?.parse::<u64>().ok();
    match (number(), number()) {
        (Some(xmin), Some(xmax)) if xmax < xmin => format!("{xmin}:{xmin}:"),
        _ => snapshot,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_that_ends_before_it_begins_ends_where_it_begins() {
        assert_eq!(readable("2489:2486:".into()), "2489:2489:");
        for fine in ["10:10:", "10:20:10,14,15", "10:20:"] {
            assert_eq!(readable(fine.into()), fine);
        }
    }
}
