//! What proves to a service who calls it: headers, tokens, signing secrets. Files are read again and
//! again, so that each can be replaced without a restart.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use outbox::wire::header;
use tokio::sync::watch;
use tokio::time::sleep;

use super::HttpError;
use super::signature::{Secret, SecretError};

/// How often the files are read again, while there are requests.
const READ_EVERY: Duration = Duration::from_secs(1);

/// Beginnings of the names that say something about the event, the body or the signature.
const RESERVED_PREFIXES: [&str; 4] = ["content-", "webhook-", "tailpost-", "proxy-"];
/// Names that mean something to the connection, or that the event has.
const RESERVED: [&str; 13] = [
    "baggage",
    "host",
    "connection",
    "expect",
    "idempotency-key",
    "keep-alive",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

/// What each request proves itself with. `Debug` shows no values.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// Headers of each request.
    pub headers: Headers,
    /// A file of more of them: a line for each, as `Name: value`.
    pub headers_file: Option<PathBuf>,
    /// A file whose only line becomes `Authorization: Bearer …`.
    pub bearer_token_file: Option<PathBuf>,
    /// Requests carry a signature for each, so that a secret can be replaced while both are known.
    pub secrets: Vec<Secret>,
    /// A file of more of them, one a line.
    pub secrets_file: Option<PathBuf>,
    /// Where the TLS configuration reads whom to trust, if it does so for each connection.
    pub ca: Option<PathBuf>,
}

/// Headers that somebody sets for each request. `Debug` shows no values.
#[derive(Debug, Clone, Default)]
pub struct Headers(HeaderMap);

/// A header that cannot be set. Does not repeat its value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The name is none, or has a meaning here.
    #[error("`{0}` is no header that can be set: it is the event's, the signature's or HTTP's own")]
    Name(String),
    /// The value cannot be sent.
    #[error("the value of `{0}` is empty, or has characters that a header cannot have")]
    Value(String),
    /// It is there already.
    #[error("`{0}` is set twice")]
    Twice(String),
}

impl Headers {
    /// Adds a header.
    ///
    /// # Errors
    ///
    /// [`HeaderError`] if the name is reserved or taken, or the value cannot be sent.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), HeaderError> {
        let known = name.parse::<HeaderName>().ok().filter(|it| !is_reserved(it.as_str()));
        let known = known.ok_or_else(|| HeaderError::Name(name.into()))?;
        let mut value = HeaderValue::from_str(value.trim())
            .ok()
            .filter(|it| !it.is_empty() && value.is_ascii())
            .ok_or_else(|| HeaderError::Value(name.into()))?;
        value.set_sensitive(true);
        match self.0.insert(known, value) {
            Some(_) => Err(HeaderError::Twice(name.into())),
            None => Ok(()),
        }
    }
}

fn is_reserved(name: &str) -> bool {
    RESERVED_PREFIXES.iter().any(|it| name.starts_with(it))
        || RESERVED.contains(&name)
        || header::OF_THE_EVENT.iter().any(|it| it.eq_ignore_ascii_case(name))
}

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Current {
    pub(super) headers: HeaderMap,
    pub(super) secrets: Vec<Secret>,
}

/// Credentials, and what they were when they were read last.
#[derive(Debug)]
pub(super) struct Keyring {
    given: Credentials,
    read: Mutex<Option<(Instant, Arc<Current>)>>,
}

impl Keyring {
    pub(super) fn new(given: Credentials) -> Self {
        Self { given, read: Mutex::default() }
    }

    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        let (changes, receiver) = watch::channel(0);
        let files: Vec<PathBuf> = self.given.files().chain(&self.given.ca).cloned().collect();
        if !files.is_empty() {
            tokio::spawn(follow(files, changes));
        }
        receiver
    }

    /// What is in force.
    pub(super) async fn current(&self) -> Result<Arc<Current>, HttpError> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, current)) = read
            && (at.elapsed() < READ_EVERY || self.given.files().next().is_none())
        {
            return Ok(current);
        }
        let current = Arc::new(Box::pin(self.given.read()).await?);
        let read = Some((Instant::now(), Arc::clone(&current)));
        *self.read.lock().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(current)
    }
}

/// Tells of changes once nothing has changed for as long as what was read is kept. Where a file system
/// hangs, one thread waits for it, which is not the runtime's.
async fn follow(files: Vec<PathBuf>, changes: watch::Sender<u64>) {
    let mut told = written(&files).await;
    let mut seen = told.clone();
    while !changes.is_closed() {
        sleep(READ_EVERY).await;
        let now = written(&files).await;
        if now == seen && now != told {
            told.clone_from(&now);
            changes.send_modify(|it| *it += 1);
        }
        seen = now;
    }
}

/// When, of those that are there.
async fn written(files: &[PathBuf]) -> Vec<Option<SystemTime>> {
    let mut times = Vec::with_capacity(files.len());
    for file in files {
        let found = tokio::fs::metadata(file).await;
        times.push(found.and_then(|it| it.modified()).ok());
    }
    times
}

