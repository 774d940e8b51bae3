//! Certificates for one test, in a folder of its own.

use std::path::PathBuf;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// An authority that is trusted, one that is not, and what the trusted one has issued.
pub(crate) struct Certificates {
    folder: tempfile::TempDir,
}

/// A certificate and its key.
pub(crate) struct Pair {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Pair {
    pub(crate) fn texts(&self) -> Result<(String, String)> {
        Ok((std::fs::read_to_string(&self.cert)?, std::fs::read_to_string(&self.key)?))
    }
}

impl Certificates {
    /// Issues a server certificate for `localhost` and 127.0.0.1, and a client's for `client`.
    pub(crate) fn issue(client: &str) -> Result<Self> {
        let certificates = Self { folder: tempfile::tempdir()? };
        // No two have the same name: a server that trusts both would take the one for the other.
        let trusted = authority(&certificates.folder.path().display().to_string())?;
        std::fs::write(certificates.ca(), trusted.pem())?;
        std::fs::write(certificates.foreign_ca(), authority("foreign")?.pem())?;
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        certificates.write("server", "localhost", &names, &trusted)?;
        certificates.write("stray", "elsewhere", &["elsewhere.example".to_owned()], &trusted)?;
        certificates.write("client", client, &[client.to_owned()], &trusted)?;
        certificates.write_own("own", &names)?;
        certificates.write_own("own_stray", &["elsewhere.example".to_owned()])?;
        Ok(certificates)
    }

    fn write(
        &self,
        file: &str,
        name: &str,
        alternatives: &[String],
        issuer: &CertifiedIssuer<'_, KeyPair>,
    ) -> Result<()> {
        let mut params = CertificateParams::new(alternatives)?;
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let Pair { cert, key: key_path } = self.pair(file);
        std::fs::write(cert, params.signed_by(&key, issuer)?.pem())?;
        std::fs::write(key_path, key.serialize_pem())?;
        Ok(())
    }

    /// As PostgreSQL's manual makes it: its own authority.
    fn write_own(&self, file: &str, alternatives: &[String]) -> Result<()> {
        let mut params = CertificateParams::new(alternatives)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, file);
        let key = KeyPair::generate()?;
        let Pair { cert, key: key_path } = self.pair(file);
        std::fs::write(cert, params.self_signed(&key)?.pem())?;
        std::fs::write(key_path, key.serialize_pem())?;
        Ok(())
    }

    fn pair(&self, file: &str) -> Pair {
        let path = |extension| self.folder.path().join(format!("{file}.{extension}"));
        Pair { cert: path("pem"), key: path("key") }
    }

    /// The authority behind all certificates.
    pub(crate) fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// An authority that issued none of them.
    pub(crate) fn foreign_ca(&self) -> PathBuf {
        self.folder.path().join("foreign.pem")
    }

    /// For a server on this machine.
    pub(crate) fn server(&self) -> Pair {
        self.pair("server")
    }

    /// For a server on another machine.
    pub(crate) fn stray_server(&self) -> Pair {
        self.pair("stray")
    }

    /// Self-signed, for a server on this machine.
    pub(crate) fn own(&self) -> Pair {
        self.pair("own")
    }

    /// Self-signed, for a server on another machine.
    pub(crate) fn own_stray(&self) -> Pair {
        self.pair("own_stray")
    }

    /// For the client.
    pub(crate) fn client(&self) -> Pair {
        self.pair("client")
    }
}

fn authority(name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}
