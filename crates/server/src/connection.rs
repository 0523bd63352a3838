//! Connections that track whether they carry an answer, so that a shutdown waits for answers only.
//!
//! At a shutdown hyper closes idle connections, but waits for the rest of a request that has started to arrive. Here such a
//! connection ends as if its client had disconnected.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    body::HttpBody,
    extract::{ConnectInfo, Request, connect_info::Connected},
    http::{Extensions, Version},
    middleware::Next,
    response::Response,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::watch,
};

/// No request has arrived, or only a part of one.
const READING: u8 = 0;

/// A request has arrived completely. Its answer is being sent, or was sent last.
const ANSWERING: u8 = 1;

/// Requests and answers overlap (HTTP/2); hyper tracks them.
const MULTIPLEXED: u8 = 2;

/// State of a connection, shared by its reader and its requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct ConnectionState(Arc<AtomicU8>);

impl ConnectionState {
    /// Records that a request has arrived completely.
    pub(crate) fn request_received(extensions: &Extensions) {
        // A router without a listener, as in tests, has no connection.
        if let Some(ConnectInfo(Self(state))) = extensions.get() {
            let _ = state.compare_exchange(READING, ANSWERING, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn multiplexed(extensions: &Extensions) {
        if let Some(ConnectInfo(Self(state))) = extensions.get() {
            state.store(MULTIPLEXED, Ordering::Relaxed);
        }
    }

    /// Records that a part of a request has arrived.
    fn bytes_received(&self) {
        let _ = self.0.compare_exchange(ANSWERING, READING, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_reading(&self) -> bool {
        self.0.load(Ordering::Relaxed) == READING
    }
}

/// Records the arrival of requests without a body. The reader of a body records the others.
pub(crate) async fn track(request: Request, next: Next) -> Response {
    if request.version() == Version::HTTP_2 {
        ConnectionState::multiplexed(request.extensions());
    } else if request.body().is_end_stream() {
        ConnectionState::request_received(request.extensions());
    }
    next.run(request).await
}

/// A listener whose connections end at shutdown unless they carry an answer.
pub(crate) struct Connections {
    pub(crate) listener: TcpListener,
    /// Becomes true at shutdown.
    pub(crate) stopped: watch::Receiver<bool>,
}

impl Listener for Connections {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let mut stopped = self.stopped.clone();
        let stopped = Box::pin(async move {
            if stopped.wait_for(|stopped| *stopped).await.is_err() {
                // The sender was dropped, so no shutdown can be signalled.
                std::future::pending::<()>().await;
            }
        });
        (Connection { stream, state: ConnectionState::default(), stopped: Some(stopped) }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A client's connection.
pub(crate) struct Connection {
    stream: TcpStream,
    state: ConnectionState,
    /// Completes at shutdown; `None` afterwards.
    stopped: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Connected<IncomingStream<'_, Connections>> for ConnectionState {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        stream.io().state.clone()
    }
}

impl Connection {
    /// Returns true after the shutdown, which wakes the reader.
    fn is_stopped(&mut self, context: &mut Context<'_>) -> bool {
        if self.stopped.as_mut().is_some_and(|stopped| stopped.as_mut().poll(context).is_ready()) {
            self.stopped = None;
        }
        self.stopped.is_none()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.state.is_reading() && self.is_stopped(context) {
            // Reading no bytes means that the client closed its side.
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.state.bytes_received();
        }
        outcome
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
