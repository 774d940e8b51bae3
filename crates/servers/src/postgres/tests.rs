use super::parsed::{KEEPALIVE_IDLE, TCP_USER_TIMEOUT};
use super::*;

fn target(dsn: &str) -> PostgresTarget {
    dsn.parse().unwrap_or_else(|error| panic!("{dsn}: {error}"))
}

fn refusal(dsn: &str) -> String {
    match dsn.parse::<PostgresTarget>() {
        Ok(target) => panic!("{dsn} was taken as {target}"),
        Err(error) => {
            assert!(error.is_configuration());
            error.to_string()
        }
    }
}

#[test]
fn both_forms_of_connection_strings_are_understood() {
    for (dsn, display) in [
        ("postgres://ada@db.example/shop", "postgres://ada@db.example:5432/shop"),
        ("postgresql://ada:s3cret@db.example:6000/shop", "postgres://ada@db.example:6000/shop"),
        ("postgres://ada@db.example", "postgres://ada@db.example:5432/ada"),
        ("postgres://ada@[::1]:6000/shop", "postgres://ada@[::1]:6000/shop"),
        ("postgres://a%40b:p%40w@db/s%2Fh", "postgres://a%40b@db:5432/s%2Fh"),
        ("postgres:///shop?user=ada&host=/run/pg", "postgres://ada@%2Frun%2Fpg:5432/shop"),
        ("postgres://ada@%2Frun%2Fpg:6000/shop", "postgres://ada@%2Frun%2Fpg:6000/shop"),
        ("host=db.example user=ada", "postgres://ada@db.example:5432/ada"),
        ("host=/run/pg port=6000 user=ada dbname=shop", "postgres://ada@%2Frun%2Fpg:6000/shop"),
        ("hostaddr=10.0.0.1 user=ada", "postgres://ada@10.0.0.1:5432/ada"),
    ] {
        assert_eq!(target(dsn).to_string(), display, "{dsn}");
    }
}

#[test]
fn the_user_of_the_process_is_the_default_user() {
    let user = whoami::username().expect("tests run as somebody");
    let target = target("postgres://db.example");
    assert_eq!(target.user_and_dbname(), (user.as_str(), user.as_str()));
}

