//! The proxy misbehaves in exactly the ways it is told to.

#![allow(clippy::unwrap_used, reason = "helpers of tests panic as tests do")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use lab::{Direction, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

const SOON: Duration = Duration::from_millis(200);
const LATE: Duration = Duration::from_secs(10);

/// A server that answers each byte with the next one, and tells what bytes it got.
async fn server() -> (SocketAddr, mpsc::Receiver<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (seen, receiver) = mpsc::channel(100);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let seen = seen.clone();
            tokio::spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    let _ = seen.send(byte).await;
                    let _ = stream.write_u8(byte + 1).await;
                }
            });
        }
    });
    (addr, receiver)
}

async fn ask(stream: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
    stream.write_u8(byte).await?;
    timeout(LATE, stream.read_u8()).await.expect("an answer, or an error")
}

#[tokio::test]
async fn bytes_pass_both_ways_and_so_does_the_end() {
    let proxy = Proxy::start(server().await.0).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(ask(&mut stream, 1).await.unwrap(), 2);
    assert_eq!((proxy.connections(), proxy.accepted()), (1, 1));
    stream.shutdown().await.unwrap();
    assert_eq!(timeout(LATE, stream.read(&mut [0])).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_cut_resets_connections_and_refuses_new_ones_until_restored() {
    let mut proxy = Proxy::start(server().await.0).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut stream, 1).await.unwrap();

    proxy.cut().await;
    assert_eq!(proxy.connections(), 0);
    let error = timeout(LATE, stream.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    let error = TcpStream::connect(proxy.addr()).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);

    proxy.restore().await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(ask(&mut stream, 3).await.unwrap(), 4);
}

#[tokio::test]
async fn a_delay_counts_each_way() {
    let proxy = Proxy::start(server().await.0).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    proxy.set_delay(Duration::from_millis(60));
    let asked = Instant::now();
    assert_eq!(ask(&mut stream, 1).await.unwrap(), 2);
    assert!(asked.elapsed() >= Duration::from_millis(120), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn answers_can_be_lost_while_requests_arrive() {
    let (addr, mut seen) = server().await;
    let mut proxy = Proxy::start(addr).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    assert_eq!(ask(&mut stream, 1).await.unwrap(), 2);
    assert_eq!(seen.recv().await, Some(1));

    proxy.blackhole(Direction::ToClient);
    stream.write_u8(10).await.unwrap();
    assert_eq!(timeout(LATE, seen.recv()).await.unwrap(), Some(10));
    assert!(timeout(SOON, stream.read_u8()).await.is_err(), "the answer is lost, nothing tells");
    assert_eq!(proxy.connections(), 1);

    // A connection that lost bytes must not go on as if it had not.
    proxy.restore().await.unwrap();
    assert!(timeout(LATE, stream.read_u8()).await.unwrap().is_err());
}

#[tokio::test]
async fn requests_can_be_lost_and_new_connections_fare_no_better() {
    let (addr, mut seen) = server().await;
    let proxy = Proxy::start(addr).await.unwrap();
    proxy.blackhole(Direction::ToServer);
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    stream.write_u8(10).await.unwrap();
    assert!(timeout(SOON, seen.recv()).await.is_err());
    assert!(timeout(SOON, stream.read_u8()).await.is_err());
}

#[tokio::test]
async fn a_dead_server_is_not_noticed_through_a_blackhole() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    proxy.blackhole(Direction::Both);
    drop(server);
    assert!(timeout(SOON, stream.read_u8()).await.is_err(), "the end got through");
}

#[tokio::test]
async fn clients_follow_a_server_that_moved() {
    let proxy = Proxy::start(server().await.0).await.unwrap();
    let (moved, mut seen) = server().await;
    proxy.set_upstream(moved);
    let mut stream = TcpStream::connect(proxy.addr()).await.unwrap();
    ask(&mut stream, 7).await.unwrap();
    assert_eq!(seen.recv().await, Some(7));
}
