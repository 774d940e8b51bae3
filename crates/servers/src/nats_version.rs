//! What a version of nats-server can and cannot do.

use std::collections::HashMap;

/// What helps against a server that [misreads headers](misreads_headers).
pub const UPGRADE: &str = "upgrade nats-server to 2.12.2 or later, or to 2.11.11";

/// Whether the server takes the text of one header, in a name or a value, for another header. Then
/// what an event says can switch off deduplication and the fence.
pub fn misreads_headers(version: &str) -> bool {
    let mended = |it| it >= (2, 12, 2) || ((2, 11, 11)..(2, 12, 0)).contains(&it);
    parse(version).is_some_and(|it| !mended(it))
}

/// Which server [misreads headers](misreads_headers), if the one that answers for a stream does: its
/// leader, which in a cluster or behind a leaf node is another one than the client is connected to. From
/// 2.11 on servers put their version into a stream's metadata.
pub fn misreading_leader(connected: &str, metadata: &HashMap<String, String>) -> Option<String> {
    match metadata.get("_nats.ver") {
        Some(version) => misreads_headers(version).then(|| format!("nats-server {version}")),
        None => {
            let would_tell = parse(connected).is_some_and(|it| it >= (2, 11, 0));
            would_tell.then(|| "a nats-server before 2.11".into())
        }
    }
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
    fn a_leader_tells_its_version_or_is_older_than_those_that_do() {
        let leader = |connected: &str, version: Option<&str>| {
            let of = |it: &str| [("_nats.ver".to_owned(), it.to_owned())].into();
            misreading_leader(connected, &version.map_or_else(HashMap::new, of))
        };
        assert_eq!(leader("2.15.1", Some("2.15.1")), None);
        assert_eq!(leader("2.15.1", Some("2.12.1")).as_deref(), Some("nats-server 2.12.1"));
        assert_eq!(leader("2.10.26", Some("2.12.2")), None);
        assert_eq!(leader("2.11.0", None).as_deref(), Some("a nats-server before 2.11"));
        // What does not say which server it is, is not judged.
        assert_eq!(leader("unknown", None), None);
    }

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
