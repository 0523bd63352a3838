//! Connections: HTTP over a client's byte stream. Every wait has a time limit, and running answers are finished at a
//! shutdown.
//!
//! A connection ends when its deadline has passed. There is a deadline while no request is active, and while a client
//! does not read an answer over HTTP/2, whose windows stop an answer before it is written. During an active request,
//! the reader of its body ([`crate::protocol::body`]) and the writes of its answer ([`stream`]) have time limits.

mod heads;
mod state;
mod stream;

use std::pin::pin;

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

pub(crate) use heads::HeadBudget;
pub(crate) use state::{ConnectionEnd, ConnectionState, RequestConnection};
pub(crate) use stream::ClientStream;

use heads::{HeadMemory, NoRoomForHead};
use state::ActiveRequest;
use stream::Connection;

use crate::http::held_body::{PollResult, hold_watched};

/// Maximum size of the head of an HTTP/1 request.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Maximum size of the head of an HTTP/2 request, with 32 bytes for each field (RFC 9113, section 6.5.2). A head with
/// many short fields takes several times this memory.
const MAX_HEADER_LIST: u32 = 32 << 10;

/// Maximum number of concurrent requests of an HTTP/2 connection.
const MAX_STREAMS: u32 = 64;

/// Maximum bytes of all bodies of an HTTP/2 connection that have arrived and were not read, and of one of them.
const RECEIVE_WINDOW: u32 = 128 << 10;

/// Maximum bytes that a stream of an HTTP/2 connection holds for its client, apart from the last part of its body.
const SEND_BUFFER: usize = 64 << 10;

/// Interval of the pings that detect disconnected HTTP/2 clients, and the maximum time for a reply.
const PING: Duration = Duration::from_secs(20);

/// A request, until its answer is complete.
struct RequestInProgress {
    active: ActiveRequest,
    _head: HeadMemory,
}

/// Serves a connection until it ends.
pub(crate) async fn serve(
    stream: impl ClientStream,
    state: ConnectionState,
    router: Router,
    heads: HeadBudget,
) {
    let router = TowerToHyperService::new(router);
    let shared = state.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        // The request begins here, because the client's input may end before the answer is polled for the first time.
        let begun = heads.reserve(&request, !shared.has_active()).map(|head| {
            let active = shared.begin(request.version(), !request.body().is_end_stream());
            request.extensions_mut().insert(active.connection());
            RequestInProgress { active, _head: head }
        });
        let router = router.clone();
        async move {
            let begun = begun?;
            let Ok(response) = router.call(request).await;
            begun.active.record_answer_begun();
            // The request is active until its answer is complete.
            let answer = hold_watched(begun, response, |begun, result| match result {
                PollResult::Next => begun.active.record_bytes_ready(),
                PollResult::Pending => begun.active.record_bytes_taken(),
            });
            Ok::<_, NoRoomForHead>(answer)
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
        .initial_connection_window_size(RECEIVE_WINDOW)
        .initial_stream_window_size(RECEIVE_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_header_list_size(MAX_HEADER_LIST);
    let io = TokioIo::new(Connection::new(stream, state.clone()));
    let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
    let mut is_stopping = false;
    loop {
        tokio::select! {
            outcome = connection.as_mut() => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "a connection failed");
                }
                // A session of another protocol may have taken over the stream; the connection ends with it.
                state.upgrade_ended().await;
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
