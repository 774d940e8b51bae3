//! What the client tells a server about itself, asked anew for each connection.

use std::path::Path;
use std::sync::Arc;

use async_nats::{Auth, AuthError, ConnectOptions};
use nkeys::KeyPair;
use tracing::warn;

use super::credentials::is_nkey_seed;
use super::{Again, Credentials};
use crate::error::Error;
use crate::secret;

/// Options that log in with `credentials`. Files are read at each attempt to connect, so that who
/// replaces them need not restart the relay.
///
/// # Errors
///
/// If a file cannot be used now. Later that is a failed attempt, and the client tries again.
pub(super) async fn options(
    credentials: &Credentials,
    again: &Again,
) -> Result<ConnectOptions, Error> {
    let options = ConnectOptions::new();
    if let (Again(Some(again)), Credentials::Token(_) | Credentials::UserPassword(..)) =
        (again, credentials)
    {
        let (again, known) = (Arc::clone(again), credentials.clone());
        let current = move || match again() {
            Ok(target) => target.credentials,
            Err(error) => {
                warn!(%error, "the credentials for NATS cannot be read again, using those known");
                known.clone()
            }
        };
        return Ok(ConnectOptions::with_auth_callback(move |_| {
            let auth = words(current());
            async move { Ok(auth) }
        }));
    }
    Ok(match credentials {
        Credentials::None => options,
        Credentials::Token(token) => options.token(token.clone()),
        Credentials::UserPassword(user, password) => {
            options.user_and_password(user.clone(), password.clone())
        }
        Credentials::NkeySeed(seed) => options.nkey(seed.clone()),
        Credentials::NkeyFile(path) | Credentials::CredsFile(path) => {
            let is_creds = matches!(credentials, Credentials::CredsFile(_));
            Login::read(path, is_creds).await?; // says what is wrong at once
            let path = path.clone();
            ConnectOptions::with_auth_callback(move |nonce| {
                let path = path.clone();
                async move {
                    let login = Login::read(&path, is_creds).await;
                    login.and_then(|it| it.answer(&path, &nonce)).map_err(AuthError::new)
                }
            })
        }
        Credentials::TokenFile(_) | Credentials::UserPasswordFile(..) => {
            in_words(credentials).await?; // says what is wrong at once
            let credentials = credentials.clone();
            ConnectOptions::with_auth_callback(move |_| {
                let credentials = credentials.clone();
                async move { in_words(&credentials).await.map(words).map_err(AuthError::new) }
            })
        }
    })
}

/// What the file holds now, with what stands beside it.
async fn in_words(credentials: &Credentials) -> Result<Credentials, Error> {
    Ok(match credentials {
        Credentials::TokenFile(path) => {
            Credentials::Token(secret::read_file("nats.token_file", path).await?)
        }
        Credentials::UserPasswordFile(user, path) => {
            let password = secret::read_file("nats.password_file", path).await?;
            Credentials::UserPassword(user.clone(), password)
        }
        other => other.clone(),
    })
}

/// A token, or a user with a password.
fn words(credentials: Credentials) -> Auth {
    let mut auth = Auth::new();
    match credentials {
        Credentials::Token(token) => auth.token = Some(token),
        Credentials::UserPassword(user, password) => {
            (auth.username, auth.password) = (Some(user), Some(password));
        }
        // Another way to log in takes a restart.
        Credentials::None
        | Credentials::NkeySeed(_)
        | Credentials::NkeyFile(_)
        | Credentials::TokenFile(_)
        | Credentials::UserPasswordFile(..)
        | Credentials::CredsFile(_) => {}
    }
    auth
}

/// The content of a file with a key.
struct Login {
    /// The user's token, which names the key; without one the server has to know the key.
    jwt: Option<String>,
    seed: String,
}

impl Login {
    async fn read(path: &Path, is_creds: bool) -> Result<Self, Error> {
        let role = if is_creds { "NATS credentials" } else { "NKey seed" };
        let text = secret::read_text(path).await.map_err(|it| Error::file(role, path, it))?;
        let seed = text.lines().map(str::trim).find(|line| is_nkey_seed(line));
        let seed = seed.ok_or_else(|| Error::file(role, path, "no line with a seed in it"))?;
        let jwt = match is_creds {
            true => Some(jwt(&text).ok_or_else(|| Error::file(role, path, "no user JWT in it"))?),
            false => None,
        };
        Ok(Self { jwt: jwt.map(str::to_owned), seed: seed.to_owned() })
    }

    /// The answer to the server's challenge.
    fn answer(self, path: &Path, nonce: &[u8]) -> Result<Auth, Error> {
        let unusable = |error: nkeys::error::Error| Error::file("NKey seed", path, error);
        let key = KeyPair::from_seed(&self.seed).map_err(unusable)?;
        let mut auth = Auth::new();
        auth.nkey = self.jwt.is_none().then(|| key.public_key());
        auth.jwt = self.jwt;
        auth.signature = Some(key.sign(nonce).map_err(unusable)?);
        Ok(auth)
    }
}

/// The line behind the one that announces it.
fn jwt(text: &str) -> Option<&str> {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.find(|line| line.starts_with("---") && line.contains("BEGIN NATS USER JWT"))?;
    lines.next().filter(|line| !line.starts_with("---"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = "SUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM";

    #[tokio::test]
    async fn a_credentials_file_has_a_token_and_a_key() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let creds = format!(
            "-----BEGIN NATS USER JWT-----\r\neyJ0.eyJq.c2ln\r\n------END NATS USER JWT------\r\n\
             \r\n-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
        );
        std::fs::write(file.path(), &creds).expect("write");
        let login = Login::read(file.path(), true).await.expect("a login");
        assert_eq!((login.jwt.as_deref(), &*login.seed), (Some("eyJ0.eyJq.c2ln"), SEED));
        let auth = login.answer(file.path(), b"nonce").expect("an answer");
        assert!(auth.nkey.is_none() && auth.signature.is_some_and(|it| it.len() == 64));

        std::fs::write(file.path(), SEED).expect("write");
        let error = Login::read(file.path(), true).await.map(drop).expect_err("no token");
        assert!(error.to_string().contains("NATS credentials"), "{error}");
        let auth = Login::read(file.path(), false).await.expect("a login");
        let auth = auth.answer(file.path(), b"nonce").expect("an answer");
        assert!(auth.nkey.is_some_and(|it| it.starts_with('U')) && auth.jwt.is_none());
    }

    #[tokio::test]
    async fn of_a_file_64_kib_are_read() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let padded = |length: usize| {
            let mut text = format!("{SEED}\n");
            text.extend(std::iter::repeat_n('#', length - text.len()));
            std::fs::write(file.path(), text).expect("write");
        };
        padded(64 * 1024);
        assert!(Login::read(file.path(), false).await.is_ok());
        padded(64 * 1024 + 1);
        for is_creds in [true, false] {
            let error = Login::read(file.path(), is_creds).await.map(drop).expect_err("too long");
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            assert_eq!(cause.as_deref(), Some("it is longer than 64 KiB"));
        }
        let endless = Login::read(Path::new("/dev/zero"), false).await.map(drop);
        let error = endless.expect_err("no regular file");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(cause.as_deref(), Some("it is not a regular file"));
    }
}
