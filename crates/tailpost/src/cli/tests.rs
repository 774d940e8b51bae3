use super::*;

/// Pages name `demo` and `chaos`, too.
#[cfg(feature = "lab")]
mod named;

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn global_flags_may_follow_the_command() {
    let cli = Cli::parse_from(["tailpost", "status", "--json", "--nats-url", "nats://n1", "-v"]);
    assert_eq!(cli.global.sources().nats_url.as_deref(), Some("nats://n1"));
    assert_eq!(cli.global.verbosity(), Verbosity::Verbose);
    assert!(matches!(cli.command, Command::Status(JsonArgs { json: true })));
}

#[test]
fn debug_output_shows_no_url() {
    let cli = Cli::parse_from(["tailpost", "--database-url", "postgres://a:s3cret@b", "status"]);
    assert!(!format!("{cli:?}").contains("s3cret"));
}