impl Credentials {
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.headers_file, &self.bearer_token_file, &self.secrets_file].into_iter().flatten()
    }

    async fn read(&self) -> Result<Current, HttpError> {
        let mut headers = self.headers.clone();
        if let Some(path) = &self.headers_file {
            let setting = "inbox.headers_file";
            let wrong = |it: String| HttpError::file(setting, path, it);
            for line in lines(setting, path).await? {
                let (name, value) = line
                    .split_once(':')
                    .ok_or_else(|| wrong("a line is no `Name: value`".into()))?;
                headers.add(name.trim_end(), value).map_err(|it| wrong(it.to_string()))?;
            }
        }
        if let Some(path) = &self.bearer_token_file {
            let setting = "inbox.bearer_token_file";
            let lines = lines(setting, path).await?;
            let [token] = lines.as_slice() else {
                return Err(HttpError::file(setting, path, "it has more than one line"));
            };
            let added = headers.add("Authorization", &format!("Bearer {token}"));
            added.map_err(|it| HttpError::file(setting, path, it))?;
        }
        let mut secrets = self.secrets.clone();
        if let Some(path) = &self.secrets_file {
            let setting = "inbox.secrets_file";
            for line in lines(setting, path).await? {
                secrets.push(
                    line.parse().map_err(|it: SecretError| HttpError::file(setting, path, it))?,
                );
            }
        }
        Ok(Current { headers: headers.0, secrets })
    }
}

/// The lines of a file that say something: at least one.
async fn lines(setting: &'static str, path: &Path) -> Result<Vec<String>, HttpError> {
    let text = servers::read_secret(setting, path).await;
    let text = text.map_err(|it| HttpError::File { reason: servers::describe(&it) })?;
    let lines = text.lines().map(str::trim).filter(|it| !it.is_empty() && !it.starts_with('#'));
    let lines: Vec<_> = lines.map(str::to_owned).collect();
    if lines.is_empty() { Err(HttpError::file(setting, path, "it is empty")) } else { Ok(lines) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_meaning_cannot_be_set() {
        let mut headers = Headers::default();
        for name in [
            "Host",
            "Content-Type",
            "content-length",
            "Webhook-Signature",
            "tailpost-attempt",
            "Transfer-Encoding",
            "Connection",
            "Event-Type",
            "traceparent",
            "Idempotency-Key",
            "a b",
            "",
            "Proxy-Authorization",
        ] {
            assert_eq!(headers.add(name, "x"), Err(HeaderError::Name(name.into())));
        }
        assert_eq!(headers.add("X-Api-Key", " k1 "), Ok(()));
        assert_eq!(headers.add("x-api-key", "k2"), Err(HeaderError::Twice("x-api-key".into())));
        for value in ["", " ", "a\nb", "é"] {
            assert_eq!(headers.add("X", value), Err(HeaderError::Value("X".into())), "{value:?}");
        }
        assert!(!format!("{headers:?}").contains("k1"), "{headers:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn changes_are_told_of_when_what_was_read_before_is_kept_no_longer() {
        let folder = tempfile::tempdir().expect("a folder");
        let ca = folder.path().join("ca");
        let write = |second| {
            let file = std::fs::File::create(&ca).expect("write");
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            file.set_modified(at).expect("set its time");
        };
        write(1);
        let given = Credentials { ca: Some(ca.clone()), ..Credentials::default() };
        let mut changes = Keyring::new(given).changes();
        sleep(READ_EVERY).await;
        write(2);
        let began = tokio::time::Instant::now();
        changes.changed().await.expect("somebody looks");
        assert!(began.elapsed() >= READ_EVERY, "after {:?}", began.elapsed());
        assert_eq!(*changes.borrow_and_update(), 1);
        sleep(5 * READ_EVERY).await;
        assert!(!changes.has_changed().expect("somebody looks"));
        std::fs::remove_file(&ca).expect("remove");
        changes.changed().await.expect("somebody looks");
        let mut none = Keyring::new(Credentials::default()).changes();
        assert!(none.changed().await.is_err(), "there is nothing to look at");
    }

    #[tokio::test]
    async fn files_are_read_again_and_named_when_they_cannot_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let (token, headers) = (folder.path().join("token"), folder.path().join("headers"));
        let given = Credentials {
            bearer_token_file: Some(token.clone()),
            headers_file: Some(headers.clone()),
            ..Credentials::default()
        };
        std::fs::write(&headers, "# of the gateway\nX-Api-Key: a:b\n\nX-Team : ada\n").expect("it");
        for secret in ["old", "new"] {
            std::fs::write(&token, format!("{secret}\n")).expect("write");
            let current = given.read().await.expect("credentials");
            assert_eq!(current.headers["authorization"], format!("Bearer {secret}"));
            assert_eq!(current.headers["x-api-key"], "a:b");
            assert_eq!(current.headers["x-team"], "ada");
        }
        for (file, text, reason) in [
            (&token, "s3cret\ns3cret\n", "more than one line"),
            (&token, "\n", "it is empty"),
            (&headers, "Authorization: s3cret\n", "`Authorization` is set twice"),
            (&headers, "Host: s3cret\n", "`Host` is no header"),
            (&headers, "s3cret\n", "a line is no"),
        ] {
            std::fs::write(&token, "t").expect("write");
            std::fs::write(&headers, "X: y").expect("write");
            std::fs::write(file, text).expect("write");
            let error = given.read().await.expect_err(reason).to_string();
            assert!(error.contains(reason) && !error.contains("s3cret"), "{error}");
        }
        std::fs::remove_file(&token).expect("remove");
        std::fs::write(&headers, "X: y").expect("write");
        let error = given.read().await.expect_err("a missing file").to_string();
        assert!(error.starts_with("could not load inbox.bearer_token_file from "), "{error}");
    }
}
