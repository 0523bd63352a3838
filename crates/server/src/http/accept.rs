//! The sockets that a server listens on, and the connections that it accepts there.
//!
//! The number of connections is limited. If a client connects when all permits are in use, the server evicts the
//! connection with the earliest deadline. Without one, every connection has an active request whose answer is taken: then
//! it evicts the connection with the oldest request that has not arrived completely. If all requests have, it accepts a
//! few more connections, which can only ask for reports about the server.

use std::{collections::BTreeMap, fmt, io, net::SocketAddr, path::PathBuf, sync::Arc};

use axum::Router;
use parking_lot::Mutex;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Duration, Instant, sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

#[cfg(unix)]
use super::unix_socket::UnixSocket;
use super::{
    connection::{self, ClientStream, ConnectionState, HeadBudget},
    limits::Limits,
    tcp_sockets::TcpSockets,
    tls::TlsConnection,
};

/// Delay after a system error, such as a lack of file descriptors or memory.
const AFTER_ERROR: Duration = Duration::from_millis(200);

/// Maximum time for an evicted connection to end.
const EVICTION_TIME: Duration = Duration::from_secs(1);

/// Number of connections beyond the maximum. They are for reports about the server, and for the answer to other clients
/// that all connections are in use.
const REPORT_CONNECTIONS: usize = 8;

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
    Tcp(TcpSockets),
    Tls(TcpSockets, TlsAcceptor),
    #[cfg(unix)]
    Unix(UnixSocket),
}

/// A client that was accepted.
pub(crate) enum AcceptedClient {
    Tcp(TcpStream),
    Tls(TlsConnection),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Listener {
    /// Accepts the next client.
    async fn accept(&self) -> io::Result<AcceptedClient> {
        match self {
            Self::Tcp(sockets) => sockets.accept().await.map(AcceptedClient::Tcp),
            Self::Tls(sockets, acceptor) => {
                let stream = sockets.accept().await?;
                Ok(AcceptedClient::Tls(TlsConnection::new(acceptor, stream)))
            }
            #[cfg(unix)]
            Self::Unix(socket) => {
                socket.listener.accept().await.map(|(stream, _)| AcceptedClient::Unix(stream))
            }
        }
    }

    pub(crate) fn address(&self) -> io::Result<ServerAddress> {
        match self {
            Self::Tcp(sockets) | Self::Tls(sockets, _) => sockets.address().map(ServerAddress::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => Ok(ServerAddress::Unix(socket.path().to_owned())),
        }
    }
}

/// The open connections of a server, and the settings for new ones.
pub(crate) struct Connections {
    router: Router,
    limits: Limits,
    /// Becomes true at shutdown.
    stopped: watch::Receiver<bool>,
    permits: ConnectionPermits,
    /// Router of connections beyond the maximum, which answers only reports.
    report_router: Router,
    report_permits: ConnectionPermits,
    heads: HeadBudget,
}

/// A number of permits for connections. Clones share them.
#[derive(Clone)]
struct ConnectionPermits {
    number: usize,
    free: Arc<Semaphore>,
    open: Arc<Mutex<OpenConnections>>,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    states: BTreeMap<u64, ConnectionState>,
}

impl OpenConnections {
    /// Returns the connection with the earliest of these times.
    fn first_by(&self, time: fn(&ConnectionState) -> Option<Instant>) -> Option<&ConnectionState> {
        let times = self.states.values().filter_map(|state| Some((time(state)?, state)));
        times.min_by_key(|(time, _)| *time).map(|(_, state)| state)
    }
}

/// Permit of a connection. Dropping it returns the permit.
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
    pub(crate) fn new(
        router: Router,
        report_router: Router,
        limits: Limits,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let permits = ConnectionPermits::new(limits.connections);
        let report_permits = ConnectionPermits::new(REPORT_CONNECTIONS);
        Self { router, limits, stopped, permits, report_router, report_permits, heads: HeadBudget::new() }
    }

    /// Serves the clients of a listener until it is dropped.
    pub(crate) async fn serve(&self, listener: &Listener) {
        loop {
            match listener.accept().await {
                Ok(AcceptedClient::Tcp(stream)) => self.serve_client(stream).await,
                Ok(AcceptedClient::Tls(stream)) => self.serve_client(stream).await,
                #[cfg(unix)]
                Ok(AcceptedClient::Unix(stream)) => self.serve_client(stream).await,
                Err(error) if is_of_client(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    self.permits.evict();
                    sleep(AFTER_ERROR).await;
                }
            }
        }
    }

    /// Waits for the end of every connection.
    pub(crate) async fn ended(&self) {
        self.permits.ended().await;
        self.report_permits.ended().await;
    }

    async fn serve_client(&self, stream: impl ClientStream) {
        let state = ConnectionState::new(self.limits.clone(), self.stopped.clone());
        let (permit, router) = match self.permits.take(&state).await {
            Some(permit) => (permit, self.router.clone()),
            None => match self.report_permits.take(&state).await {
                Some(permit) => (permit, self.report_router.clone()),
                None => return,
            },
        };
        let heads = self.heads.clone();
        tokio::spawn(async move {
            connection::serve(stream, state, router, heads).await;
            drop(permit);
        });
    }
}

impl ConnectionPermits {
    fn new(number: usize) -> Self {
        Self { number, free: Arc::new(Semaphore::new(number)), open: Arc::default() }
    }

