//! What earlier versions took: settings, values and flags, each with what takes its place.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// A setting that is gone, or a value of one that stays.
struct RemovedKey {
    path: &'static str,
    value: Option<&'static str>,
    instead: &'static str,
}

const KEYS: [RemovedKey; 4] = [
    RemovedKey {
        path: "relay.dedup",
        value: None,
        instead: "leave it out; messages have no Nats-Msg-Id with relay.mark = \"lean\"",
    },
    RemovedKey {
        path: "relay.mark",
        value: Some("watermark"),
        instead: "relay.mark = \"lean\" writes no mark either, and sends no Nats-Msg-Id",
    },
    RemovedKey {
        path: "relay.on_wal_limit",
        value: None,
        instead: "leave it out; PostgreSQL's max_slot_wal_keep_size bounds what a slot keeps, and \
                  the relay makes a lost slot anew and takes the gap from the table",
    },
    RemovedKey {
        path: "inbox.layout",
        value: None,
        instead: "leave it out; the inbox's tables are always partitioned",
    },
];

/// A flag that is gone.
struct RemovedFlag {
    /// The words of the command.
    command: &'static [&'static str],
    flag: &'static str,
    instead: &'static str,
}

const FLAGS: [RemovedFlag; 3] = [
    RemovedFlag {
        command: &["setup"],
        flag: "--layout",
        instead: "leave it out; the table is made for relay.mark: \"row\", \"delete\" or \"lean\"",
    },
    RemovedFlag {
        command: &["replay"],
        flag: "--to-stream",
        instead: "let a stream of its own source or mirror this one, with a subject transform; \
                  --to-subject-prefix stays",
    },
    RemovedFlag {
        command: &["demo"],
        flag: "--keep",
        instead: "leave it out; docker/compose.yaml has servers that stay",
    },
];

/// What takes the place of a setting, or of this value of it, if it is gone.
pub(crate) fn instead_of(path: &str, value: Option<&str>) -> Option<&'static str> {
    let is_gone = |it: &&RemovedKey| it.path == path && (it.value.is_none() || it.value == value);
    KEYS.iter().find(is_gone).map(|it| it.instead)
}

/// The path of a setting that is gone, if the environment variable is its.
pub(crate) fn path_of_variable(name: &str) -> Option<&'static str> {
    let variable = |path: &str| format!("TAILPOST_{}", path.replace('.', "__").to_uppercase());
    KEYS.iter().map(|it| it.path).find(|path| variable(path) == name)
}

/// The error for the first flag of the command line that is gone. Looked for before the command line
/// is parsed: clap knows no better than to name a flag that is spelled like it.
pub(crate) fn flag(arguments: &[String]) -> Option<clap::Error> {
    let arguments = arguments.split(|it| it == "--").next().unwrap_or_default();
    let is_given = |flag: &str| {
        arguments
            .iter()
            .any(|it| it == flag || it.strip_prefix(flag).is_some_and(|it| it.starts_with('=')))
    };
    let is_called =
        |command: &[&str]| command.iter().all(|word| arguments.iter().any(|it| it == word));
    let gone = FLAGS.iter().find(|it| is_called(it.command) && is_given(it.flag))?;
    let mut error = clap::Error::new(ErrorKind::UnknownArgument);
    error.insert(ContextKind::InvalidArg, ContextValue::String(gone.flag.to_owned()));
    let hint = StyledStr::from(gone.instead);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint]));
    Some(error)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        for key in &KEYS {
            assert!(instead_of(key.path, key.value).is_some(), "{}", key.path);
        }
        for (line, hint) in [
            ("tailpost setup --layout fast", "relay.mark"),
            ("tailpost -v setup --layout=standard --json", "relay.mark"),
            ("tailpost replay --all --to-stream X", "subject transform"),
            ("tailpost replay --all --to-stream=X", "subject transform"),
            ("tailpost demo --for 5s --keep", "compose"),
        ] {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = flag(&arguments).expect(line);
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(hint), "{line}: {error}");
        }
        for line in ["tailpost setup", "tailpost status --layout", "tailpost setup -- --layout"] {
            let arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert!(flag(&arguments).is_none(), "{line}");
        }
    }
}