#[test]
fn the_password_is_shown_nowhere() {
    for dsn in [
        "postgres://ada:s3cret@db.example/shop?sslmode=require",
        "user=ada password=s3cret host=db.example",
    ] {
        let target = target(dsn);
        for shown in [target.to_string(), format!("{target:?}"), format!("{target:#?}")] {
            assert!(!shown.contains("s3cret"), "{shown}");
            assert!(shown.contains("ada"), "{shown}");
        }
    }
    for dsn in [
        "postgres://ada:s3cret@s3cret@db.example/shop",
        "postgres://ada:s3cret@db.example:s3cret/shop",
        "postgres://ada:s3cret@db.example/shop?sslmode=maybe",
        "user=ada password='s3cret",
        "mysql://ada:s3cret@db.example",
    ] {
        let shown = refusal(dsn);
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}

#[test]
fn what_cannot_work_is_refused_with_its_setting() {
    for (dsn, part) in [
        ("postgres://db/shop?sslmode=maybe", "`maybe` is none of disable, prefer"),
        ("postgres://db/shop?sslcert=/c.pem", "sslcert and sslkey go together"),
        ("postgres://db/shop?sslrootcert=system&sslmode=require", "set sslmode=verify-full"),
        ("host=db sslmode=disable sslrootcert=system", "set sslmode=verify-full"),
        ("postgres://a,b/shop", "one host"),
        ("postgres://db/shop?port=6000", "one port"),
        ("postgres://db/shop?colour=blue", "colour"),
        ("postgres://db:port/shop", "port"),
        ("postgres://db/shop?channel_binding=require", "channel_binding"),
        ("postgres://db/shop?sslnegotiation=direct", "sslnegotiation"),
        ("localhost", "postgres://"),
    ] {
        let refusal = refusal(dsn);
        assert!(refusal.contains(part), "{dsn}: {refusal}");
    }
}

#[test]
fn dead_connections_are_noticed_unless_asked_otherwise() {
    let defaults = target("postgres://ada@db").sql_config("test");
    assert_eq!(defaults.get_connect_timeout(), Some(&CONNECT_TIMEOUT));
    assert_eq!(defaults.get_tcp_user_timeout(), Some(&TCP_USER_TIMEOUT));
    assert_eq!(defaults.get_keepalives_idle(), KEEPALIVE_IDLE);
    assert_eq!(defaults.get_application_name(), Some("test"));

    let asked = target(
        "postgres://ada@db?connect_timeout=3&tcp_user_timeout=4&keepalives_idle=5\
         &application_name=mine",
    );
    assert_eq!(asked.connect_timeout(), Duration::from_secs(3));
    let asked = asked.sql_config("test");
    assert_eq!(asked.get_tcp_user_timeout(), Some(&Duration::from_secs(4)));
    assert_eq!(asked.get_keepalives_idle(), Duration::from_secs(5));
    assert_eq!(asked.get_application_name(), Some("mine"));
}

#[test]
fn the_url_wins_over_settings_beside_it() {
    let beside = PostgresTls {
        sslmode: Some(SslMode::VerifyFull),
        sslrootcert: Some("/beside.pem".into()),
        ..PostgresTls::default()
    };
    let target = PostgresTarget::new("postgres://ada@db?sslmode=disable", beside.clone());
    assert_eq!(target.expect("valid").sslmode, SslMode::Disable);
    let target = PostgresTarget::new("postgres://ada@db?sslrootcert=/url.pem", beside);
    let target = target.expect("valid");
    assert_eq!(target.sslmode, SslMode::VerifyFull);
    assert_eq!(target.roots, Some("/url.pem".into()));
    let system = PostgresTls { sslrootcert: Some("system".into()), ..PostgresTls::default() };
    let target = PostgresTarget::new("postgres://ada@db", system.clone()).expect("valid");
    assert_eq!((target.sslmode, target.roots), (SslMode::VerifyFull, None));
    let weak = PostgresTarget::new("postgres://ada@db?sslmode=prefer", system);
    assert!(weak.expect_err("not verified").is_configuration());
}

#[tokio::test]
async fn replication_uses_the_same_server_and_the_same_tls() {
    let config = target(
        "postgres://ada:s3cret@10.0.0.1:6000/shop?sslmode=verify-full&sslrootcert=/ca.pem\
         &sslcert=/c.pem&sslkey=/k.pem&options=-c%20x%3Dy",
    )
    .replication_config("slot_1", "pub_1")
    .await
    .expect("valid names");
    assert_eq!((config.host.as_str(), config.port), ("10.0.0.1", 6000));
    assert_eq!((config.user.as_str(), config.password.as_str()), ("ada", "s3cret"));
    assert_eq!((config.database.as_str(), config.slot.as_str()), ("shop", "slot_1"));
    assert_eq!(config.publication.names(), ["pub_1"]);
    assert_eq!(config.options.as_deref(), Some("-c x=y"));
    assert_eq!(config.tls.mode, ReplicationSslMode::VerifyFull);
    assert_eq!(config.tls.ca_pem_path, Some("/ca.pem".into()));
    assert_eq!(config.tls.sni_hostname.as_deref(), Some("10.0.0.1"));
    assert!(config.tls.is_mtls());
    assert!(config.binary);
    assert_eq!(config.status_interval, Duration::from_millis(100));
    assert_eq!(config.application_name.as_deref(), Some("tailpost"));
}

#[tokio::test]
async fn replication_maps_the_modes_as_libpq_does() {
    for (dsn, mode) in [
        ("postgres://ada@db", ReplicationSslMode::Prefer),
        ("postgres://ada@db?sslmode=disable", ReplicationSslMode::Disable),
        ("postgres://ada@db?sslmode=require", ReplicationSslMode::Require),
        ("postgres://ada@db?sslrootcert=system", ReplicationSslMode::VerifyFull),
        ("postgres://ada@db?sslmode=require&sslrootcert=/ca.pem", ReplicationSslMode::VerifyCa),
        ("postgres://ada@db?sslmode=verify-ca&sslrootcert=/ca.pem", ReplicationSslMode::VerifyCa),
        ("postgres:///shop?host=/run/pg&sslmode=require", ReplicationSslMode::Disable),
    ] {
        let config = target(dsn).replication_config("s", "p").await.expect("valid names");
        assert_eq!(config.tls.mode, mode, "{dsn}");
    }
}

#[tokio::test]
async fn a_missing_password_is_not_replaced_by_a_guess() {
    let config =
        target("postgres://ada@db").replication_config("s", "p").await.expect("valid names");
    assert_eq!(config.password, "");
}

#[tokio::test]
async fn names_that_would_have_to_be_quoted_are_refused() {
    let target = target("postgres://ada@db");
    for name in ["", "Slot", "a-b", "a b", "a'; drop", "ä", &"x".repeat(64)] {
        assert!(target.replication_config(name, "p").await.is_err(), "slot {name}");
        assert!(target.replication_config("s", name).await.is_err(), "publication {name}");
    }
    target.replication_config(&"x".repeat(63), "p_2").await.expect("allowed names");
}

#[tokio::test]
async fn a_missing_root_file_is_named_when_connecting() {
    let target = target("postgres://ada@127.0.0.1:1/db?sslmode=verify-ca&sslrootcert=/no/ca.pem");
    let error = target.connect("test").await.expect_err("no such file");
    assert_eq!(error.to_string(), "could not load root certificates from /no/ca.pem");
    assert!(!error.is_transient());
}

#[tokio::test]
async fn an_absent_server_is_a_transient_error_that_names_it() {
    // Port 1 is reserved and nothing listens there.
    let target = target("postgres://ada:s3cret@127.0.0.1:1/db");
    let error = target.connect("test").await.expect_err("nobody listens");
    assert_eq!(error.to_string(), "could not connect to postgres://ada@127.0.0.1:1/db");
    assert!(error.is_transient());
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn a_password_is_read_for_each_connection() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("password");
    let source = SecretSource::File(path.clone());
    let target = target("postgres://ada@db").with_password(source.clone()).expect("one password");
    for password in ["old", "new"] {
        std::fs::write(&path, format!("{password}\n")).expect("write");
        let config = target.replication_config("s", "p").await.expect("a password");
        assert_eq!(config.password, password);
    }
    assert!(!format!("{target:?} {target}").contains("new"));
    let both = super::tests::target("postgres://ada:pw@db").with_password(source);
    let error = both.expect_err("two passwords").to_string();
    assert!(error.contains("postgres.password_file") && !error.contains("pw"), "{error}");
}

#[tokio::test]
async fn the_server_itself_is_known_by_one_connection() {
    let postgres = lab::Postgres::start(lab::PostgresOptions::default()).await.expect("start it");
    let server = ([127, 0, 0, 1], postgres.port()).into();
    let network = lab::Proxy::start(server).await.expect("start a proxy");
    let target = target(&format!("postgres://postgres@{}/postgres", network.addr()));
    target.connect("test").await.expect("connect");
    assert_eq!(network.accepted(), 1);
}
