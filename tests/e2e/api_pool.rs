//! What requests to the admin port take from the database.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use lab::Port;
use support::{DEADLINE, TestEnv, ask, get, until};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// Connections of requests, at most. Four more are for what nobody waits for.
const CONNECTIONS_MAX: i64 = 4;

const COUNT: &str = "SELECT count(*) FROM pg_stat_activity
                     WHERE application_name = 'tailpost admin'";

/// A connection from one of several addresses of this machine: each may have 32.
async fn from(number: u8, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    let address = format!("127.0.0.{}:0", number % 8 + 1);
    socket.bind(address.parse().expect("an address")).expect("bind to loopback");
    socket.connect(to).await.expect("connect")
}

/// Asks 120 times at once: on further connections only probes are answered. Returns how many answers had each of the two statuses.
async fn ask_120(to: SocketAddr) -> (usize, usize) {
    let mut asked = JoinSet::new();
    for number in 0..120_u8 {
        asked.spawn(async move {
            let path = "/api/v1/outbox/dead-letter?limit=5";
            ask(from(number, to).await, "GET", path, "Host: 127.0.0.1", "").await
        });
    }
    let (mut served, mut refused) = (0, 0);
    while let Some(told) = asked.join_next().await {
        let told = told.expect("no panic").expect("an answer");
        match told.split(' ').nth(1) {
            Some("200") => served += 1,
            Some("503") => {
                let told = told.to_ascii_lowercase();
                assert!(told.contains("content-type: application/problem+json"), "{told}");
                assert!(told.contains("retry-after: 1"), "{told}");
                refused += 1;
            }
            _ => panic!("{told}"),
        }
    }
    (served, refused)
}

mod long {
    use super::*;

    /// Each request had a connection of its own.
    // proves: G-DOOR-2
    #[tokio::test(flavor = "multi_thread")]
    async fn many_requests_share_few_connections_and_a_broken_one_is_replaced() {
        let mut env = TestEnv::new().await;
        env.setup().await;
        let admin = Port::reserve().expect("a free port");
        env.set("TAILPOST_ADMIN__LISTEN", &admin.addr().to_string());
        let _relay = env.relay();
        until(DEADLINE, "it listens", async || get(admin.addr(), "/livez").await.is_some()).await;

        let (most, is_over) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
        let watcher = env.client().await;
        let watched = tokio::spawn({
            let (most, is_over) = (Arc::clone(&most), Arc::clone(&is_over));
            async move {
                while !is_over.load(Ordering::Relaxed) {
                    let count =
                        watcher.query_one(COUNT, &[]).await.expect("count connections").get(0);
                    most.fetch_max(count, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }
        });
        let client = env.client().await;
        client.batch_execute("BEGIN; LOCK TABLE outbox_dead_letter").await.expect("lock the table");
        let (served, refused) = ask_120(admin.addr()).await;
        assert_eq!((served, refused), (0, 120), "while the table is locked");
        client.batch_execute("COMMIT").await.expect("unlock the table");
        let (served, refused) = ask_120(admin.addr()).await;
        assert!(served > 0 && served + refused == 120, "{served} were served, {refused} refused");
        is_over.store(true, Ordering::Relaxed);
        watched.await.expect("no panic");
        let most = most.load(Ordering::Relaxed);
        assert!((1..=CONNECTIONS_MAX).contains(&most), "{most} connections at a time");

        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE application_name = 'tailpost admin'";
        assert!(env.query::<i64>(kill).await > 0, "connections are kept for the next request");
        let told = get(admin.addr(), "/api/v1/outbox/dead-letter").await.expect("an answer");
        assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    }
}
