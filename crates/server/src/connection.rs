//! Connections that know whether they carry an answer, so that a shutdown waits for answers and for nothing else.
//!
//! hyper closes idle connections at a shutdown by itself, but waits for the rest of a request that has begun to come. Here
//! such a connection ends as if its client had gone.

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

/// A request is awaited, or has come in part.
const READING: u8 = 0;

/// A request has come whole; its answer is on its way, or was the last thing to go out.
const ANSWERING: u8 = 1;

/// Requests and answers go on beside one another (HTTP/2), and hyper keeps account of them.
const SHARED: u8 = 2;

/// What a connection is used for; shared by its reader and its requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct Use(Arc<AtomicU8>);

impl Use {
    /// Notes that a request's body has come whole.
    pub(crate) fn answers(extensions: &Extensions) {
        // A router that serves no connection has none to note it of.
        if let Some(ConnectInfo(Self(state))) = extensions.get() {
            let _ = state.compare_exchange(READING, ANSWERING, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn shares(extensions: &Extensions) {
        if let Some(ConnectInfo(Self(state))) = extensions.get() {
            state.store(SHARED, Ordering::Relaxed);
        }
    }

    /// Notes that more of a request has come.
    fn reads(&self) {
        let _ = self.0.compare_exchange(ANSWERING, READING, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_reading(&self) -> bool {
        self.0.load(Ordering::Relaxed) == READING
    }
}

/// Notes of requests without a body that they have come whole; those with one are noted where it is read.
pub(crate) async fn note(request: Request, next: Next) -> Response {
    if request.version() == Version::HTTP_2 {
        Use::shares(request.extensions());
    } else if request.body().is_end_stream() {
        Use::answers(request.extensions());
    }
    next.run(request).await
}

/// Accepts connections that end at a shutdown, unless they carry an answer.
pub(crate) struct Connections {
    pub(crate) listener: TcpListener,
    /// Becomes true at the shutdown.
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
                // Whoever would have told of a shutdown has gone, so there is none to wait for.
                std::future::pending::<()>().await;
            }
        });
        (Connection { stream, usage: Use::default(), stopped: Some(stopped) }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A client's connection.
pub(crate) struct Connection {
    stream: TcpStream,
    usage: Use,
    /// Ends at the shutdown; `None` once that was seen.
    stopped: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl Connected<IncomingStream<'_, Connections>> for Use {
    fn connect_info(stream: IncomingStream<'_, Connections>) -> Self {
        stream.io().usage.clone()
    }
}

impl Connection {
    /// Whether the shutdown has come; wakes the reader when it does.
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
        if self.usage.is_reading() && self.is_stopped(context) {
            // Nothing read is the end of what a client sends.
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.usage.reads();
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
