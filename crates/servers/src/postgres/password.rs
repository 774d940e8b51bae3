//! What the server is shown that may be another one for the next connection.

use super::PostgresTarget;
use crate::error::{CERTIFICATE, Error, Renewed};
use crate::secret::SecretSource;

/// The setting that a source stands for.
pub(super) fn setting(source: &SecretSource) -> &'static str {
    match source {
        SecretSource::File(_) => "postgres.password_file",
        SecretSource::Command(_) => "postgres.password_command",
    }
}

impl PostgresTarget {
    /// The password as it is now, if it is not the connection string's.
    pub(super) async fn renewed_password(&self) -> Result<Option<String>, Error> {
        match &self.password {
            Some(source) => source.read(setting(source)).await.map(Some),
            None => Ok(None),
        }
    }

    /// What is read anew for each connection.
    pub fn renewed(&self) -> Renewed {
        let of_certificate = self.identity.as_ref().map(|_| CERTIFICATE);
        Renewed {
            login: self.password.as_ref().map(setting).or(of_certificate),
            certificates: self.identity.is_some() || self.roots.is_some(),
        }
    }
}
