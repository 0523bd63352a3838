//! The listening sockets of a host and a port. `localhost` is the loopback address of IPv4 and that of IPv6, because clients
//! try either first; other hosts have one socket. No other process can listen on the same address and port meanwhile. On some
//! systems, one can listen on the wildcard address (`0.0.0.0`) with the port, but receives no connection to this address.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};

/// Number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// Maximum number of ports that are tried until one is free for both addresses.
const ATTEMPTS: usize = 16;

/// Listening sockets with one port.
pub(crate) struct TcpSockets {
    first: TcpListener,
    /// The socket of IPv6, if the host has both.
    second: Option<TcpListener>,
}

impl TcpSockets {
    /// Binds the first address of the host that can be bound, or both of `localhost`. Port 0 is a free one.
    pub(crate) async fn bind(host: &str, port: u16) -> io::Result<Self> {
        if host.eq_ignore_ascii_case("localhost") {
            return Self::bind_loopback(port);
        }
        let mut outcome = Err(io::Error::new(io::ErrorKind::InvalidInput, "the host has no address"));
        for address in lookup_host((host, port)).await? {
            outcome = listen(address);
            if outcome.is_ok() {
                break;
            }
        }
        Ok(Self { first: outcome?, second: None })
    }

    fn bind_loopback(port: u16) -> io::Result<Self> {
        let mut attempts = if port == 0 { ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            let first = listen((Ipv4Addr::LOCALHOST, port).into())?;
            match listen((Ipv6Addr::LOCALHOST, first.local_addr()?.port()).into()) {
                Ok(second) => return Ok(Self { first, second: Some(second) }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && attempts > 0 => {}
                Err(error) if is_taken(&error) => return Err(error),
                // This machine has no IPv6.
                Err(error) => {
                    tracing::debug!(%error, "the server does not listen on ::1");
                    return Ok(Self { first, second: None });
                }
            }
        }
    }

    /// Accepts the next client.
    pub(crate) async fn accept(&self) -> io::Result<TcpStream> {
        let accepted = match &self.second {
            None => self.first.accept().await,
            Some(second) => tokio::select! {
                accepted = self.first.accept() => accepted,
                accepted = second.accept() => accepted,
            },
        };
        let (stream, _) = accepted?;
        // Disables Nagle's algorithm: tokens are small, and each should be sent at once.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Returns the address of the first socket.
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.first.local_addr()
    }
}

/// Returns true if another process has the address, or this process may not have it.
fn is_taken(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    exclude_others(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Lets the port of a server that has ended be bound again at once. Unix lets only one socket listen on an address and port.
#[cfg(not(windows))]
fn exclude_others(socket: &TcpSocket) -> io::Result<()> {
    socket.set_reuseaddr(true)
}

/// Refuses the address to other processes. Windows would otherwise give it to one that asks for it with `SO_REUSEADDR`.
#[cfg(windows)]
#[allow(unsafe_code, reason = "tokio has no method for this option")]
fn exclude_others(socket: &TcpSocket) -> io::Result<()> {
    use std::os::windows::io::AsRawSocket;

    use windows_sys::Win32::Networking::WinSock::{SO_EXCLUSIVEADDRUSE, SOL_SOCKET, setsockopt};
    let on = 1i32;
    let raw = socket.as_raw_socket() as usize;
    // SAFETY: the socket is open, and the pointer and the length are those of `on`, which outlives the call.
    let status = unsafe {
        setsockopt(raw, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, (&raw const on).cast(), size_of_val(&on) as i32)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    #[test]
    fn localhost_is_reached_by_both_addresses() {
        run(async {
            let sockets = TcpSockets::bind("localhost", 0).await.unwrap();
            let port = sockets.address().unwrap().port();
            let addresses: [SocketAddr; 2] =
                [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()];
            let count = if sockets.second.is_some() { 2 } else { 1 };
            for address in &addresses[..count] {
                let (client, accepted) = tokio::join!(TcpStream::connect(address), sockets.accept());
                assert_eq!(client.unwrap().peer_addr().unwrap(), *address);
                accepted.unwrap();
            }
            // A machine without IPv6 has one socket.
            let has_ipv6 = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
            assert_eq!(sockets.second.is_some(), has_ipv6);
        });
    }

    #[test]
    fn a_port_cannot_be_taken_twice() {
        run(async {
            for host in ["localhost", "127.0.0.1"] {
                let sockets = TcpSockets::bind(host, 0).await.unwrap();
                let port = sockets.address().unwrap().port();
                // Other systems let a socket listen on the wildcard address beside one of a single address.
                let has_wildcard = cfg!(any(windows, target_os = "linux"));
                let wildcards = has_wildcard.then_some(Ipv4Addr::UNSPECIFIED);
                for other in ["localhost", "127.0.0.1"].into_iter().chain(has_wildcard.then_some("0.0.0.0")) {
                    let error = TcpSockets::bind(other, port).await.err().unwrap();
                    assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{host} {other}: {error}");
                }
                // The standard library asks for SO_REUSEADDR on Unix.
                for other in [Ipv4Addr::LOCALHOST].into_iter().chain(wildcards) {
                    let error = std::net::TcpListener::bind((other, port)).err().unwrap();
                    assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{host} {other}: {error}");
                }
                drop(sockets);
                TcpSockets::bind(host, port).await.unwrap();
            }
        });
    }

    #[test]
    fn a_port_that_is_taken_on_one_address_is_not_shared() {
        let Ok(other) = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else { return };
        let port = other.local_addr().unwrap().port();
        let error = run(TcpSockets::bind("localhost", port)).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
    }
}
