//! Secrets that may change: read anew for each connection.

mod command;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tokio::io::AsyncReadExt;
use tracing::warn;

pub use self::command::SecretCommand;
use crate::error::Error;

/// PostgreSQL takes no longer password. Tokens of clouds have 1 to 4 KiB.
const BYTES_MAX: usize = 64 * 1024;

const TOO_LONG: &str = "it is longer than 64 KiB";
const NOT_UTF_8: &str = "it is not UTF-8";

/// Files that others may read, and of which that was said.
static OPEN_TO_OTHERS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Where a secret is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// The only line of a file.
    File(PathBuf),
    /// The only line that a program writes to stdout.
    Command(SecretCommand),
}

impl SecretSource {
    /// How long reading it takes at most.
    pub(crate) fn takes_at_most(&self) -> std::time::Duration {
        match self {
            Self::File(_) => std::time::Duration::ZERO,
            Self::Command(_) => command::RUN_MAX,
        }
    }

    /// Reads the secret for the setting of this name.
    pub(crate) async fn read(&self, setting: &'static str) -> Result<String, Error> {
        match self {
            Self::File(path) => read_file(setting, path).await,
            Self::Command(command) => command.run(setting).await,
        }
    }
}

/// Reads the only line of the file that `setting` names.
///
/// # Errors
///
/// [`Error::File`] if it cannot be read, is empty, or has several lines.
pub(crate) async fn read_file(setting: &'static str, path: &Path) -> Result<String, Error> {
    let text = read_secret(setting, path).await?;
    only_line(text.into_bytes()).map_err(|reason| Error::file(setting, path, reason))
}

/// Reads the text of the file of secrets that `setting` names.
///
/// # Errors
///
/// [`Error::File`] if it cannot be read, is longer than 64 KiB, or is no text.
pub async fn read_secret(setting: &'static str, path: &Path) -> Result<String, Error> {
    let read = async {
        let file = open(path).await?;
        if let Ok(metadata) = file.metadata().await {
            warn_of_others(setting, path, &metadata);
        }
        text_of(file).await
    };
    read.await.map_err(|it| Error::file(setting, path, it))
}

/// Reads the text of a file with several lines.
///
/// # Errors
///
/// If it cannot be read, is longer than 64 KiB, or is no text.
pub(crate) async fn read_text(path: &Path) -> io::Result<String> {
    text_of(open(path).await?).await
}

async fn text_of(file: tokio::fs::File) -> io::Result<String> {
    let bytes = read_open(file).await?;
    String::from_utf8(bytes).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, NOT_UTF_8))
}

async fn open(path: &Path) -> io::Result<tokio::fs::File> {
    // Opening a pipe waits for whoever writes to it.
    if !tokio::fs::metadata(path).await?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    tokio::fs::File::open(path).await
}

async fn read_open(file: tokio::fs::File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(BYTES_MAX as u64 + 1).read_to_end(&mut bytes).await?;
    if bytes.len() > BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG));
    }
    Ok(bytes)
}

/// Says once that others may read a file. It is used all the same: a secret that Kubernetes mounts
/// is like this by default.
#[cfg(unix)]
fn warn_of_others(setting: &'static str, path: &Path, metadata: &std::fs::Metadata) {
    use std::os::unix::fs::PermissionsExt;
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o004 == 0 {
        return;
    }
    let mut said = OPEN_TO_OTHERS.lock().unwrap_or_else(PoisonError::into_inner);
    if said.insert(path.to_owned()) {
        let (path, mode) = (path.display(), format!("{mode:o}"));
        warn!(setting, %path, mode, "everybody on this machine may read the file: chmod it to 640");
    }
}

#[cfg(not(unix))]
fn warn_of_others(_: &'static str, _: &Path, _: &std::fs::Metadata) {}

/// What was read, without the end of its line. The reason repeats nothing of it.
fn only_line(bytes: Vec<u8>) -> Result<String, &'static str> {
    if bytes.len() > BYTES_MAX {
        return Err(TOO_LONG);
    }
    let mut text = String::from_utf8(bytes).map_err(|_| NOT_UTF_8)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let length = line.strip_suffix('\r').unwrap_or(line).len();
    text.truncate(length);
    match text {
        text if text.trim().is_empty() => Err("it is empty"),
        text if text.contains(['\n', '\r']) => Err("it has more than one line"),
        text if text.contains('\0') => Err("it has a zero byte"),
        text => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_line_without_its_end() {
        for (bytes, secret) in [
            (&b"pw"[..], Ok("pw")),
            (b"pw\n", Ok("pw")),
            (b"pw\r\n", Ok("pw")),
            (b" p w ", Ok(" p w ")),
            (b"", Err("it is empty")),
            (b" \n", Err("it is empty")),
            (b"pw\n\n", Err("it has more than one line")),
            (b"a\nb\n", Err("it has more than one line")),
            (b"a\0b", Err("it has a zero byte")),
            (b"\xff", Err("it is not UTF-8")),
        ] {
            assert_eq!(only_line(bytes.to_vec()), secret.map(str::to_owned), "{bytes:?}");
        }
        assert!(only_line(vec![b'x'; BYTES_MAX]).is_ok());
        assert!(only_line(vec![b'x'; BYTES_MAX + 1]).is_err());
    }

    #[tokio::test]
    async fn a_file_is_read_anew_and_named_when_it_cannot_be() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("password");
        let source = SecretSource::File(path.clone());
        let setting = "postgres.password_file";
        for secret in ["old", "new"] {
            std::fs::write(&path, format!("{secret}\n")).expect("write");
            assert_eq!(source.read(setting).await.expect("a secret"), secret);
        }
        std::fs::write(&path, "\n").expect("write");
        let error = source.read(setting).await.expect_err("empty");
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        assert_eq!(cause.as_deref(), Some("it is empty"));
        std::fs::remove_file(&path).expect("remove");
        let error = source.read(setting).await.expect_err("missing");
        assert!(error.is_configuration() && error.is_renewable(), "{error:?}");
        let path = path.display();
        assert_eq!(error.to_string(), format!("could not load {setting} from {path}"));
    }
}
