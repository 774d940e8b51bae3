//! What a version of nats-server can and cannot do.

/// What helps against a server that [misreads headers](misreads_headers).
pub const UPGRADE: &str = "upgrade nats-server to 2.12.2 or later, or to 2.11.11";

/// Whether the server takes the text of one header, in a name or a value, for another header. Then
/// what an event says can switch off deduplication and the fence.
pub fn misreads_headers(version: &str) -> bool {
    let mended = |it| it >= (2, 12, 2) || ((2, 11, 11)..(2, 12, 0)).contains(&it);
    parse(version).is_some_and(|it| !mended(it))
}

/// Whether the server has fast-ingest batches that can be relied on: nats-server#8106 mends a race on
/// a change of leader.
pub fn takes_batches(version: &str) -> bool {
    parse(version).is_some_and(|it| it >= (2, 14, 1))
}

/// What is behind the three numbers does not matter. `None` if there are not three.
fn parse(version: &str) -> Option<(u32, u32, u32)> {
    let number = |it: &str| {
        let end = it.find(|it: char| !it.is_ascii_digit()).unwrap_or(it.len());
        it[..end].parse().ok()
    };
    let mut numbers = version.trim_start_matches('v').splitn(3, '.').map(number);
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_is_known_for_what_it_does() {
        for (version, misreads, batches) in [
            ("2.9.10", true, false),
            ("2.10.26", true, false),
            ("2.11.10", true, false),
            ("2.11.11", false, false),
            ("2.11.15-RC.1", false, false),
            ("2.12.0", true, false),
            ("2.12.1", true, false),
            ("v2.12.2", false, false),
            ("2.13.0", false, false),
            ("2.14.0", false, false),
            ("2.14.1", false, true),
            ("2.15.0-dev", false, true),
            ("3.0.0", false, true),
            ("unknown", false, false),
            ("2.15", false, false),
        ] {
            let found = (misreads_headers(version), takes_batches(version));
            assert_eq!(found, (misreads, batches), "{version}");
        }
    }
}
