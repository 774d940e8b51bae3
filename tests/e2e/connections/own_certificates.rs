//! Self-signed certificates that say that they are an authority's, as PostgreSQL's manual makes them.

use lab::{NatsOptions, PostgresOptions};
use servers::{Error, NatsAccess};
use servers::{NatsTarget, PostgresTarget};
use support::{TestEnv, TestEnvOptions};

use super::certificates::{Certificates, Pair};

/// Both servers have this certificate, and take also those who come without TLS.
async fn env(server: &Pair) -> TestEnv {
    let (cert, key) = server.texts().expect("read the certificate");
    let own = |text: &str| text.to_owned();
    let settings = [("ssl", "on"), ("ssl_cert_file", "own.pem"), ("ssl_key_file", "own.key")];
    let postgres = PostgresOptions {
        settings: settings.map(|(name, value)| (own(name), own(value))).into(),
        files: vec![(own("own.pem"), cert), (own("own.key"), key)],
        ..PostgresOptions::default()
    };
    let tls = format!(
        "allow_non_tls: true\ntls {{ cert_file: {:?}, key_file: {:?} }}",
        server.cert, server.key
    );
    let nats = NatsOptions { config: vec![tls], ..NatsOptions::default() };
    TestEnv::with(TestEnvOptions { postgres, nats, ..TestEnvOptions::default() }).await
}

fn postgres_url(env: &TestEnv, host: &str, sslmode: &str, roots: &Pair) -> String {
    let (port, roots) = (env.postgres.port(), roots.cert.display());
    format!("postgres://postgres@{host}:{port}/postgres?sslmode={sslmode}&sslrootcert={roots}")
}

async fn enter(env: &TestEnv, sslmode: &str, roots: &Pair) -> Result<(), Error> {
    let target: PostgresTarget =
        postgres_url(env, "localhost", sslmode, roots).parse().expect("a valid target");
    target.connect("test").await.map(drop)
}

async fn enter_nats(env: &TestEnv, roots: &Pair) -> Result<(), Error> {
    let access = NatsAccess { ca: Some(roots.cert.clone()), ..NatsAccess::default() };
    let url = format!("tls://localhost:{}", env.nats.port());
    NatsTarget::new(&url, access).expect("a valid target").connect("test").await.map(drop)
}

/// The whole way, the replication connection included.
#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_that_is_named_as_a_root_is_trusted() {
    let certificates = Certificates::issue("relay").expect("issue certificates");
    let mut env = env(&certificates.own()).await;
    env.set("NATS_URL", &format!("tls://localhost:{}", env.nats.port()));
    let own = certificates.own();
    env.set("TAILPOST_NATS__CA", own.cert.to_str().expect("UTF-8"));
    for (host, sslmode) in [("localhost", "verify-full"), ("127.0.0.1", "verify-ca")] {
        env.set("DATABASE_URL", &postgres_url(&env, host, sslmode, &own));
        env.setup().await;
        let relay = env.relay();
        env.insert(20).await;
        env.wait_marked().await;
        let encrypted = "SELECT count(*) FROM pg_stat_replication JOIN pg_stat_ssl USING (pid)
                         WHERE ssl";
        assert_eq!(env.query::<i64>(encrypted).await, 1, "{}", relay.log());
        env.ends_with(0, &["doctor"]).await;
        relay.sigterm();
        relay.wait_exit(support::DEADLINE).await;
    }
}

/// The name still counts, and so does which certificate it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_self_signed_certificate_of_another_host_or_server_is_refused() {
    let certificates = Certificates::issue("relay").expect("issue certificates");
    let (own, stray) = (certificates.own(), certificates.own_stray());
    let env = env(&stray).await;
    enter(&env, "verify-ca", &stray).await.expect("the certificate is trusted");
    let error = enter(&env, "verify-full", &stray).await.expect_err("another host");
    assert!(error.hint().is_some_and(|it| it.contains("subjectAltName")), "{error:?}");
    let error = enter_nats(&env, &stray).await.expect_err("another host");
    assert!(error.hint().is_some_and(|it| it.contains("subjectAltName")), "{error:?}");
    let error = enter(&env, "verify-ca", &own).await.expect_err("another certificate");
    assert!(error.is_refusal() && error.hint().is_some_and(|it| it.contains("sslrootcert")));
    enter_nats(&env, &own).await.expect_err("another certificate");
}
