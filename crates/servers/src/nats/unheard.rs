//! Answers that the user may not hear.

/// How the server words it; the subject follows. It has ended the subscription, or not begun it, and
/// does not begin it by itself when the user may again.
const DENIED: &str = "Permissions Violation for Subscription to \"";

/// Whether the server says that the user may not subscribe to a subject under the prefix of answers.
pub(super) fn is_about_answers(error: &str, prefix: &str) -> bool {
    let subject = error.split_once(DENIED).map(|(_, subject)| subject);
    subject.and_then(|it| it.strip_prefix(prefix)).is_some_and(|it| it.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::is_about_answers;

    #[test]
    fn the_servers_words_are_about_answers_or_about_something_else() {
        let said = |subject| {
            format!("nats: Permissions Violation for Subscription to \"{subject}\" (sid \"1\")")
        };
        assert!(is_about_answers(&said("_INBOX.a.*"), "_INBOX"));
        assert!(!is_about_answers(&said("_INBOX_relay.a.*"), "_INBOX"));
        assert!(!is_about_answers(&said("$JS.EVENT.ADVISORY.>"), "_INBOX"));
        let published = "nats: Permissions Violation for Publish to \"_INBOX.a\"";
        assert!(!is_about_answers(published, "_INBOX"));
    }
}
