//! Who may do what over HTTP.

use std::net::SocketAddr;

use lab::Port;
use support::{DEADLINE, TestEnv, ask, get, until};
use tokio::net::TcpSocket;
use uuid::Uuid;

/// An answer's status, and the answer.
async fn code(
    from: &str,
    to: SocketAddr,
    (method, path): (&str, &str),
    headers: &str,
    body: &str,
) -> (u16, String) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{from}:0").parse().expect("an address")).expect("bind to loopback");
    let stream = socket.connect(to).await.expect("connect");
    let headers = format!("Host: {to}\r\nContent-Type: application/json\r\n{headers}");
    let told = ask(stream, method, path, headers.trim_end(), body).await.expect("an answer");
    let code = told.split(' ').nth(1).and_then(|it| it.parse().ok());
    (code.unwrap_or_else(|| panic!("no HTTP: {told}")), told)
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// Three tokens in files, of which one is replaced and then removed while the relay runs.
// proves: G-DOOR-3
#[tokio::test(flavor = "multi_thread")]
async fn a_token_gives_a_role_and_is_replaced_while_the_relay_runs() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let folder = tempfile::tempdir().expect("create a folder");
    let file = |role: &str| folder.path().join(role);
    let mut tokens = Vec::new();
    for role in ["viewer", "operator", "admin"] {
        std::fs::write(file(role), format!("{role}-token\n")).expect("write a token");
        tokens.push(format!("{role}:{}", file(role).display()));
    }
    let admin = Port::reserve().expect("a free port");
    let to = admin.addr();
    env.set("TAILPOST_ADMIN__LISTEN", &to.to_string());
    env.set("TAILPOST_ADMIN__TOKENS", &tokens.join(","));
    let relay = env.relay();
    until(DEADLINE, "it listens", async || get(to, "/livez").await.is_some()).await;

    let discard = format!("/api/v1/outbox/dead-letter/{}", Uuid::new_v4());
    let with_payload = format!("{discard}?payload=true");
    let why = "{\"why\": \"tests\"}";
    for (request, body, codes) in [
        (("GET", "/metrics"), "", [401, 200, 200, 200]),
        (("GET", "/api/v1/status"), "", [401, 200, 200, 200]),
        (("GET", &*discard), "", [401, 404, 404, 404]),
        (("GET", &*with_payload), "", [401, 403, 404, 404]),
        (("DELETE", &*discard), why, [401, 403, 404, 404]),
        (("GET", "/api/v1/config"), "", [401, 403, 403, 200]),
        (("GET", "/api/v1/me"), "", [401, 200, 200, 200]),
        (("GET", "/api/v1/audit"), "", [401, 200, 200, 200]),
        (("GET", "/api/v1/retention"), "", [401, 200, 200, 200]),
        (("GET", "/api/v1/outbox/dead-letter/operations"), "", [401, 200, 200, 200]),
    ] {
        let who = ["no-token", "viewer-token", "operator-token", "admin-token"];
        for (token, expected) in who.into_iter().zip(codes) {
            let (code, told) = code("127.0.0.1", to, request, &bearer(token), body).await;
            assert_eq!(code, expected, "{request:?} with {token}: {told}");
            if code >= 400 {
                assert!(told.contains("application/problem+json"), "{told}");
            }
            if code == 403 {
                assert!(told.contains("this needs the role "), "{told}");
            }
        }
    }

    let status = ("GET", "/api/v1/status");
    let asks = async |token| code("127.0.0.1", to, status, &bearer(token), "").await.0;
    std::fs::write(file("viewer"), "another-token").expect("replace the token");
    until(DEADLINE, "the new token is good", async || asks("another-token").await == 200).await;
    assert_eq!(asks("viewer-token").await, 401, "the old one is not");
    std::fs::remove_file(file("viewer")).expect("remove the token");
    until(DEADLINE, "no viewer comes in", async || asks("another-token").await == 401).await;
    assert_eq!(asks("operator-token").await, 200, "the others are as they were");
    for token in ["viewer-token", "another-token", "operator-token", "admin-token"] {
        assert!(!relay.log().contains(token), "{}", relay.log());
    }
}

/// The proxy's word counts from its address, and from nowhere else.
// proves: G-DOOR-3
#[tokio::test(flavor = "multi_thread")]
async fn a_trusted_proxy_says_who_it_was_and_nobody_else_does() {
    let mut env = TestEnv::new().await;
    env.setup().await;
    let admin = Port::reserve().expect("a free port");
    let to = admin.addr();
    env.set("TAILPOST_ADMIN__LISTEN", &to.to_string());
    env.set("TAILPOST_ADMIN__TRUSTED_PROXY", "127.0.0.2");
    env.set("TAILPOST_ADMIN__PROXY_ROLE_HEADER", "X-Role");
    let _relay = env.relay();
    until(DEADLINE, "it listens", async || get(to, "/livez").await.is_some()).await;
    let id = Uuid::new_v4();
    let dead = "INSERT INTO outbox_dead_letter (id, aggregate_type, aggregate_id, event_type,
                    payload, reason) VALUES ($1, 'order', 'o-1', 'Placed', '{}', 'tests')";
    env.client().await.execute(dead, &[&id]).await.expect("a dead letter");

    let discard = format!("/api/v1/outbox/dead-letter/{id}");
    let discard = ("DELETE", &*discard);
    let why = "{\"why\": \"tests\", \"by\": \"bob\"}";
    let user = "X-Forwarded-User: ada\r\n";
    for (from, headers, expected) in [
        ("127.0.0.1", format!("{user}X-Role: admin\r\n"), 401),
        ("127.0.0.3", format!("{user}X-Role: admin\r\n"), 401),
        ("127.0.0.2", String::new(), 401),
        ("127.0.0.2", "X-Role: admin\r\n".into(), 401),
        ("127.0.0.2", format!("{user}{user}X-Role: admin\r\n"), 401),
        ("127.0.0.2", format!("{user}X-Role: root\r\n"), 401),
        ("127.0.0.2", user.to_owned(), 403),
        ("127.0.0.2", format!("{user}X-Role: operator\r\nSec-Fetch-Site: cross-site\r\n"), 403),
        ("127.0.0.2", format!("{user}X-Role: operator\r\n"), 204),
    ] {
        let (code, told) = code(from, to, discard, &headers, why).await;
        assert_eq!(code, expected, "{from} {headers}: {told}");
    }
    let audit = "SELECT string_agg(action || ':' || actor || ':' || via, ',')
                 FROM outbox_dead_letter_audit";
    assert_eq!(env.query::<String>(audit).await, "discard:ada for bob:http");
}

/// Nobody could come in by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_a_token_is_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("create a folder");
    let empty = folder.path().join("empty");
    std::fs::write(&empty, "\n").expect("write a file");
    for file in [empty, folder.path().join("missing")] {
        let variables = [
            ("DATABASE_URL", "postgres://ada@127.0.0.1:1/shop".to_owned()),
            ("TAILPOST_ADMIN__TOKENS", format!("viewer:{}", file.display())),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let relay = support::Relay::spawn(&["relay"], &variables);
        relay.announce(""); // the code tells
        assert_eq!(relay.wait_exit(DEADLINE).await.code(), Some(78), "{}", relay.log());
        assert!(relay.log().contains(&file.display().to_string()), "{}", relay.log());
    }
}
