use super::*;

const SEED: &str = "SUAIO3FHUX5PNV2LQIIP7TZ3N4L7TX3W53MQGEIVYFIGA635OZCKEYHFLM";

fn target(servers: &str) -> NatsTarget {
    servers.parse().unwrap_or_else(|error| panic!("{servers}: {error}"))
}

fn refusal(servers: &str, access: NatsAccess) -> String {
    match NatsTarget::new(servers, access) {
        Ok(target) => panic!("{servers} was taken as {target:?}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn addresses_are_understood() {
    for (servers, display) in [
        ("nats://n1.example", "nats://n1.example:4222"),
        ("n1.example:4223", "nats://n1.example:4223"),
        ("tls://n1.example:4443", "tls://n1.example:4443"),
        ("nats://127.0.0.1:4222/", "nats://127.0.0.1:4222"),
        ("nats://[::1]:4222", "nats://[::1]:4222"),
        ("nats://n1:4222, nats://n2:4222,", "nats://n1:4222,nats://n2:4222"),
        ("nats://ada:pw@n1,nats://ada:pw@n2", "nats://n1:4222,nats://n2:4222"),
        ("nats://ada:pw@n1,nats://n2", "nats://n1:4222,nats://n2:4222"),
    ] {
        assert_eq!(target(servers).to_string(), display, "{servers}");
    }
}

#[test]
fn credentials_are_taken_from_the_url() {
    for (servers, credentials) in [
        ("nats://n1", Credentials::None),
        ("nats://t0ken@n1", Credentials::Token("t0ken".into())),
        ("nats://a%40b:p%3Aw@n1", Credentials::UserPassword("a@b".into(), "p:w".into())),
    ] {
        assert_eq!(target(servers).credentials, credentials, "{servers}");
    }
}

#[test]
fn credentials_are_taken_from_the_settings() {
    let check = |access: NatsAccess, expected: Credentials| {
        assert_eq!(NatsTarget::new("nats://n1", access).expect("valid").credentials, expected);
    };
    check(
        NatsAccess { nkey: Some(SEED.into()), ..NatsAccess::default() },
        Credentials::NkeySeed(SEED.into()),
    );
    check(
        NatsAccess { nkey: Some("/etc/relay.nk".into()), ..NatsAccess::default() },
        Credentials::NkeyFile("/etc/relay.nk".into()),
    );
    check(
        NatsAccess { creds: Some("/etc/relay.creds".into()), ..NatsAccess::default() },
        Credentials::CredsFile("/etc/relay.creds".into()),
    );
}

#[test]
fn what_cannot_work_is_refused() {
    let none = NatsAccess::default;
    for servers in ["", " , ", "http://n1", "ws://n1", "nats://", "nats://n1/path", "nats://n1:x"] {
        refusal(servers, none());
    }
    assert!(refusal("nats://ada:@n1", none()).contains("password is empty"));
    assert!(refusal("nats://a:1@n1,nats://b:2@n2", none()).contains("different credentials"));
    let token = || NatsAccess { token: Some("t0ken".into()), ..none() };
    assert!(refusal("nats://ada:pw@n1", token()).contains("once"));
    assert!(
        refusal("nats://n1", NatsAccess { nkey: Some(SEED.into()), ..token() }).contains("once")
    );
    let lonely = NatsAccess { user: Some("ada".into()), ..none() };
    assert!(refusal("nats://n1", lonely).contains("nats.password"));
    let lonely = NatsAccess { cert: Some("/c.pem".into()), ..none() };
    assert!(refusal("nats://n1", lonely).contains("nats.key"));
}

#[test]
fn secrets_are_shown_nowhere() {
    let access = NatsAccess {
        nkey: Some(SEED.into()),
        token: Some("t0ken".into()),
        password: Some("s3cret".into()),
        ..NatsAccess::default()
    };
    let settings = format!("{access:?}");
    let targets = ["nats://ada:s3cret@n1", "nats://t0ken@n1"]
        .map(target)
        .map(|it| format!("{it} {it:?} {it:#?}"));
    let nkey =
        NatsTarget::new("n1", NatsAccess { nkey: Some(SEED.into()), ..NatsAccess::default() });
    let nkey = format!("{:?}", nkey.expect("valid"));
    for shown in targets.iter().chain([&settings, &nkey]) {
        for secret in ["s3cret", "t0ken", SEED] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }
}

#[test]
fn reconnecting_starts_at_once_and_slows_down_to_a_second() {
    assert_eq!(reconnect_delay(0), Duration::ZERO);
    assert_eq!(reconnect_delay(1), Duration::ZERO);
    for attempt in 2..200 {
        let delay = reconnect_delay(attempt);
        assert!(delay >= Backoff::NATS.first / 2 && delay <= Backoff::NATS.max, "{delay:?}");
    }
    assert!(reconnect_delay(usize::MAX) >= Backoff::NATS.max / 2);
}

#[test]
fn a_reconnect_is_told_from_no_change() {
    let (sender, watcher) = watch::channel(NatsLink::default());
    for event in [Event::Connected, Event::Disconnected, Event::Connected] {
        observe(&sender, ("nats://n1", "_INBOX"), Renewed::default(), &event);
    }
    let expected = NatsLink { connected: true, connects: 2, ..NatsLink::default() };
    assert_eq!(*watcher.borrow(), expected);
}

#[test]
fn who_is_not_let_in_says_what_helps_until_it_is() {
    let (sender, watcher) = watch::channel(NatsLink::default());
    let renewed = Renewed { login: Some("nats.creds"), ..Renewed::default() };
    let kind = async_nats::ConnectErrorKind::AuthorizationViolation;
    let refused = Event::ClientError(async_nats::ClientError::Other(kind.to_string()));
    // The server says it first, when it ends the connection.
    let ended = Event::ServerError(async_nats::ServerError::AuthorizationViolation);
    for event in [&ended, &refused, &refused] {
        observe(&sender, ("nats://n1", "_INBOX"), renewed, event);
    }
    let told = watcher.borrow().refused.clone().expect("it is refused");
    assert!(told.contains("authorization violation (renew what nats.creds gives"), "{told}");
    observe(&sender, ("nats://n1", "_INBOX"), renewed, &Event::Connected);
    assert_eq!(watcher.borrow().refused, None);
}

#[tokio::test]
async fn an_absent_server_fails_at_once_instead_of_being_retried() {
    // Port 1 is reserved and nothing listens there.
    let target = target("nats://ada:s3cret@127.0.0.1:1");
    let error = target.connect("test").await.expect_err("nobody listens");
    assert_eq!(error.to_string(), "could not connect to nats://127.0.0.1:1");
    assert!(error.is_transient());
}

#[tokio::test]
async fn missing_files_are_named() {
    let connect = async |access: NatsAccess| {
        let target = NatsTarget::new("nats://127.0.0.1:1", access).expect("valid");
        let error = target.connect("test").await.expect_err("no such file");
        assert!(error.is_configuration(), "{error}");
        error.to_string()
    };
    let none = NatsAccess::default;
    let error = connect(NatsAccess { ca: Some("/no/ca.pem".into()), ..none() }).await;
    assert_eq!(error, "could not load root certificates from /no/ca.pem");
    let error = connect(NatsAccess { creds: Some("/no/relay.creds".into()), ..none() }).await;
    assert_eq!(error, "could not load NATS credentials from /no/relay.creds");
    let error = connect(NatsAccess { nkey: Some("/no/relay.nk".into()), ..none() }).await;
    assert_eq!(error, "could not load NKey seed from /no/relay.nk");
}
