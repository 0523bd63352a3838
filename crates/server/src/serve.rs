//! The life of a server: bind, serve, finish running answers.

use std::{io, net::SocketAddr, time::Duration};

use narthex_gateway::{Drain, Gateway};
use tokio::{net::TcpListener, signal, sync::watch};

use crate::{
    accept::{Connections, Listener},
    access::{Access, AccessOptions, Authentication, Exposure, is_loopback},
    limits::Limits,
    routes,
};

/// Time that running answers have to finish after the first signal.
const GRACE: Duration = Duration::from_secs(60);

/// Address of a server and access to it.
///
/// ```
/// use narthex_server::{AccessOptions, ServeOptions};
///
/// let access = AccessOptions { cors_origins: vec!["https://app.example".parse()?], ..AccessOptions::default() };
/// let options = ServeOptions { access, ..ServeOptions::local(8000) };
/// assert_eq!(options.host, "127.0.0.1");
/// # Ok::<(), narthex_server::BadOrigin>(())
/// ```
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address or host name to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Access to the server.
    pub access: AccessOptions,
    /// Limits on clients.
    pub limits: Limits,
}

impl ServeOptions {
    /// Options of a server for programs of this machine.
    pub fn local(port: u16) -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port,
            access: AccessOptions::default(),
            limits: Limits::standard(),
        }
    }

    /// Checks that a server with these options may start, before anything is loaded.
    ///
    /// # Errors
    /// [`ServeError::NoKey`] for a host that other machines can reach if there is no key; [`ServeError::Keys`] for a
    /// malformed key file.
    pub fn check(&self, gateway: &Gateway) -> Result<(), ServeError> {
        let has_key = !gateway.keys()?.is_empty() || !self.access.keys.is_empty();
        if has_key || is_loopback(&self.host) || self.access.authentication == Authentication::Off {
            return Ok(());
        }
        Err(ServeError::NoKey { host: self.host.clone() })
    }
}

/// Why a server could not run.
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
    /// Returns the next step, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Bind { source, port, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(format!(
                "another program uses port {port}; `narthex ps` lists running servers, --port selects another port"
            )),
            Self::Bind { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 need more privileges; select another with --port".to_owned())
            }
            Self::NoKey { .. } => Some(
                "create a key with `narthex key add NAME`, or listen on 127.0.0.1; --insecure-no-auth serves without keys"
                    .to_owned(),
            ),
            Self::Keys(error) => error.hint(),
            _ => None,
        }
    }
}

/// Serves until SIGINT or SIGTERM. `ready` receives the bound address. Answers that are running at the signal are finished,
/// other connections are closed. A second signal ends the server at once.
pub fn run_blocking(
    gateway: Gateway,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    run_until(gateway, options, ready, interrupted)
}

/// As [`run_blocking`], for programs with a signal of their own: each call of `signal` waits for one more.
pub fn run_until(
    gateway: Gateway,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
    signal: impl AsyncFnMut(),
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(serve(gateway, options, ready, signal));
    // Loads whose clients disconnected may still run; they are not waited for.
    runtime.shutdown_background();
    outcome
}

async fn serve(
    gateway: Gateway,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
    mut signal: impl AsyncFnMut(),
) -> Result<(), ServeError> {
    options.check(&gateway)?;
    let ServeOptions { host, port, access, limits } = options;
    let listener = TcpListener::bind((host.as_str(), port)).await.map(Listener::Tcp);
    let listener = listener.map_err(|source| ServeError::Bind { host: host.clone(), port, source })?;
    let address = listener.address()?;
    let is_local = is_loopback(&host) && address.ip().to_canonical().is_loopback();
    let exposure = if is_local { Exposure::Local } else { Exposure::Open { host } };
    let access = Access::new(gateway.clone(), access, &exposure)?;
    let (stop, stopped) = watch::channel(false);
    let connections = Connections::new(routes::router(access), limits, stopped);
    ready(address);
    tokio::select! {
        () = connections.serve(&listener) => {}
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
    Ok(())
}

/// Returns at SIGINT or SIGTERM.
async fn interrupted() {
    let interrupt = async {
        // Without signals the server runs until it is killed.
        if signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(mut stream) => drop(stream.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    tokio::select! {
        () = interrupt => (),
        () = terminate => (),
    }
}
