use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use lab::{Nats, NatsOptions, Proxy};
use servers::NatsAccess;
use servers::NatsTarget;

use super::certificates::{Certificates, Pair};

/// The example key pair of the NATS documentation.
const SEED: &str = "SUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM";
const PUBLIC_KEY: &str = "UD2FLLGFERQVQQ3SBKONNG2QMIMTZQKKLTU3AVG5I3EQEFHBPGPE2XQS";

/// Another one, of a seed that counts from 0 to 31.
const OTHER_SEED: &str = "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y";
const OTHER_KEY: &str = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK";

const NOTICED: Duration = Duration::from_secs(30);

async fn start(config: &[String]) -> Result<Nats> {
    Nats::start(NatsOptions { config: config.to_vec(), ..NatsOptions::default() }).await
}

/// Connects and asks the server something.
async fn enter(servers: &str, access: NatsAccess) -> Result<()> {
    let client = NatsTarget::new(servers, access)?.connect("test").await?;
    client.flush().await.context("flush")
}

async fn refusal(servers: &str, access: NatsAccess) -> servers::Error {
    let target = NatsTarget::new(servers, access).expect("a valid target");
    target.connect("test").await.map(drop).expect_err(servers)
}

fn addr(nats: &Nats) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], nats.port()))
}

/// Connects to the server behind the proxy, then, after a change, to the other one.
async fn enters_both(
    target: &NatsTarget,
    mut proxy: Proxy,
    after: &Nats,
    change: impl FnOnce() -> std::io::Result<()>,
) -> Result<()> {
    let (client, mut link) = target.connect_watched("test").await?;
    proxy.cut().await;
    change()?;
    proxy.set_upstream(addr(after));
    proxy.restore().await?;
    tokio::time::timeout(NOTICED, link.wait_for(|it| it.connects == 2)).await??;
    client.flush().await?;
    Ok(())
}

fn tls(server: &Pair, certificates: &Certificates, more: &str) -> String {
    // Only the lab's own client goes without: it trusts none of these certificates.
    format!(
        "allow_non_tls: true\ntls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, {more} }}",
        server.cert,
        server.key,
        certificates.ca()
    )
}

fn trusting(certificates: &Certificates) -> NatsAccess {
    NatsAccess { ca: Some(certificates.ca()), ..NatsAccess::default() }
}

fn certified(certificates: &Certificates) -> NatsAccess {
    let Pair { cert, key } = certificates.client();
    NatsAccess { cert: Some(cert), key: Some(key), ..trusting(certificates) }
}

#[tokio::test]
async fn nats_lets_in_by_token() -> Result<()> {
    let nats = start(&["authorization { token: \"t0k/en\" }".into()]).await?;
    let none = NatsAccess::default;
    let address = format!("127.0.0.1:{}", nats.port());
    enter(&format!("nats://t0k%2Fen@{address}"), none()).await?;
    enter(&address, NatsAccess { token: Some("t0k/en".into()), ..none() }).await?;
    for servers in [format!("nats://{address}"), format!("nats://wrong@{address}")] {
        let error = refusal(&servers, none()).await;
        assert!(!error.is_transient(), "{error:?}");
        assert!(error.hint().is_some_and(|it| it.contains("nats.token")), "{error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn nats_lets_in_by_user_and_password() -> Result<()> {
    let nats = start(&["authorization { user: \"a@b\", password: \"p:w/d\" }".into()]).await?;
    let address = format!("127.0.0.1:{}", nats.port());
    enter(&format!("nats://a%40b:p%3Aw%2Fd@{address}"), NatsAccess::default()).await?;
    let access = NatsAccess {
        user: Some("a@b".into()),
        password: Some("p:w/d".into()),
        ..NatsAccess::default()
    };
    // A server of the list that is not there does not matter.
    enter(&format!("nats://127.0.0.1:1,nats://{address}"), access).await?;
    assert!(!refusal(&format!("nats://a:b@{address}"), NatsAccess::default()).await.is_transient());
    Ok(())
}

#[tokio::test]
async fn nats_lets_in_by_nkey() -> Result<()> {
    let nats = start(&[format!("authorization {{ users: [ {{ nkey: {PUBLIC_KEY} }} ] }}")]).await?;
    let address = format!("127.0.0.1:{}", nats.port());
    let nkey = |nkey: &str| NatsAccess { nkey: Some(nkey.into()), ..NatsAccess::default() };
    enter(&address, nkey(SEED)).await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), format!("# relay\n{SEED}\n"))?;
    enter(&address, nkey(&file.path().display().to_string())).await?;
    assert!(!refusal(&address, NatsAccess::default()).await.is_transient());
    Ok(())
}

