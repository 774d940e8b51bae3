//! One TLS stack for both servers and the handlers: rustls with the ring provider.

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore,
    SignatureScheme,
};

use crate::error::Error;

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

/// As [`client_config`] for [`Verification::Full`], for a client that keeps it: the files are read
/// anew for each connection.
pub(super) fn kept_config(
    roots: &Path,
    identity: Option<&Identity>,
) -> Result<ClientConfig, Error> {
    let mut config = client_config(Verification::Full, Some(roots), identity)?;
    if let Some(identity) = identity {
        config.client_auth_cert_resolver = Arc::new(identity.clone());
    }
    Ok(config)
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
    let roots = match (verification, roots) {
        (Verification::None, _) => PathBuf::new(),
        (Verification::Chain | Verification::Full, Some(path)) => path.to_owned(),
        (Verification::Chain | Verification::Full, None) => system_roots()?,
    };
    if verification != Verification::None {
        load_roots(&roots)?;
    }
    Ok(Arc::new(Verifier { verification, roots, provider }))
}

/// Loads the authorities to trust from a PEM file. Also returns the certificates as they are.
pub(super) fn load_roots(
    path: &Path,
) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), Error> {
    let (mut roots, certificates) =
        (RootCertStore::empty(), load_certificates("root certificates", path)?);
    // System bundles hold the odd certificate that cannot be parsed; the others still count.
    let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    if added == 0 {
        return Err(Error::file("root certificates", path, "no usable certificate in it"));
    }
    Ok((roots, certificates))
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

/// Verifies a server's certificate.
///
/// A certificate that is one of the roots, byte for byte, is trusted as it is: a self-signed one that
/// says that it is an authority, as PostgreSQL's manual makes it. With [`Verification::Chain`], as
/// `sslmode=verify-ca` asks for, the host's name does not matter. With [`Verification::None`], as
/// `sslmode=require` without roots asks for, any certificate is accepted. Then handshake signatures
/// are not checked either: against an unverified certificate they prove nothing, and checking would
/// refuse the X.509 v1 certificates that many servers run with.
#[derive(Debug)]
struct Verifier {
    verification: Verification,
    /// Read for each handshake.
    roots: PathBuf,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn verify_chain_and_name(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let other = |error| rustls::Error::Other(OtherError(Arc::new(error)));
        let (roots, trusted) = load_roots(&self.roots).map_err(other)?;
        let provider = Arc::clone(&self.provider);
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|source| other(Error::file("root certificates", &self.roots, source)))?;
        match chain.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // Nobody else has to vouch for it. Its dates are right: they are compared before.
            Err(error) if is_authority(&error) && trusted.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)
                    .map(|()| ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }
}

/// Whether a certificate is refused because it says that it is an authority's. The library tells this
/// only in words.
pub fn is_authority(error: &impl Debug) -> bool {
    format!("{error:?}").contains("CaUsedAsEndEntity")
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        if self.verification == Verification::None {
            return Ok(ServerCertVerified::assertion());
        }
        match self.verify_chain_and_name(end_entity, intermediates, server_name, ocsp, now) {
            // The name is compared last: when only that fails, the chain is good.
            Err(rustls::Error::InvalidCertificate(
                NotValidForName | NotValidForNameContext { .. },
            )) if self.verification == Verification::Chain => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.verification == Verification::None {
            return Ok(HandshakeSignatureValid::assertion());
        }
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        if self.verification == Verification::None {
            return Ok(HandshakeSignatureValid::assertion());
        }
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Shows the certificate that is in the file by then.
impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let chain = load_certificates("client certificate", &self.cert).ok()?;
        let (key, provider) = (load_key(&self.key).ok()?, CryptoProvider::get_default()?);
        CertifiedKey::from_der(chain, key, provider).ok().map(Arc::new)
    }

    fn has_certs(&self) -> bool {
        true
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

    /// Made by `openssl x509 -req -signkey`; for a hundred years.
    const OF_VERSION_1: &str = "-----BEGIN CERTIFICATE-----
MIIBIzCBywIUaVP2HqaqTRTaQSAI1T01t8k4r4UwCgYIKoZIzj0EAwIwFDESMBAG
A1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyNTE0MjY0OFoYDzIxMjYxMTAxMTQyNjQ4
WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAR7BydK1NtAZvHsr68ozpJhCgPg3Y5xaAYj98plfSbWws1vCwrFGGSdx06u5bvG
WaX/i5FnfKMItybweAXzKGVjMAoGCCqGSM49BAMCA0cAMEQCIDJijNcSIWuLlJjr
GmnyPU2C/RjzfHoWq3Y8UZLlxIIGAiB9dvEe10TAYOUy+Ubapb2DNvyrYKx8YcAj
q6Mz6qMjVg==
-----END CERTIFICATE-----
";

    #[test]
    fn a_certificate_of_version_1_is_named() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), OF_VERSION_1).expect("write");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = verifier(Verification::Full, Some(file.path()), provider).expect("a root");
        let certificate = CertificateDer::from_pem_slice(OF_VERSION_1.as_bytes()).expect("PEM");
        let name = ServerName::try_from("localhost").expect("a name");
        let verified = verifier.verify_server_cert(&certificate, &[], &name, &[], UnixTime::now());
        let source = std::io::Error::other(verified.expect_err("it has no names"));
        let source =
            async_nats::ConnectError::with_source(async_nats::ConnectErrorKind::Tls, source);
        let renewed = crate::error::Renewed::default();
        let hint = Error::Nats { target: "tls://localhost".into(), source, renewed }.hint();
        assert!(hint.is_some_and(|it| it.contains("X.509 version 1")));
    }

    #[test]
    fn the_crypto_provider_may_be_installed_twice() {
        install_crypto_provider();
        install_crypto_provider();
        assert!(CryptoProvider::get_default().is_some());
    }
}
