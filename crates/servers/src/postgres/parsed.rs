//! A connection string as the client library reads it, with our defaults.

use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{ChannelBinding, Host, SslNegotiation};

use crate::error::Error;

/// Time allowed for opening a connection, TLS and authentication included.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Silence after which the kernel asks whether the server's host is still there.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may stay unacknowledged before the connection counts as dead.
pub(super) const TCP_USER_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn parse(dsn: &str) -> Result<Config, Error> {
    let invalid = |reason: String| Error::invalid("postgres.url", reason);
    let mut config: Config = dsn.parse().map_err(|error: tokio_postgres::Error| {
        let cause = error.into_source().map_or_else(|| "unreadable".into(), |it| it.to_string());
        invalid(cause)
    })?;
    if config.get_hosts().len().max(config.get_hostaddrs().len()) > 1
        || config.get_ports().len() > 1
    {
        return Err(invalid("name one host and one port: replication follows one server".into()));
    }
    if config.get_channel_binding() == ChannelBinding::Require
        || config.get_ssl_negotiation() == SslNegotiation::Direct
    {
        return Err(invalid(
            "channel_binding=require and sslnegotiation=direct do not work for replication".into(),
        ));
    }
    for host in config.get_hosts() {
        if let Host::Tcp(name) = host
            && name.contains(['@', '/', ':'])
            && name.parse::<std::net::Ipv6Addr>().is_err()
        {
            // Most likely a password with an unescaped `@`: do not repeat it.
            return Err(invalid(
                "the host has `@`, `/` or `:` in it; write these as %40, %2F, %3A in a password"
                    .into(),
            ));
        }
    }
    if config.get_user().is_none() {
        let user = whoami::username().map_err(|error| {
            invalid(format!("no user given, and the system names none: {error}"))
        })?;
        config.user(user);
    }
    if config.get_dbname().is_none() {
        config.dbname(config.get_user().unwrap_or_default().to_owned());
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(TCP_USER_TIMEOUT);
    }
    if config.get_keepalives_idle() == Config::new().get_keepalives_idle() {
        config.keepalives_idle(KEEPALIVE_IDLE);
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(KEEPALIVE_INTERVAL);
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(KEEPALIVE_RETRIES);
    }
    Ok(config)
}
