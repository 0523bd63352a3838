//! The life cycle of a server: bind, serve, finish running answers.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use narthex_gateway::{Drain, ErrorKind, Gateway, Network, check_threads};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

#[cfg(unix)]
use crate::http::unix_socket::UnixSocket;
use crate::{
    access::{Access, AccessOptions, Authentication, Exposure, is_loopback},
    app::{RequestOptions, ServerResources},
    current_gateway::CurrentGateway,
    http::{
        accept::{Connections, Listener, ServerAddress},
        limits::Limits,
        tcp_sockets::TcpSockets,
        tls::TlsFiles,
    },
    reports::{power, requests::RecentRequests},
    routes::{self, Routers},
    settings_editor::SettingsEditor,
    traces::{Traces, TracesEndpoint},
};

/// Number of threads that serve connections.
const WORKERS: usize = 2;

/// Time that running answers have to finish after the first signal.
const GRACE: Duration = Duration::from_secs(60);

/// Address of a server and access to it.
///
/// ```
/// use narthex_server::{AccessOptions, ServeOptions};
///
/// let access = AccessOptions { cors_origins: vec!["https://app.example".parse()?], ..AccessOptions::default() };
/// let options = ServeOptions { access, ..ServeOptions::local(8000) };
/// assert_eq!(options.host, "localhost");
/// # Ok::<(), narthex_server::BadOrigin>(())
/// ```
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address or host name to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Path of a Unix socket to listen on instead of the host and port. Only the user of this process can connect
    /// there.
    pub unix_socket: Option<PathBuf>,
    /// Certificate and key for TLS on the port.
    pub tls: Option<TlsFiles>,
    /// Access to the server.
    pub access: AccessOptions,
    /// Limits on clients.
    pub limits: Limits,
    /// Treatment of requests.
    pub requests: RequestOptions,
    /// Changes of the settings by requests; `None` to refuse them.
    pub settings: Option<SettingsEditor>,
    /// The collector that receives a trace of each request.
    pub traces: Option<TracesEndpoint>,
}

impl ServeOptions {
    /// Returns options for a server that only programs of this machine can reach.
    pub fn local(port: u16) -> Self {
        Self {
            host: "localhost".to_owned(),
            port,
            unix_socket: None,
            tls: None,
            access: AccessOptions::default(),
            limits: Limits::standard(),
            requests: RequestOptions::default(),
            settings: None,
            traces: None,
        }
    }

    /// Checks that a server with these options can start, before anything is loaded.
    ///
    /// # Errors
    /// [`ServeError::NoKey`] for a host that other machines can reach if there is no key; [`ServeError::Keys`] for a
    /// malformed key file; [`ServeError::Tls`] for a certificate or a key that cannot be used; [`ServeError::Traces`] for a
    /// collector on another machine if the gateway is offline.
    pub fn check(&self, gateway: &Gateway) -> Result<(), ServeError> {
        self.acceptor()?;
        let is_offline = gateway.config().network == Network::CacheOnly;
        if let Some(endpoint) = self.traces.as_ref().filter(|endpoint| is_offline && !endpoint.is_loopback())
        {
            let reason = format!("{endpoint} is another machine, and the server is offline");
            return Err(ServeError::Traces { reason });
        }
        if self.has_key(gateway)? || self.is_local() || self.access.authentication == Authentication::Off {
            return Ok(());
        }
        Err(ServeError::NoKey { host: self.host.clone() })
    }

    /// Returns true if the store or the options have a key.
    pub(crate) fn has_key(&self, gateway: &Gateway) -> Result<bool, ServeError> {
        Ok(!gateway.keys()?.is_empty() || !self.access.keys.is_empty())
    }

    /// Returns true if only programs of this machine can connect.
    pub(crate) fn is_local(&self) -> bool {
        self.unix_socket.is_some() || is_loopback(&self.host)
    }

    fn acceptor(&self) -> Result<Option<TlsAcceptor>, ServeError> {
        let acceptor = self.tls.as_ref().map(TlsFiles::acceptor).transpose();
        acceptor.map_err(|reason| ServeError::Tls { reason })
    }

