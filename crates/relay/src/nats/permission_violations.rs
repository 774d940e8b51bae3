//! What the broker says beside its answers.

use servers::NatsLink;
use tokio::sync::watch;

use crate::engine::BrokerInput;
use crate::error::Error;

/// How the server words it; the subject follows in quotes.
const DENIED: &str = "Permissions Violation for Publish to \"";

/// Permission violations on publishing. The message they are about is never answered.
pub(crate) struct PermissionViolations {
    link: watch::Receiver<NatsLink>,
    seen: u64,
}

impl PermissionViolations {
    pub(crate) fn new(link: watch::Receiver<NatsLink>) -> Self {
        let seen = link.borrow().errors;
        Self { link, seen }
    }

    /// The latest violation, if there was one since the last call. Earlier ones are met again: their
    /// messages are sent again.
    ///
    /// # Errors
    ///
    /// [`Error::Unheard`] if no answer is heard any more.
    pub(crate) fn next(&mut self) -> Result<Option<BrokerInput>, Error> {
        if !self.link.has_changed().unwrap_or(false) {
            return Ok(None);
        }
        let link = self.link.borrow_and_update();
        if let Some(subject) = link.unheard.clone() {
            return Err(Error::Unheard { subject });
        }
        if std::mem::replace(&mut self.seen, link.errors) == link.errors {
            return Ok(None);
        }
        let denied = link.last_error.as_deref().and_then(subject);
        Ok(denied.map(|subject| BrokerInput::Denied {
            subject: subject.to_owned(),
            reason: format!("the relay's NATS user may not publish on {subject}"),
        }))
    }
}

/// What comes of requests, made one after the other on the connection that `link` is about.
///
/// # Errors
///
/// [`Error::Unusable`] as soon as the server refuses one of them: nobody would answer it.
pub async fn unless_denied<T>(
    link: &watch::Receiver<NatsLink>,
    asking: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut link = link.clone();
    let mut seen = link.borrow().errors;
    let denied = async {
        loop {
            let news = link.wait_for(|it| it.errors > seen).await.ok().map(|it| it.clone());
            let Some(news) = news else { return std::future::pending().await };
            seen = news.errors;
            if let Some(subject) = news.last_error.as_deref().and_then(subject) {
                return subject.to_owned();
            }
        }
    };
    tokio::select! {
        asked = asking => asked,
        subject = denied => Err(Error::Unusable {
            problem: format!("the NATS user may not publish on {subject}"),
            fix: format!(
                "let it publish {subject}: docs/security.md has the permissions of each user"
            ),
        }),
    }
}

/// What comes of requests on the connection that `link` is about.
///
/// # Errors
///
/// [`Error::Unheard`] as soon as the server lets nobody hear their answers.
pub async fn unless_unheard<T>(
    link: &watch::Receiver<NatsLink>,
    asking: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let mut link = link.clone();
    let unheard = async {
        let news = link.wait_for(|it| it.unheard.is_some()).await;
        match news.ok().and_then(|it| it.unheard.clone()) {
            Some(subject) => subject,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        asked = asking => asked,
        subject = unheard => Err(Error::Unheard { subject }),
    }
}

fn subject(error: &str) -> Option<&str> {
    let (_, rest) = error.split_once(DENIED)?;
    rest.split('"').next().filter(|subject| !subject.is_empty())
}

#[cfg(test)]
mod tests {
    use super::subject;

    #[test]
    fn the_servers_words_name_the_subject() {
        let said = "nats: Permissions Violation for Publish to \"outbox.order.Paid\"";
        assert_eq!(subject(said), Some("outbox.order.Paid"));
        assert_eq!(subject("nats: Permissions Violation for Subscription to \"a\""), None);
    }
}
