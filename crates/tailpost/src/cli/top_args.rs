use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use clap::Args;

use crate::config::authority;

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The relay to watch: http://HOST:PORT [default: admin.listen]
    #[arg(long, value_name = "URL", value_parser = address)]
    pub(crate) relay_url: Option<SocketAddr>,
    /// The inbox to watch: http://HOST:PORT [default: admin.inbox_listen, if it answers there]
    #[arg(long, value_name = "URL", value_parser = address)]
    pub(crate) inbox_url: Option<SocketAddr>,
    /// How often to ask, from 200ms to 60s
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    pub(crate) interval: Duration,
    /// Print one screen as text and exit; also without a terminal
    ///
    /// Asks twice, an interval apart, so that there are rates.
    #[arg(long)]
    pub(crate) once: bool,
}

/// Where an API listens.
fn address(text: &str) -> Result<SocketAddr, String> {
    let authority = authority(text)?;
    let found = authority.to_socket_addrs().map_err(|error| error.to_string())?.next();
    found.ok_or_else(|| format!("{authority} has no address"))
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = super::duration(text)?;
    let is_fit = (Duration::from_millis(200)..=Duration::from_mins(1)).contains(&interval);
    is_fit.then_some(interval).ok_or_else(|| "expected 200ms to 60s".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_that_of_an_api_without_tls() {
        for text in ["http://127.0.0.1:9464", "127.0.0.1:9464", "http://127.0.0.1:9464/"] {
            assert_eq!(address(text), Ok(([127, 0, 0, 1], 9464).into()), "{text}");
        }
        assert_eq!(address("http://[::1]:9464").map(|it| it.port()), Ok(9464));
        for text in ["https://relay:443", "http://a@127.0.0.1:9464", "127.0.0.1", "http://h:1/x"] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_has_bounds() {
        assert_eq!(interval("2s"), Ok(Duration::from_secs(2)));
        assert!(interval("0s").is_err() && interval("1h").is_err());
    }
}
