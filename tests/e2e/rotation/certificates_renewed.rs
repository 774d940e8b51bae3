//! Certificates and authorities of both servers.

use std::net::{Ipv4Addr, SocketAddr};

use lab::{NatsOptions, Proxy};
use support::TestEnv;

use super::{Running, Secrets, database, make_tables, set_up};
use crate::connections::certificates::{Certificates, Pair};

fn read(path: &std::path::Path) -> String {
    std::fs::read_to_string(path).expect("read a certificate")
}

/// Puts a client certificate with its key, in one file, and the authorities to trust where the relay
/// reads them.
fn renew(secrets: &Secrets, client: &Pair, authorities: &[&Certificates]) {
    let (cert, key) = client.texts().expect("a certificate");
    secrets.renew("client.pem", &format!("{cert}{key}"));
    secrets.renew("ca.pem", &roots(authorities));
}

fn roots(authorities: &[&Certificates]) -> String {
    authorities.iter().map(|it| read(&it.ca())).collect()
}

/// Names the three files in variables that begin so.
fn name(env: &mut TestEnv, secrets: &Secrets, prefix: &str, names: [&str; 3]) {
    for (name, file) in names.into_iter().zip(["ca.pem", "client.pem", "client.pem"]) {
        env.set(&format!("{prefix}{name}"), secrets.path(file).to_str().expect("UTF-8"));
    }
}

/// The files of a server with a certificate of `own`, which lets in whom `trusted` certify.
fn server_files(own: &Certificates, trusted: &[&Certificates]) -> [(&'static str, String); 3] {
    let (cert, key) = own.server().texts().expect("a certificate");
    [("server.pem", cert), ("server.key", key), ("ca.pem", roots(trusted))]
}

async fn renew_postgres(env: &TestEnv, own: &Certificates, trusted: &[&Certificates]) {
    for (name, text) in server_files(own, trusted) {
        env.postgres.write_file(name, &text).expect("write a certificate");
    }
    env.postgres.reload().await.expect("reload");
}

fn tls(secrets: &Secrets) -> String {
    // Only the lab's own client goes without: it has none of these certificates.
    let path = |file| secrets.path(file).display().to_string();
    format!(
        "allow_non_tls: true\n\
         tls {{ cert_file: {:?}, key_file: {:?}, ca_file: {:?}, verify: true }}",
        path("server.pem"),
        path("server.key"),
        path("server-ca.pem")
    )
}

fn renew_server(secrets: &Secrets, own: &Certificates, trusted: &[&Certificates]) {
    let [(_, cert), (_, key), (_, ca)] = server_files(own, trusted);
    secrets.renew("server.pem", &cert);
    secrets.renew("server.key", &key);
    secrets.renew("server-ca.pem", &ca);
}

// proves: G-CRED-3
#[tokio::test(flavor = "multi_thread")]
async fn certificates_for_nats_are_replaced_under_load() {
    let issue = || Certificates::issue("relay").expect("certificates");
    let (old, new) = (issue(), issue());
    let (secrets, servers) = (Secrets::new(), Secrets::new());
    renew_server(&servers, &old, &[&old]);
    let config = vec![tls(&servers)];
    let nats = NatsOptions { config: config.clone(), ..NatsOptions::default() };
    let mut env = set_up(database(&[], &[]), nats).await;
    let upstream = SocketAddr::from((Ipv4Addr::LOCALHOST, env.nats.port()));
    let mut proxy = Proxy::start(upstream).await.expect("a proxy");
    env.set("NATS_URL", &format!("tls://localhost:{}", proxy.addr().port()));
    renew(&secrets, &old.client(), &[&old]);
    name(&mut env, &secrets, "TAILPOST_NATS__", ["CA", "CERT", "KEY"]);
    make_tables(&env).await;
    let mut running = Running::start(env).await;

    let links = running.links();
    renew(&secrets, &old.client(), &[&old, &new]);
    renew_server(&servers, &new, &[&old, &new]);
    running.env.nats.reload(config.clone(), None).await.expect("reload");
    renew(&secrets, &new.client(), &[&old, &new]);
    renew_server(&servers, &new, &[&new]);
    running.env.nats.reload(config, None).await.expect("reload");
    // The server leaves connections as they are.
    proxy.cut().await;
    proxy.restore().await.expect("restore the network");
    running.links_are_back(links).await;
    running.goes_on().await;

    renew(&secrets, &old.client(), &[&new]);
    let (_, said) = running.env.ends_with(4, &["setup"]).await;
    assert!(said.contains("could not connect to tls://localhost"), "{said}");
    renew(&secrets, &new.client(), &[&new]);
    running.end(&["PRIVATE KEY"]).await;
}

mod long {
    use super::*;

    /// First both sides trust both authorities; then the certificates change; then the old authority goes.
    // proves: G-CRED-3
    #[tokio::test(flavor = "multi_thread")]
    async fn certificates_for_postgresql_are_replaced_under_load() {
        let issue = || Certificates::issue("certified").expect("certificates");
        let (old, new) = (issue(), issue());
        let settings = [
            ("ssl", "on"),
            ("ssl_cert_file", "server.pem"),
            ("ssl_key_file", "server.key"),
            ("ssl_ca_file", "ca.pem"),
        ];
        let postgres = database(&settings, &server_files(&old, &[&old]));
        let mut env = set_up(postgres, NatsOptions::default()).await;
        make_tables(&env).await;
        env.execute("CREATE ROLE certified LOGIN SUPERUSER REPLICATION").await;
        let port = env.postgres.port();
        let url = format!("postgres://certified@localhost:{port}/postgres?sslmode=verify-full");
        env.set("DATABASE_URL", &url);
        let secrets = Secrets::new();
        renew(&secrets, &old.client(), &[&old]);
        name(&mut env, &secrets, "TAILPOST_POSTGRES__", ["SSLROOTCERT", "SSLCERT", "SSLKEY"]);
        let running = Running::start(env).await;

        renew(&secrets, &old.client(), &[&old, &new]);
        renew_postgres(&running.env, &new, &[&old, &new]).await;
        renew(&secrets, &new.client(), &[&old, &new]);
        renew_postgres(&running.env, &new, &[&new]).await;
        running.end_connections("certified").await;
        renew(&secrets, &new.client(), &[&new]);
        running.end_connections("certified").await;

        renew(&secrets, &old.client(), &[&new]);
        let (_, said) = running.env.ends_with(4, &["setup"]).await;
        assert!(said.contains("could not connect to postgres://certified@"), "{said}");
        renew(&secrets, &new.client(), &[&new]);
        running.end(&["PRIVATE KEY"]).await;
    }
}
