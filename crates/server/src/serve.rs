//! The server's life: bind, serve, finish what runs.

use std::{future::IntoFuture, io, net::SocketAddr, time::Duration};

use narthex_gateway::{Drain, Gateway};
use tokio::{net::TcpListener, signal, sync::watch};

use crate::{
    connection::{Connections, Use},
    routes,
};

/// How long running answers may take to finish after the first signal.
const GRACE: Duration = Duration::from_secs(60);

/// Where and for whom to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Address or host name to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// An origin whose web pages may call.
    pub cors_origin: Option<String>,
}

/// Why a server could not run.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address could not be had.
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
    /// The next step, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Bind { source, port, .. } if source.kind() == io::ErrorKind::AddrInUse => Some(format!(
                "another program uses port {port}; `narthex ps` shows running servers, --port picks another"
            )),
            Self::Bind { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("ports below 1024 need more rights; pick another with --port".to_owned())
            }
            _ => None,
        }
    }
}

/// Serves until SIGINT or SIGTERM; `ready` hears the address once it is bound. Answers that run then are finished, and
/// connections without one are closed. A second signal ends it at once.
pub fn run_blocking(
    gateway: Gateway,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), ServeError> {
    run_until(gateway, options, ready, interrupted)
}

/// As [`run_blocking`], for programs that end it by themselves: each call of `signal` waits for one more signal.
pub fn run_until(
    gateway: Gateway,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
    signal: impl AsyncFnMut(),
) -> Result<(), ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let outcome = runtime.block_on(serve(gateway, options, ready, signal));
    // Loads that nobody waits for any more are not waited for either.
    runtime.shutdown_background();
    outcome
}

async fn serve(
    gateway: Gateway,
    options: ServeOptions,
    ready: impl FnOnce(SocketAddr),
    mut signal: impl AsyncFnMut(),
) -> Result<(), ServeError> {
    let (host, port) = (options.host.clone(), options.port);
    let listener = TcpListener::bind((host.as_str(), port)).await.map_err(|source| ServeError::Bind {
        host,
        port,
        source,
    })?;
    let address = listener.local_addr()?;
    let (stop, mut stopped) = watch::channel(false);
    let app = routes::router(gateway.clone(), &options).into_make_service_with_connect_info::<Use>();
    ready(address);
    let server = axum::serve(Connections { listener, stopped: stopped.clone() }, app)
        .with_graceful_shutdown(async move {
            // The sender lives until the signal, so this ends only with it.
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
                () = tokio::time::sleep(GRACE) => tracing::warn!("answers took over {GRACE:?}; stopping"),
            }
        }
    }
    gateway.shutdown(Drain::Now);
    Ok(())
}

/// Returns at SIGINT or SIGTERM.
async fn interrupted() {
    let interrupt = async {
        // Where signals cannot be had the server runs until it is killed.
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
