//! A connection that helpers keep from one look to the next: a test that waits looks often.

use std::sync::Mutex;

/// A connection, and the server it leads to: tests replace servers.
pub(crate) struct Kept<T>(Mutex<Option<(String, T)>>);

impl<T> Kept<T> {
    /// Takes the connection to this server, if there is one: nobody else has it meanwhile.
    pub(crate) fn take(&self, url: &str) -> Option<T> {
        let kept = self.0.lock().expect("not poisoned").take();
        kept.filter(|(known, _)| known == url).map(|(_, connection)| connection)
    }

    /// Keeps a connection that works, in place of another one.
    pub(crate) fn keep(&self, url: String, connection: T) {
        *self.0.lock().expect("not poisoned") = Some((url, connection));
    }
}

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}
