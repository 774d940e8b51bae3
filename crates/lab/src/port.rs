//! Loopback ports that stay ours while a server is down.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};

use anyhow::{Result, bail};

/// Below the ranges from which Linux (32768) and macOS (49152) take ports for outgoing connections.
/// A port inside them could be taken by a client's connection while the server is down; a client
/// that tries again and again can even connect to itself.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

const TRIES: usize = 1_000;

/// A port on 127.0.0.1, reserved for as long as this lives.
pub struct Port {
    number: u16,
    // Reserves the number among labs of all processes: each holds the UDP port of the same
    // number, which a crash frees too.
    _reservation: UdpSocket,
}

impl Port {
    /// Reserves a port that nobody listens on.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn reserve() -> Result<Self> {
        for _ in 0..TRIES {
            let number = rand::random_range(PORTS);
            let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, number));
            if let Ok(reservation) = UdpSocket::bind(addr)
                && is_free(addr)
            {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        bail!("found no free port on 127.0.0.1 between {} and {}", PORTS.start, PORTS.end)
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.number))
    }
}

/// Whether nobody listens there. Not by listening: a process that is being forked meanwhile would
/// hold that socket until its exec, and the server for which the port is would find it in use.
fn is_free(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_reserved_port_is_not_given_twice() {
        let port = Port::reserve().unwrap();
        assert!(UdpSocket::bind(port.addr()).is_err(), "the reservation holds");
        assert!(TcpListener::bind(port.addr()).is_ok(), "the server can listen");
    }
}