/// A key that is replaced on both sides while the relay runs.
#[tokio::test]
async fn a_new_nkey_in_the_file_is_used_for_the_next_connection() -> Result<()> {
    let user = |key: &str| format!("authorization {{ users: [ {{ nkey: {key} }} ] }}");
    // Two servers behind one address: the second knows only the new key.
    let (before, after) = (start(&[user(PUBLIC_KEY)]).await?, start(&[user(OTHER_KEY)]).await?);
    let proxy = Proxy::start(addr(&before)).await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), SEED)?;
    let nkey = Some(file.path().display().to_string());
    let access = NatsAccess { nkey, ..NatsAccess::default() };
    let target = NatsTarget::new(&proxy.addr().to_string(), access)?;
    enters_both(&target, proxy, &after, || std::fs::write(file.path(), OTHER_SEED)).await
}

/// The same for a token that the configuration file names.
#[tokio::test]
async fn a_new_token_is_used_for_the_next_connection() -> Result<()> {
    let token = |token: &str| format!("authorization {{ token: \"{token}\" }}");
    let (before, after) = (start(&[token("old")]).await?, start(&[token("new")]).await?);
    let proxy = Proxy::start(addr(&before)).await?;
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), "old")?;
    let (servers, path) = (proxy.addr().to_string(), file.path().to_owned());
    let read = move || {
        let token = Some(std::fs::read_to_string(&path)?);
        Ok(NatsTarget::new(&servers, NatsAccess { token, ..NatsAccess::default() })?)
    };
    let target =
        read().map_err(|error: Box<dyn std::error::Error + Send + Sync>| anyhow::anyhow!(error))?;
    let target = target.reread_by(read);
    enters_both(&target, proxy, &after, || std::fs::write(file.path(), "new")).await
}

#[tokio::test]
async fn nats_is_verified_and_asks_for_a_client_certificate() -> Result<()> {
    let certificates = Certificates::issue("relay")?;
    let nats = start(&[tls(&certificates.server(), &certificates, "verify: true")]).await?;
    for host in ["localhost", "127.0.0.1"] {
        let servers = format!("nats://{host}:{}", nats.port());
        enter(&servers, certified(&certificates)).await?;
    }
    let servers = format!("tls://localhost:{}", nats.port());
    let foreign = NatsAccess { ca: Some(certificates.foreign_ca()), ..certified(&certificates) };
    for access in [trusting(&certificates), foreign] {
        let error = refusal(&servers, access).await;
        // Somebody may replace the files.
        assert!(error.is_refusal() && error.is_renewable(), "{error:?}");
        assert!(error.hint().is_some_and(|it| it.contains("nats.ca")), "{error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_nats_certificate_for_another_host_is_refused() -> Result<()> {
    let certificates = Certificates::issue("relay")?;
    let nats = start(&[tls(&certificates.stray_server(), &certificates, "")]).await?;
    let servers = format!("nats://localhost:{}", nats.port());
    let error = refusal(&servers, trusting(&certificates)).await;
    assert!(error.hint().is_some_and(|it| it.contains("subjectAltName")), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn certificates_are_not_ignored_by_a_nats_server_without_tls() -> Result<()> {
    let certificates = Certificates::issue("relay")?;
    let nats = start(&[]).await?;
    let servers = format!("nats://localhost:{}", nats.port());
    let error = refusal(&servers, trusting(&certificates)).await;
    assert!(error.hint().is_some_and(|it| it.contains("does not speak TLS")), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn a_lost_nats_server_is_noticed_and_found_again() -> Result<()> {
    let mut nats = start(&[]).await?;
    let target: NatsTarget = nats.url().parse()?;
    let (client, mut link) = target.connect_watched("test").await?;
    assert!(link.borrow().connected, "up by the time connect returns");
    nats.kill().await?;
    tokio::time::timeout(NOTICED, link.wait_for(|it| !it.connected)).await??;
    nats.start_again().await?;
    tokio::time::timeout(NOTICED, link.wait_for(|it| it.connected)).await??;
    assert_eq!(link.borrow().connects, 2);
    client.flush().await?;
    Ok(())
}
