//! What earlier versions took: settings, values and flags, each with what takes its place.

const BACKOFF: &str = "inbox.backoff lists the pauses: [\"5s\", \"10s\", \"20s\"]; the last one is that of all further ones";

/// The path of a setting, the value that is gone if it is not the setting itself, and what takes its
/// place.
const SETTINGS: [(&str, Option<&str>, &str); 6] = [
    ("relay.dedup", None, "leave it out; messages have no Nats-Msg-Id with relay.mark = \"lean\""),
    (
        "relay.mark",
        Some("watermark"),
        "relay.mark = \"lean\" writes no mark either, and sends no Nats-Msg-Id",
    ),
    (
        "relay.on_wal_limit",
        None,
        "leave it out; PostgreSQL's max_slot_wal_keep_size bounds what a slot keeps, and the relay \
         makes a lost slot anew and takes the gap from the table",
    ),
    ("inbox.layout", None, "leave it out; the inbox's tables are always partitioned"),
    ("inbox.backoff_first", None, BACKOFF),
    ("inbox.backoff_max", None, BACKOFF),
];

/// What takes the place of a setting, or of this value of it, if it is gone.
pub(crate) fn instead_of(path: &str, value: Option<&str>) -> Option<&'static str> {
    let is_gone = |(gone, which, _): &&(&str, Option<&str>, _)| {
        *gone == path && (which.is_none() || *which == value)
    };
    SETTINGS.iter().find(is_gone).map(|it| it.2)
}

/// The paths of settings that are gone, some of them with one value only.
pub(crate) fn paths() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().map(|it| it.0)
}

/// The value of a flag that is gone.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Gone {}

/// Parses the flag to an error that says what takes its place.
pub(crate) fn instead(words: &'static str) -> impl Fn(&str) -> Result<Gone, &'static str> + Clone {
    move |_: &str| Err(words)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;
    use crate::config::tests::refusal;

    #[test]
    fn what_is_gone_is_refused_with_what_takes_its_place() {
        for (toml, variable, value, hint) in [
            ("[relay]\ndedup = 'position'", "TAILPOST_RELAY__DEDUP", "both", "\"lean\""),
            ("[relay]\nmark = 'watermark'", "TAILPOST_RELAY__MARK", "watermark", "\"lean\""),
            (
                "[relay]\non_wal_limit = 'hold'",
                "TAILPOST_RELAY__ON_WAL_LIMIT",
                "drop_slot_and_scan",
                "max_slot_wal_keep_size",
            ),
            (
                "[inbox.a]\nbackoff_first = '1s'",
                "TAILPOST_INBOX__BACKOFF_MAX",
                "5m",
                "lists the pauses",
            ),
            ("[inbox]\nlayout = 'plain'", "TAILPOST_INBOX__LAYOUT", "plain", "always partitioned"),
            ("[inbox.a]\nlayout = 'plain'", "TAILPOST_INBOX__LAYOUT", "partitioned", "partitioned"),
        ] {
            let (error, told) = refusal(toml, &[]);
            assert!(error.starts_with(":2: ") && error.contains("is gone"), "{toml}: {error}");
            assert!(told.contains(hint), "{toml}: {told}");
            let (error, told) = refusal("", &[(variable, value)]);
            assert!(
                error.starts_with(variable) && error.contains("is gone"),
                "{variable}: {error}"
            );
            assert!(told.contains(hint), "{variable}: {told}");
        }
        for (path, value, _) in SETTINGS {
            assert!(instead_of(path, value).is_some(), "{path}");
        }
        for (line, hint) in [
            ("tailpost setup --layout fast", "relay.mark"),
            ("tailpost -v setup --layout=standard --json", "relay.mark"),
            ("tailpost replay --all --to-stream X", "subject transform"),
            ("tailpost replay --all --to-stream=X", "subject transform"),
            ("tailpost demo --for 5s --keep", "compose"),
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(hint), "{line}: {error}");
        }
        assert!(Cli::try_parse_from(["tailpost", "setup"]).is_ok());
    }
}