    /// Binds the socket. Returns it with the machines that can connect to it.
    async fn listen(&self) -> Result<BoundListener, ServeError> {
        if let Some(path) = &self.unix_socket {
            return listen_unix(path).await;
        }
        let failed = |source| ServeError::Bind { host: self.host.clone(), port: self.port, source };
        let sockets = TcpSockets::bind(&self.host, self.port).await.map_err(failed)?;
        let is_local = is_loopback(&self.host) && sockets.address()?.ip().to_canonical().is_loopback();
        let exposure = if is_local { Exposure::Local } else { Exposure::Open { host: self.host.clone() } };
        let listener = match self.acceptor()? {
            Some(acceptor) => Listener::Tls(sockets, acceptor),
            None => Listener::Tcp(sockets),
        };
        Ok(BoundListener { listener, exposure })
    }
}

/// Bound socket, and the machines that can connect to it.
struct BoundListener {
    listener: Listener,
    exposure: Exposure,
}

#[cfg(unix)]
async fn listen_unix(path: &Path) -> Result<BoundListener, ServeError> {
    let failed = |source| ServeError::UnixSocket { path: path.to_owned(), source };
    let listener = UnixSocket::bind(path).await.map(Listener::Unix).map_err(failed)?;
    Ok(BoundListener { listener, exposure: Exposure::Local })
}

#[cfg(not(unix))]
async fn listen_unix(path: &Path) -> Result<BoundListener, ServeError> {
    let source = io::Error::new(io::ErrorKind::Unsupported, "this system has no Unix sockets");
    Err(ServeError::UnixSocket { path: path.to_owned(), source })
}

/// Reason why a server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be bound.
    #[error("cannot listen on {host}:{port}: {source}")]
    Bind {
        /// The host.
        host: String,
        /// The port.
        port: u16,
        /// The system's reason.
        source: io::Error,
    },
    /// The Unix socket cannot be created.
    #[error("cannot listen on the Unix socket {}: {source}", path.display())]
    UnixSocket {
        /// The path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The certificate or its key cannot be used.
    #[error("TLS cannot be enabled: {reason}")]
    Tls {
        /// Reason.
        reason: String,
    },
    /// Traces cannot be exported.
    #[error("traces cannot be exported: {reason}")]
    Traces {
        /// Reason.
        reason: String,
    },
    /// The server would listen for other machines without a key.
    #[error("listening on {host} lets other machines send requests, and there is no API key")]
    NoKey {
        /// The host.
        host: String,
    },
    /// The API keys cannot be read.
    #[error(transparent)]
    Keys(#[from] narthex_gateway::Error),
    /// The runtime or the listener failed.
    #[error("the server failed: {0}")]
    Io(#[from] io::Error),
}

impl ServeError {
    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoKey { .. } | Self::Traces { .. } => ErrorKind::BadRequest,
            Self::Tls { .. } => ErrorKind::Malformed,
            Self::Keys(error) => error.kind(),
            // Ports below 1024 need privileges, which are no limit of the disk.
            Self::Bind { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                ErrorKind::Unavailable
            }
            Self::Bind { source, .. } | Self::UnixSocket { source, .. } | Self::Io(source) => {
                match ErrorKind::of_io(source) {
                    ErrorKind::Storage => ErrorKind::Storage,
                    _ => ErrorKind::Unavailable,
                }
            }
        }
    }

    /// Returns the next step, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Bind { source, port, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(format!(
                "port {port} is in use; `narthex ps` lists running servers, --port selects another port"
            )),
            Self::Bind { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 need more privileges; select another with --port".to_owned())
            }
            Self::UnixSocket { source, .. } if source.kind() == io::ErrorKind::AddrInUse => {
                Some("another program listens there; choose another path".to_owned())
            }
            Self::UnixSocket { source, .. } if is_of_path(source) => {
                Some("choose a path in a folder of your own".to_owned())
            }
            Self::Tls { .. } => Some(
                "--tls-cert takes the server's certificate in PEM, followed by those that sign it, and --tls-key its \
                 private key"
                    .to_owned(),
            ),
            Self::NoKey { .. } => Some(
                "create a key with `narthex key add NAME`, or listen on localhost; --insecure-no-auth serves without keys"
                    .to_owned(),
            ),
            Self::Keys(error) => error.hint(),
            _ => None,
        }
    }
}

