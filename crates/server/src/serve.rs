//! The life of a server: bind, serve, finish running answers.

use std::{future::IntoFuture, io, net::SocketAddr, time::Duration};

use narthex_gateway::{Drain, Gateway};
use tokio::{net::TcpListener, signal, sync::watch};

use crate::{
    connection::{ConnectionState, Connections},
    guard::Guard,
    routes,
};

/// Time that running answers have to finish after the first signal.
const GRACE: Duration = Duration::from_secs(60);

/// Address of a server and access to it.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address or host name to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Origin whose web pages may send requests, beside local ones.
    pub cors_origin: Option<String>,
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
    let ServeOptions { host, port, cors_origin } = options;
    let guard = Guard { host: host.clone(), cors_origin };
    let listener = TcpListener::bind((host.as_str(), port)).await.map_err(|source| ServeError::Bind {
        host,
        port,
        source,
    })?;
    let address = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let app = routes::router(gateway.clone(), guard).into_make_service_with_connect_info::<ConnectionState>();
    ready(address);
    let server = axum::serve(Connections { listener, stopped: stopped.clone() }, app)
        .with_graceful_shutdown(async move {
            // The sender lives until the signal, so this completes only then.
            let _ = stopped.wait_for(|stop| *stop).await;
        })
        .into_future();
    tokio::pin!(server);
    tokio::select! {
        outcome = &mut server => outcome?,
        () = signal() => {
            tracing::info!("finishing running answers; a second signal stops at once");
            let _ = stop.send(true);
            tokio::select! {
                outcome = &mut server => outcome?,
                () = signal() => tracing::warn!("stopping at once"),
                () = tokio::time::sleep(GRACE) => tracing::warn!("answers did not finish within {GRACE:?}; stopping"),
            }
        }
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
