//! TLS for a replication connection to a server whose certificate is itself trusted.
//!
//! The replication client verifies certificates by itself, and refuses those. So it connects to a socket
//! in a folder that only we may enter, and what it sends is passed on through our own TLS.

use std::io;
use std::time::Duration;

use pgwire_replication::{ReplicationConfig, TlsConfig};
use rustls::ClientConfig;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, split};
use tokio::net::{TcpStream, UnixListener};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Asks for encryption: its length, and a number in the place of a version.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// How long the client may take to connect.
const CLIENT_MAX: Duration = Duration::from_secs(10);

/// Encrypts a connection to the server of `config`, and returns a configuration that uses it, once.
pub(super) async fn through(
    mut config: ReplicationConfig,
    tls: ClientConfig,
) -> io::Result<ReplicationConfig> {
    let mut server = TcpStream::connect((config.host.as_str(), config.port)).await?;
    server.write_all(&SSL_REQUEST).await?;
    if server.read_u8().await? != b'S' {
        return Err(io::Error::other("server does not support TLS"));
    }
    let name = config.tls.sni_hostname.as_ref().unwrap_or(&config.host);
    let mut tls = MakeRustlsConnect::new(tls);
    let tls = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, name);
    let server = tls.map_err(io::Error::other)?.connect(server).await?;
    let folder = TempDir::new()?;
    let listener = UnixListener::bind(folder.path().join(format!(".s.PGSQL.{}", config.port)))?;
    config.host = folder.path().display().to_string();
    config.tls = TlsConfig::disabled();
    tokio::spawn(async move {
        let (client, _) = tokio::time::timeout(CLIENT_MAX, listener.accept()).await??;
        drop((listener, folder));
        let (mut from_client, mut to_client) = split(client);
        let (mut from_server, mut to_server) = split(server);
        // Whoever ends ends the other.
        tokio::select! {
            ended = copy(&mut from_client, &mut to_server) => ended,
            ended = copy(&mut from_server, &mut to_client) => ended,
        }
    });
    Ok(config)
}
