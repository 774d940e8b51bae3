use anyhow::{Context, Result};
use lab::{Postgres, PostgresOptions};
use pgwire_replication::ReplicationClient;
use servers::PostgresTarget;

use super::certificates::{Certificates, Pair};

const HBA: &str = "\
local   all all                     trust
host    all postgres   127.0.0.1/32 trust
hostssl all certified  127.0.0.1/32 cert
hostssl all scrambled  127.0.0.1/32 scram-sha-256
host    all plain      127.0.0.1/32 scram-sha-256
";

/// A server that speaks TLS with the given certificate, and roles for each way to get in.
async fn start(certificates: &Certificates, server: &Pair) -> Result<Postgres> {
    let (cert, key) = server.texts()?;
    let ca = std::fs::read_to_string(certificates.ca())?;
    let settings = [
        ("ssl", "on"),
        ("ssl_cert_file", "server.pem"),
        ("ssl_key_file", "server.key"),
        ("ssl_ca_file", "ca.pem"),
    ];
    let files =
        [("server.pem", cert), ("server.key", key), ("ca.pem", ca), ("pg_hba.conf", HBA.into())];
    let postgres = Postgres::start(PostgresOptions {
        settings: settings.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        files: files.map(|(k, v)| (k.to_owned(), v)).into(),
        ..PostgresOptions::default()
    })
    .await?;
    postgres
        .client("postgres")
        .await?
        .batch_execute(
            "CREATE ROLE certified LOGIN REPLICATION;
             CREATE ROLE scrambled LOGIN REPLICATION PASSWORD 'p@ss/w:rd';
             CREATE ROLE plain LOGIN REPLICATION PASSWORD 'plain';",
        )
        .await?;
    Ok(postgres)
}

/// Who trusts the system's authorities has every certificate verified.
#[tokio::test]
async fn the_systems_authorities_refuse_a_server_that_they_did_not_certify() -> Result<()> {
    let certificates = Certificates::issue("certified")?;
    let postgres = start(&certificates, &certificates.server()).await?;
    let address = format!("plain:plain@localhost:{}/postgres", postgres.port());
    let error = refusal(&format!("postgres://{address}?sslrootcert=system")).await;
    assert!(error.is_refusal() && error.hint().is_some_and(|it| it.contains("sslrootcert")));
    Ok(())
}

/// Opens both kinds of connections. Returns the SQL user and whether TLS was used.
async fn enter(dsn: &str) -> Result<(String, bool)> {
    let target: PostgresTarget = dsn.parse()?;
    let (client, _connection) = target.connect("test").await?;
    let row = client
        .query_one(
            "SELECT current_user::text,
                    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)",
            &[],
        )
        .await?;
    let config = target.replication_config("tailpost", "tailpost").await?;
    let mut replication = ReplicationClient::connect_gated(config).await?;
    let identity = replication.identify_system().await.context("replication")?;
    assert_eq!(identity.timeline, 1);
    replication.abort();
    Ok((row.get(0), row.get(1)))
}

/// The refusal of the SQL connection.
async fn refusal(dsn: &str) -> servers::Error {
    let target: PostgresTarget = dsn.parse().expect("a valid target");
    target.connect("test").await.map(drop).expect_err(dsn)
}

#[tokio::test]
async fn postgresql_lets_in_by_scram_certificate_and_socket() -> Result<()> {
    let certificates = Certificates::issue("certified")?;
    let postgres = start(&certificates, &certificates.server()).await?;
    let port = postgres.port();
    let ca = certificates.ca();
    let (ca, client) = (ca.display(), certificates.client());
    let scrambled = format!("postgres://scrambled:p%40ss%2Fw%3Ard@127.0.0.1:{port}/postgres");
    let certified = format!(
        "postgres://certified@localhost:{port}/postgres?sslmode=verify-full&sslrootcert={ca}\
         &sslcert={}&sslkey={}",
        client.cert.display(),
        client.key.display()
    );
    let socket = postgres.socket_dir().display();
    for (dsn, user, tls) in [
        (scrambled.clone(), "scrambled", true),
        (format!("{scrambled}?sslmode=require"), "scrambled", true),
        (format!("{scrambled}?sslmode=verify-ca&sslrootcert={ca}"), "scrambled", true),
        (format!("{scrambled}?sslmode=verify-full&sslrootcert={ca}"), "scrambled", true),
        (
            format!("postgres://plain:plain@127.0.0.1:{port}/postgres?sslmode=disable"),
            "plain",
            false,
        ),
        (certified, "certified", true),
        (format!("host={socket} port={port} user=postgres sslmode=require"), "postgres", false),
    ] {
        let entered = enter(&dsn).await.with_context(|| dsn.clone())?;
        assert_eq!(entered, (user.to_owned(), tls), "{dsn}");
    }
    Ok(())
}

