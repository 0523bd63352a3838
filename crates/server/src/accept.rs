//! The sockets that a server listens on, and the connections that it accepts there.
//!
//! The number of connections is limited. If a client connects when all places are taken, the server evicts the
//! connection with the earliest deadline, unless every connection has an active request whose answer is taken.

use std::{collections::BTreeMap, fmt, io, net::SocketAddr, path::PathBuf, sync::Arc};

use axum::Router;
use parking_lot::Mutex;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Duration, sleep, timeout},
};

use tokio_rustls::TlsAcceptor;

#[cfg(unix)]
use crate::unix_socket::UnixSocket;
use crate::{
    connection::{self, ClientStream, ConnectionState},
    limits::Limits,
    tls::TlsConnection,
};

/// Delay after a system error, such as a lack of file descriptors or memory.
const AFTER_ERROR: Duration = Duration::from_millis(200);

/// Maximum time for an evicted connection to end, and for writing [`BUSY`].
const ROOM: Duration = Duration::from_secs(1);

/// Answer to a client that connects while every place is taken by an active request.
const BUSY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
    Content-Type: application/json\r\nContent-Length: 130\r\n\r\n\
    {\"error\":{\"message\":\"every connection of this server is in use; try again\",\"type\":\"service_unavailable\",\
    \"param\":null,\"code\":null}}";

/// Address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerAddress {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A socket that accepts clients.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Tls(TcpListener, TlsAcceptor),
    #[cfg(unix)]
    Unix(UnixSocket),
}

/// A client that was accepted.
pub(crate) enum Incoming {
    Tcp(TcpStream),
    Tls(TlsConnection),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Listener {
    /// Accepts the next client.
    async fn accept(&self) -> io::Result<Incoming> {
        match self {
            Self::Tcp(listener) => accept_tcp(listener).await.map(Incoming::Tcp),
            Self::Tls(listener, acceptor) => {
                let stream = accept_tcp(listener).await?;
                Ok(Incoming::Tls(TlsConnection::new(acceptor, stream)))
            }
            #[cfg(unix)]
            Self::Unix(socket) => socket.listener.accept().await.map(|(stream, _)| Incoming::Unix(stream)),
        }
    }

    /// Returns the address.
    pub(crate) fn address(&self) -> io::Result<ServerAddress> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.local_addr().map(ServerAddress::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => Ok(ServerAddress::Unix(socket.path().to_owned())),
        }
    }
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    // Disables Nagle's algorithm: tokens are small, and each should be sent at once.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The open connections of a server, and the settings for new ones.
pub(crate) struct Connections {
    router: Router,
    limits: Limits,
    /// Becomes true at shutdown.
    stopped: watch::Receiver<bool>,
    places: Arc<Semaphore>,
    open: Arc<Mutex<OpenConnections>>,
}

/// The open connections by number.
#[derive(Default)]
struct OpenConnections {
    next: u64,
    states: BTreeMap<u64, ConnectionState>,
}

/// Place of a connection. Dropping it frees the place.
struct ConnectionPermit {
    number: u64,
    open: Arc<Mutex<OpenConnections>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.lock().states.remove(&self.number);
    }
}

impl Connections {
    pub(crate) fn new(router: Router, limits: Limits, stopped: watch::Receiver<bool>) -> Self {
        let places = Arc::new(Semaphore::new(limits.connections));
        Self { router, limits, stopped, places, open: Arc::default() }
    }

    /// Serves the clients of a listener until it is dropped.
    pub(crate) async fn serve(&self, listener: &Listener) {
        loop {
            match listener.accept().await {
                Ok(Incoming::Tcp(stream)) => self.serve_client(stream).await,
                Ok(Incoming::Tls(stream)) => self.serve_client(stream).await,
                #[cfg(unix)]
                Ok(Incoming::Unix(stream)) => self.serve_client(stream).await,
                Err(error) if is_of_client(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.evict();
                    sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    /// Waits for the end of every connection.
    pub(crate) async fn ended(&self) {
        // The number of places is far below the maximum of permits, and the semaphore is never closed.
        let places = u32::try_from(self.limits.connections).unwrap_or(u32::MAX);
        let _ = self.places.acquire_many(places).await;
    }

    async fn serve_client(&self, mut stream: impl ClientStream) {
        let Some(permit) = self.permit().await else {
            // These few bytes fit into the empty send buffer of a new connection.
            let _ = timeout(ROOM, stream.write_all(BUSY)).await;
            return;
        };
        let state = ConnectionState::new(self.limits.clone(), self.stopped.clone());
        let mut open = self.open.lock();
        let number = open.next;
        open.next += 1;
        open.states.insert(number, state.clone());
        drop(open);
        let place = ConnectionPermit { number, open: self.open.clone(), _permit: permit };
        let router = self.router.clone();
        tokio::spawn(async move {
            connection::serve(stream, state, router).await;
            drop(place);
        });
    }

    /// Returns a permit for a place, after an eviction if necessary; `None` if every connection has an active request.
    async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.places.clone().try_acquire_owned() {
            return Some(permit);
        }
        if !self.evict() {
            return None;
        }
        timeout(ROOM, self.places.clone().acquire_owned()).await.ok()?.ok()
    }

    /// Evicts the connection with the earliest deadline. Returns false if every connection has an active request.
    fn evict(&self) -> bool {
        let open = self.open.lock();
        let ends = open.states.values().filter_map(|state| Some((state.eviction_deadline()?, state)));
        let first = ends.min_by_key(|(deadline, _)| *deadline);
        first.inspect(|(_, state)| state.evict()).is_some()
    }
}

/// Returns true for errors of a client that disconnected before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::ConnectionRefused | Kind::ConnectionAborted | Kind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_answer_states_its_length() {
        let text = std::str::from_utf8(BUSY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{}", body.len());
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }
}
