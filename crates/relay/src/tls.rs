//! One TLS stack for both servers: rustls with the ring provider.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::connect_error::Error;

/// Makes ring the process-wide provider of cryptography.
///
/// More than one provider is compiled in through dependencies, so the choice has to be made
/// explicitly. Calling it again does nothing. `main` calls it first; connecting calls it too, for
/// the sake of programs that use this crate as a library.
pub fn install_crypto_provider() {
    // An error means that a provider is installed already, which is what we want.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// How far the server's certificate is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verification {
    /// Not at all: encrypts, but does not tell who is at the other end.
    None,
    /// The chain up to a trusted root, for whatever host.
    Chain,
    /// The chain, and that it was issued for this host.
    Full,
}

/// A client certificate and its key, both PEM files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
}

/// Builds a client configuration, reading the files anew: certificates may have been renewed.
pub(super) fn client_config(
    verification: Verification,
    roots: Option<&Path>,
    identity: Option<&Identity>,
) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("ring supports the default TLS versions")
        .dangerous()
        .with_custom_certificate_verifier(verifier(verification, roots, provider)?);
    let Some(identity) = identity else {
        return Ok(builder.with_no_client_auth());
    };
    builder
        .with_client_auth_cert(load_certificates("client certificate", &identity.cert)?, {
            load_key(&identity.key)?
        })
        .map_err(|source| Error::file("client key", &identity.key, source))
}

/// Builds a configuration for calling `https://` services, trusted as the two servers are: the
/// chain up to one of `roots` (the system's if none), and the host name.
///
/// `identity` is a client certificate and its key. All are PEM files, read now.
///
/// # Errors
///
/// If a file cannot be read or is not what it should be.
pub fn https_config(
    roots: Option<&Path>,
    identity: Option<(&Path, &Path)>,
) -> Result<ClientConfig, Error> {
    let identity = identity.map(|(cert, key)| Identity { cert: cert.into(), key: key.into() });
    client_config(Verification::Full, roots, identity.as_ref())
}

fn verifier(
    verification: Verification,
    roots: Option<&Path>,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, Error> {
    if verification == Verification::None {
        return Ok(Arc::new(Lenient { chain: None, provider }));
    }
    let path = match roots {
        Some(path) => path.to_owned(),
        None => system_roots()?,
    };
    let roots = Arc::new(load_roots(&path)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
        .build()
        .map_err(|source| Error::file("root certificates", path, source))?;
    Ok(match verification {
        Verification::Full => verifier,
        Verification::None | Verification::Chain => {
            Arc::new(Lenient { chain: Some(verifier), provider })
        }
    })
}

/// Loads the authorities to trust from a PEM file.
pub(super) fn load_roots(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // System bundles hold the odd certificate that cannot be parsed; the others still count.
    let (added, _) = roots.add_parsable_certificates(load_certificates("root certificates", path)?);
    if added == 0 {
        return Err(Error::file("root certificates", path, "no usable certificate in it"));
    }
    Ok(roots)
}

/// Checks that certificate and key can be read and belong together.
pub(super) fn check_identity(identity: &Identity) -> Result<(), Error> {
    client_config(Verification::None, None, Some(identity)).map(drop)
}

fn load_certificates(
    role: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|source| Error::file(role, path, source))?;
    if certificates.is_empty() {
        return Err(Error::file(role, path, "no certificate in it"));
    }
    Ok(certificates)
}

fn load_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| Error::file("client key", path, source))
}

/// Finds the operating system's bundle of trusted authorities.
///
/// A file rather than a loaded store, because the replication client takes only a path, and both
/// connections to one server must trust the same roots.
pub(super) fn system_roots() -> Result<PathBuf, Error> {
    const BUNDLES: [&str; 4] = [
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/pki/tls/certs/ca-bundle.crt",
        "/etc/ssl/ca-bundle.pem",
        "/etc/ssl/cert.pem",
    ];
    std::env::var_os("SSL_CERT_FILE")
        .map(PathBuf::from)
        .or_else(|| BUNDLES.iter().map(PathBuf::from).find(|it| it.is_file()))
        .ok_or_else(|| {
            Error::invalid("sslrootcert", "this system has no certificate bundle: name a PEM file")
        })
}

/// A verification that leaves something out.
///
/// With [`Verification::Chain`], as `sslmode=verify-ca` asks for, the chain is verified, and accepted
/// for any host name. With [`Verification::None`], as `sslmode=require` without roots asks for, any
/// certificate is accepted. Then handshake signatures are not checked either: against an unverified
/// certificate they prove nothing, and checking would refuse the X.509 v1 certificates that many
/// servers run with.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The name is compared last: when only that fails, the chain is good.
            Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(HandshakeSignatureValid::assertion()) };
        chain.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(HandshakeSignatureValid::assertion()) };
        chain.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_root_file_is_named() {
        let error = load_roots(Path::new("/nonexistent/root.pem")).expect_err("no such file");
        assert_eq!(
            error.to_string(),
            "could not load root certificates from /nonexistent/root.pem"
        );
        assert!(error.is_configuration());
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("empty.pem");
        std::fs::write(&path, "not a certificate\n").expect("temporary file");
        let error = load_roots(&path).expect_err("no certificate in it");
        assert!(error.to_string().contains("empty.pem"), "{error}");
        let identity = Identity { cert: path.clone(), key: path.clone() };
        let error = check_identity(&identity).expect_err("no certificate in it");
        assert!(error.to_string().contains("client certificate"), "{error}");
    }

    #[test]
    fn the_crypto_provider_may_be_installed_twice() {
        install_crypto_provider();
        install_crypto_provider();
        assert!(CryptoProvider::get_default().is_some());
    }
}
