use std::fmt;
use std::path::PathBuf;

use super::{NatsAccess, invalid};
use crate::error::Error;

/// What a server is shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Credentials {
    None,
    CredsFile(PathBuf),
    NkeySeed(String),
    NkeyFile(PathBuf),
    Token(String),
    TokenFile(PathBuf),
    UserPassword(String, String),
    UserPasswordFile(String, PathBuf),
}

impl Credentials {
    /// The setting that names the file, if they are read from one.
    pub(super) fn renewed(&self) -> Option<&'static str> {
        match self {
            Self::CredsFile(_) => Some("nats.creds"),
            Self::NkeyFile(_) => Some("nats.nkey"),
            Self::TokenFile(_) => Some("nats.token_file"),
            Self::UserPasswordFile(..) => Some("nats.password_file"),
            Self::None | Self::NkeySeed(_) | Self::Token(_) | Self::UserPassword(..) => None,
        }
    }
}

/// Takes the credentials that are given, which must be given once.
pub(super) fn choose_credentials(
    from_url: Credentials,
    access: NatsAccess,
) -> Result<Credentials, Error> {
    let user_password = match (access.user, access.password, access.password_file) {
        (Some(user), Some(password), None) => Some(Credentials::UserPassword(user, password)),
        (Some(user), None, Some(file)) => Some(Credentials::UserPasswordFile(user, file)),
        (None, None, None) => None,
        (Some(_), Some(_), Some(_)) => {
            let reason = "nats.password is given too: give one of them";
            return Err(Error::invalid("nats.password_file", reason));
        }
        _ => {
            let reason = "nats.user goes together with nats.password or nats.password_file";
            return Err(Error::invalid("nats.user", reason));
        }
    };
    let nkey = access.nkey.map(|nkey| {
        if is_nkey_seed(&nkey) {
            Credentials::NkeySeed(nkey)
        } else {
            Credentials::NkeyFile(nkey.into())
        }
    });
    let mut given = [
        Some(from_url).filter(|it| *it != Credentials::None),
        access.creds.map(Credentials::CredsFile),
        nkey,
        access.token.map(Credentials::Token),
        access.token_file.map(Credentials::TokenFile),
        user_password,
    ]
    .into_iter()
    .flatten();
    let chosen = given.next().unwrap_or(Credentials::None);
    if given.next().is_some() {
        return Err(invalid(
            "give credentials once: in the URL, or as creds, nkey, token, token_file, or user and \
             password",
        ));
    }
    Ok(chosen)
}

/// A user's seed: 58 characters of base 32 that begin with `SU`.
pub(super) fn is_nkey_seed(text: &str) -> bool {
    text.len() == 58
        && text.starts_with("SU")
        && text.bytes().all(|it| it.is_ascii_uppercase() || (b'2'..=b'7').contains(&it))
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::CredsFile(path) => f.debug_tuple("CredsFile").field(path).finish(),
            Self::NkeyFile(path) => f.debug_tuple("NkeyFile").field(path).finish(),
            Self::NkeySeed(_) => f.write_str("NkeySeed(***)"),
            Self::Token(_) => f.write_str("Token(***)"),
            Self::TokenFile(path) => f.debug_tuple("TokenFile").field(path).finish(),
            Self::UserPassword(user, _) => write!(f, "UserPassword({user:?}, ***)"),
            Self::UserPasswordFile(user, path) => {
                f.debug_tuple("UserPasswordFile").field(user).field(path).finish()
            }
        }
    }
}
