//! Connections: HTTP over a client's byte stream. Every wait has a time limit, and running answers are finished at a
//! shutdown.
//!
//! A connection ends when its deadline has passed. There is a deadline only while no request is active. During an
//! active request, the reader of its body ([`crate::body`]) and the writes of its answer ([`stream`]) have time limits.

mod state;
mod stream;

use std::{convert::Infallible, pin::pin};

use axum::{Router, http::Request};
use hyper::{
    body::{Body, Incoming},
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use tokio::time::Duration;

pub(crate) use state::ConnectionState;
pub(crate) use stream::ClientStream;

use crate::held_body::hold;
use stream::Connection;

/// Maximum size of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Maximum number of concurrent requests of an HTTP/2 connection.
const MAX_STREAMS: u32 = 64;

/// Interval of the pings that detect disconnected HTTP/2 clients, and the maximum time for a reply.
const PING: Duration = Duration::from_secs(20);

/// Serves a connection until it ends.
pub(crate) async fn serve(stream: impl ClientStream, state: ConnectionState, router: Router) {
    let router = TowerToHyperService::new(router);
    let shared = state.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        // The request begins here, because the client's input may end before the answer is polled for the first time.
        let active = shared.begin(request.version(), !request.body().is_end_stream());
        request.extensions_mut().insert(shared.clone());
        let router = router.clone();
        async move {
            let response = router.call(request).await?;
            active.answer();
            Ok::<_, Infallible>(hold(active, response))
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32);
    let io = TokioIo::new(Connection::new(stream, state.clone()));
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut is_stopping = false;
    loop {
        tokio::select! {
            outcome = connection.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection failed");
                }
                return;
            }
            () = state.expired() => return,
            () = state.stopped(), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
                state.stop();
            }
        }
    }
}
