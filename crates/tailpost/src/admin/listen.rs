//! An address that another process may have.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::errors::Refusal;

/// How long to wait before an address that was taken is tried again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Where to listen, and which key of the configuration says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) key: &'static str,
    pub(crate) socket: SocketAddr,
}

impl Address {
    /// Listens, or says why not yet: `None` while another process has the address. That is a relay
    /// that stands by on the same machine, and must not keep this one from its work.
    ///
    /// # Errors
    ///
    /// If the address is not this machine's, or may not be listened on: no waiting mends that.
    pub(super) async fn bind(self) -> Result<Option<TcpListener>, Refusal> {
        let Self { key, socket: address } = self;
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                warn!(
                    %address,
                    "another process listens there: this one runs without health, metrics and \
                     status, and tries again every {} s. `ss -ltnp 'sport = :{}'` shows the other; \
                     give each a {key} of its own, such as \"127.0.0.1:{}\", or \"off\"",
                    TRY_AGAIN_AFTER.as_secs(),
                    address.port(),
                    address.port().checked_add(10).unwrap_or(9464),
                );
                Ok(None)
            }
            Err(source) => {
                let problem = format!("could not listen on {address} for health and metrics");
                let hint = "set admin.listen, or admin.inbox_listen for an inbox, to a free \
                            address, or to \"off\"";
                Err(Refusal::conflict(problem).with_hint(hint).because(source))
            }
        }
    }

    /// Listens once the address is free. `None` if asked to stop before.
    pub(super) async fn wait(self, stop: &CancellationToken) -> Option<TcpListener> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return None,
                () = tokio::time::sleep(TRY_AGAIN_AFTER) => {}
            }
            if let Ok(listener) = TcpListener::bind(self.socket).await {
                return Some(listener);
            }
        }
    }
}