#[tokio::test]
async fn postgresql_refuses_with_a_reason_and_a_hint() -> Result<()> {
    let certificates = Certificates::issue("certified")?;
    let postgres = start(&certificates, &certificates.server()).await?;
    let port = postgres.port();
    let foreign = certificates.foreign_ca();
    let (foreign, client) = (foreign.display(), certificates.client());
    for (dsn, hint) in [
        (format!("postgres://scrambled:wrong@127.0.0.1:{port}/postgres"), "password"),
        (format!("postgres://scrambled@127.0.0.1:{port}/postgres"), "put one into the URL"),
        (format!("postgres://plain:plain@127.0.0.1:{port}/nowhere"), "database name"),
        (format!("postgres://scrambled:x@127.0.0.1:{port}/postgres?sslmode=disable"), "pg_hba"),
        (format!("postgres://certified@127.0.0.1:{port}/postgres"), "client certificate"),
        (
            format!(
                "postgres://plain:plain@127.0.0.1:{port}/postgres?sslmode=require\
                 &sslrootcert={foreign}"
            ),
            "sslrootcert",
        ),
    ] {
        let error = refusal(&dsn).await;
        // Somebody may replace the file.
        assert_eq!(error.is_transient(), dsn.contains("sslrootcert"), "{dsn}: {error:?}");
        assert!(error.is_refusal(), "{dsn}: {error:?}");
        assert!(error.hint().is_some_and(|it| it.contains(hint)), "{dsn}: {:?}", error.hint());
    }
    let mismatched = format!(
        "postgres://certified@127.0.0.1:{port}/postgres?sslcert={}&sslkey={}",
        client.cert.display(),
        certificates.server().key.display()
    );
    assert!(refusal(&mismatched).await.to_string().contains("client key"));
    Ok(())
}

#[tokio::test]
async fn a_certificate_for_another_host_passes_verify_ca_and_not_verify_full() -> Result<()> {
    let certificates = Certificates::issue("certified")?;
    let postgres = start(&certificates, &certificates.stray_server()).await?;
    let dsn = format!(
        "postgres://plain:plain@localhost:{}/postgres?sslrootcert={}",
        postgres.port(),
        certificates.ca().display()
    );
    let target: PostgresTarget = format!("{dsn}&sslmode=verify-ca").parse()?;
    target.connect("test").await?;
    let error = refusal(&format!("{dsn}&sslmode=verify-full")).await;
    assert!(error.is_refusal() && error.is_renewable(), "{error:?}");
    assert!(error.hint().is_some_and(|it| it.contains("subjectAltName")), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn without_tls_on_the_server_prefer_goes_on_and_require_does_not() -> Result<()> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let url = postgres.url("postgres");
    assert_eq!(enter(&url).await?, ("postgres".to_owned(), false));
    for wanted in ["sslmode=require", "sslrootcert=system"] {
        let error = refusal(&format!("{url}?{wanted}")).await;
        assert!(error.hint().is_some_and(|it| it.contains("postgresql.conf")), "{error:?}");
    }
    Ok(())
}

#[tokio::test]
async fn dropping_the_connection_task_closes_the_connection() -> Result<()> {
    let postgres = Postgres::start(PostgresOptions::default()).await?;
    let target: PostgresTarget = postgres.url("postgres").parse()?;
    let (client, connection) = target.connect("test").await?;
    client.simple_query("SELECT 1").await?;
    drop(connection);
    assert!(client.simple_query("SELECT 1").await.is_err());
    Ok(())
}