    /// Takes a permit for a new connection, after an eviction if necessary; `None` if no connection can be evicted.
    async fn take(&self, state: &ConnectionState) -> Option<ConnectionPermit> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if !self.evict() => return None,
            Err(_) => timeout(EVICTION_TIME, self.free.clone().acquire_owned()).await.ok()?.ok()?,
        };
        let mut open = self.open.lock();
        let number = open.next;
        open.next += 1;
        open.states.insert(number, state.clone());
        Some(ConnectionPermit { number, open: self.open.clone(), _permit: permit })
    }

    /// Evicts the connection with the earliest deadline, or else the one with the oldest request that has not arrived
    /// completely. Returns false if every connection has a complete request whose answer is taken.
    fn evict(&self) -> bool {
        let open = self.open.lock();
        let evicted = open
            .first_by(ConnectionState::eviction_deadline)
            .or_else(|| open.first_by(ConnectionState::incomplete_since));
        evicted.inspect(|state| state.evict()).is_some()
    }

    /// Waits until every permit is returned.
    async fn ended(&self) {
        // The number is far below the maximum of the semaphore, and the semaphore is never closed.
        let number = u32::try_from(self.number).unwrap_or(u32::MAX);
        let _ = self.free.acquire_many(number).await;
    }
}

/// Returns true for errors of a client that disconnected before it was accepted.
fn is_of_client(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::ConnectionRefused | Kind::ConnectionAborted | Kind::ConnectionReset)
}

#[cfg(test)]
mod tests {
    use axum::http::Version;

    use super::*;

    #[tokio::test]
    async fn the_oldest_incomplete_request_makes_room_if_nothing_else_can() {
        let (_stop, stopped) = watch::channel(false);
        let permits = ConnectionPermits::new(3);
        let begin = async |has_body| {
            let state = ConnectionState::new(Limits::standard(), stopped.clone());
            let permit = permits.take(&state).await.unwrap();
            (state.begin(Version::HTTP_11, has_body), state, permit)
        };
        let [whole, older, newer] = [begin(false).await, begin(true).await, begin(true).await];
        let is_evicted = |state: &ConnectionState| state.deadline().is_some();
        assert!(permits.evict());
        assert_eq!([&whole.1, &older.1, &newer.1].map(is_evicted), [false, true, false]);
        drop((older.0, older.2));
        let idle = begin(false).await;
        drop(idle.0);
        assert!(permits.evict());
        assert!(idle.1.deadline() <= Some(Instant::now()) && !is_evicted(&newer.1));
        drop((idle.1, idle.2));
        newer.0.connection().request_received();
        assert!(!permits.evict() && !is_evicted(&whole.1) && !is_evicted(&newer.1));
    }
}