/// Returns whether a Unix socket may be possible at another path. Limits on open files and on memory apply at any.
fn is_of_path(error: &io::Error) -> bool {
    use io::ErrorKind as Io;
    ErrorKind::of_io(error) != ErrorKind::Storage
        || matches!(
            error.kind(),
            Io::PermissionDenied | Io::ReadOnlyFilesystem | Io::StorageFull | Io::QuotaExceeded
        )
}

/// Serves until a signal. A [`CurrentGateway`] may be replaced meanwhile. `ready` receives the bound address. Each call of `signal` waits for the next signal. After
/// the first one, running answers are finished and other connections are closed. A second one ends the server at once.
pub fn run_until(
    gateway: impl Into<CurrentGateway>,
    options: ServeOptions,
    ready: impl FnOnce(ServerAddress),
    signal: impl AsyncFnMut(),
) -> Result<(), ServeError> {
    // Tokio panics if it cannot start its workers.
    check_threads(WORKERS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let outcome = runtime.block_on(serve(gateway.into(), options, ready, signal));
    // Loads whose clients disconnected may still run. The server does not wait for them.
    runtime.shutdown_background();
    outcome
}

async fn serve(
    current: CurrentGateway,
    options: ServeOptions,
    ready: impl FnOnce(ServerAddress),
    mut signal: impl AsyncFnMut(),
) -> Result<(), ServeError> {
    let gateway = current.get();
    options.check(&gateway)?;
    let BoundListener { listener, exposure } = options.listen().await?;
    let ServeOptions { access, limits, requests, settings, traces, .. } = options;
    let address = listener.address()?;
    let traces = traces.as_ref().map(Traces::start).transpose();
    let traces = traces.map_err(|reason| ServeError::Traces { reason })?.unwrap_or_default();
    let shared = ServerResources {
        settings,
        requests: RecentRequests::traced(traces.clone()),
        ..ServerResources::new(&gateway, requests, limits.memory)
    };
    let history = shared.history.clone();
    let access = Access::new(current, access, &exposure, shared)?;
    let (stop, stopped) = watch::channel(false);
    let Routers { all, reports } = routes::routers(access);
    let connections = Connections::new(all, reports, limits, stopped);
    ready(address);
    tokio::select! {
        () = connections.serve(&listener) => {}
        () = history.watch(&gateway) => {}
        () = power::watch(&gateway) => {}
        () = signal() => {}
    }

    drop(listener);
    tracing::info!("finishing running answers; a second signal stops at once");
    let _ = stop.send(true);
    tokio::select! {
        () = connections.ended() => {}
        () = signal() => tracing::warn!("stopping at once"),
        () = tokio::time::sleep(GRACE) => tracing::warn!("answers did not finish within {GRACE:?}; stopping"),
    }
    gateway.shutdown(Drain::Now);
    traces.stop().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_machine_and_malformed_files_have_kinds_of_their_own() {
        let unix = |source| ServeError::UnixSocket { path: "s".into(), source };
        let bind = |source| ServeError::Bind { host: "h".to_owned(), port: 1, source };
        let check = |error: ServeError, expect: ErrorKind| assert_eq!(error.kind(), expect, "{error}");
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        check(unix(denied()), ErrorKind::Storage);
        check(unix(io::ErrorKind::AddrInUse.into()), ErrorKind::Unavailable);
        check(bind(denied()), ErrorKind::Unavailable);
        check(bind(io::ErrorKind::AddrInUse.into()), ErrorKind::Unavailable);
        check(io::Error::from(io::ErrorKind::StorageFull).into(), ErrorKind::Storage);
        check(io::Error::from(io::ErrorKind::NotConnected).into(), ErrorKind::Unavailable);
        check(ServeError::Tls { reason: "no certificate".to_owned() }, ErrorKind::Malformed);
        check(ServeError::NoKey { host: "h".to_owned() }, ErrorKind::BadRequest);
        let hint = unix(denied()).hint();
        assert!(hint.is_some_and(|hint| hint.contains("a folder of your own")));
        assert_eq!(unix(io::ErrorKind::OutOfMemory.into()).hint(), None, "another path does not help");
    }
}
