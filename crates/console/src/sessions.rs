//! Who has signed in. Sessions are in memory: whoever restarts the console signs everybody out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long somebody stays signed in.
const AGE_MAX: Duration = Duration::from_secs(8 * 3600);
/// How long a token is believed before it is shown to the upstreams again.
const BELIEVED: Duration = Duration::from_secs(10);
const SESSIONS_MAX: usize = 1000;
/// Wrong tokens of one peer within [`WRONG_SPAN`].
const WRONG_MAX: u32 = 5;
const WRONG_SPAN: Duration = Duration::from_secs(60);
const PEERS_MAX: usize = 10_000;

/// What somebody may do; each may do what those before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    Viewer,
    Operator,
    Admin,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Somebody who has shown a token.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) token: Arc<str>,
    pub(crate) role: Role,
    /// What the audit calls it.
    pub(crate) called: Option<String>,
    /// What each form of this session carries.
    pub(crate) form_token: Arc<str>,
    /// No relay or inbox knows the token any more.
    pub(crate) is_revoked: bool,
    since: Instant,
    checked: Instant,
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: Mutex<HashMap<String, Session>>,
    wrong: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

/// A secret that nobody guesses.
pub(crate) fn secret() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().map(|it| format!("{it:02x}")).collect()
}

/// Looks at every byte.
pub(crate) fn is_same(given: &str, secret: &str) -> bool {
    let differences = given.bytes().zip(secret.bytes()).fold(0, |it, (a, b)| it | (a ^ b));
    given.len() == secret.len() && std::hint::black_box(differences) == 0
}

impl Sessions {
    /// Begins a session, and says what its cookie has.
    pub(crate) fn begin(&self, token: &str, role: Role, called: Option<String>) -> String {
        let (id, now) = (secret(), Instant::now());
        let session = Session {
            token: token.into(),
            role,
            called,
            form_token: secret().into(),
            is_revoked: false,
            since: now,
            checked: now,
        };
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, it| it.since.elapsed() < AGE_MAX);
        if all.len() >= SESSIONS_MAX {
            let oldest = all.iter().min_by_key(|(_, it)| it.since).map(|(id, _)| id.clone());
            oldest.map(|it| all.remove(&it));
        }
        all.insert(id.clone(), session);
        id
    }

    pub(crate) fn get(&self, id: &str) -> Option<Session> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).filter(|it| it.since.elapsed() < AGE_MAX).cloned()
    }

    pub(crate) fn end(&self, id: &str) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// What is asked with its cookie from now on is told why it is refused.
    pub(crate) fn revoke(&self, id: &str) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = all.get_mut(id) {
            session.is_revoked = true;
        }
    }

    /// The token was shown again, and this is what it is good for.
    pub(crate) fn confirm(&self, id: &str, role: Role) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(session) = all.get_mut(id) {
            (session.role, session.checked) = (role, Instant::now());
        }
    }

    /// Whether a peer may try another token now.
    pub(crate) fn may_try(&self, peer: IpAddr) -> bool {
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.get(&peer).is_none_or(|(since, n)| *n < WRONG_MAX || since.elapsed() >= WRONG_SPAN)
    }

    pub(crate) fn was_wrong(&self, peer: IpAddr) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() >= PEERS_MAX {
            wrong.retain(|_, (since, _)| since.elapsed() < WRONG_SPAN);
        }
        let now = Instant::now();
        let (since, count) = wrong.entry(peer).or_insert((now, 0));
        if since.elapsed() >= WRONG_SPAN {
            (*since, *count) = (now, 0);
        }
        *count += 1;
    }
}

impl Session {
    /// Whether the token is to be shown to the upstreams again.
    pub(crate) fn is_to_be_checked(&self) -> bool {
        self.checked.elapsed() >= BELIEVED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_there_until_it_is_ended() {
        let sessions = Sessions::default();
        let id = sessions.begin("s3cret", Role::Operator, None);
        assert_eq!(id.len(), 64);
        assert_eq!(sessions.get(&id).map(|it| it.role), Some(Role::Operator));
        assert!(sessions.get("other").is_none());
        sessions.end(&id);
        assert!(sessions.get(&id).is_none());
    }

    #[test]
    fn five_wrong_tokens_of_a_peer_are_enough() {
        let sessions = Sessions::default();
        let (peer, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        for _ in 0..WRONG_MAX {
            assert!(sessions.may_try(peer));
            sessions.was_wrong(peer);
        }
        assert!(!sessions.may_try(peer) && sessions.may_try(other));
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(is_same("abc", "abc"));
        assert!(!is_same("abc", "abd") && !is_same("ab", "abc") && !is_same("", "a"));
    }
}
