//! The byte stream of a connection, with a time limit on writes. A client that has closed only its sending direction
//! receives its answer; one that has closed both directions is detected.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Duration, Instant, Sleep, sleep},
};

use super::state::ConnectionState;

/// First byte of every HTTP/1 answer.
const FIRST: u8 = b'H';

/// Interval of the checks for a client that has closed both directions. A byte stream that has ended does not report a
/// reset by itself.
const CHECK: Duration = Duration::from_millis(100);

/// Maximum time for reading the rest of a refused request. Closing a connection with unread bytes resets it, and the
/// client may lose the answer.
const LINGER: Duration = Duration::from_secs(5);

/// A client's byte stream, such as a TCP connection.
pub(crate) trait ClientStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> ClientStream for S {}

/// A client's byte stream with its state.
pub(super) struct Connection<S> {
    stream: S,
    state: ConnectionState,
    /// Runs while a write waits for the client.
    write_limit: Option<Pin<Box<Sleep>>>,
    /// The client's half-close, from the end of its bytes.
    half_close: Option<HalfClose>,
    /// Runs from the end of the answers until the rest of a refused request was read.
    linger: Option<Pin<Box<Sleep>>>,
}

/// Half-closed connection: the client has closed its sending direction.
///
/// The client may wait for its answer or be gone. In TCP, both look the same until something is sent. Therefore the
/// first byte of the answer is sent early, once: if the client is gone, it resets the connection.
struct HalfClose {
    check: Pin<Box<Sleep>>,
    /// True if the first byte of an answer was sent and the rest was not.
    is_ahead: bool,
    /// True if a first byte was sent early on this connection.
    was_ahead: bool,
}

impl HalfClose {
    fn new() -> Self {
        Self { check: Box::pin(sleep(CHECK)), is_ahead: false, was_ahead: false }
    }
}

impl<S: ClientStream> Connection<S> {
    pub(super) fn new(stream: S, state: ConnectionState) -> Self {
        Self { stream, state, write_limit: None, half_close: None, linger: None }
    }

    /// Waits while a half-closed client receives its answer. Fails once the client is gone. Returns if the wait is
    /// over: the connection has no active request, or its last request is incomplete.
    fn poll_half_closed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, state, half_close, write_limit, .. } = self;
        let half_close = half_close.get_or_insert_with(HalfClose::new);
        while state.is_active() {
            ready!(half_close.check.as_mut().poll(context));
            half_close.check.as_mut().reset(Instant::now() + CHECK);
            // If the request is complete, its reader has seen its end by now.
            if !state.is_complete() {
                break;
            }
            let stream = Pin::new(&mut *stream);
            if half_close.was_ahead || !state.is_unanswered() || write_limit.is_some() {
                // Writes no bytes, but fails if the connection was reset.
                if let Poll::Ready(Err(error)) = stream.poll_write(context, &[]) {
                    return Poll::Ready(Err(error));
                }
            } else if let Poll::Ready(sent) = stream.poll_write(context, &[FIRST]) {
                half_close.is_ahead = sent? > 0;
                half_close.was_ahead = half_close.is_ahead;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Applies the time limit to a pending write. Fails if the client has read nothing for that time.
    fn limit<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            if self.write_limit.take().is_some() {
                self.state.set_blocked(false);
            }
            return outcome;
        }
        let running = self.write_limit.get_or_insert_with(|| {
            self.state.set_blocked(true);
            Box::pin(sleep(self.state.limits().write))
        });
        ready!(running.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(ErrorKind::TimedOut, "the client did not read within the time limit")))
    }

    /// Returns true if the first byte of the answer was sent and the rest was not.
    fn is_ahead(&self) -> bool {
        self.half_close.as_ref().is_some_and(|half_close| half_close.is_ahead)
    }

    /// Writes the rest of an answer whose first byte was sent early.
    fn poll_write_rest(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Some(rest) = bytes.strip_prefix(&[FIRST]) else {
            return Poll::Ready(Err(io::Error::other(
                "the answer does not begin with the first byte of an HTTP/1 response",
            )));
        };
        let mut written = 0;
        if !rest.is_empty() {
            let outcome = Pin::new(&mut self.stream).poll_write(context, rest);
            written = ready!(self.limit(context, outcome))?;
        }
        if let Some(half_close) = &mut self.half_close {
            half_close.is_ahead = false;
        }
        Poll::Ready(Ok(written + 1))
    }

    /// Reads and discards the rest of a refused request.
    fn poll_drain(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        let mut bytes = [0; 16 << 10];
        loop {
            if linger.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::new(&mut bytes);
            let outcome = ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer));
            if outcome.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl<S: ClientStream> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.half_close.is_none() {
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
            if buffer.filled().len() > before {
                this.state.bytes_received();
                return Poll::Ready(Ok(()));
            }
        }
        this.poll_half_closed(context)
    }
}

impl<S: ClientStream> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.is_ahead() {
            return this.poll_write_rest(context, bytes);
        }
        let outcome = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.limit(context, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let outcome = Pin::new(&mut this.stream).poll_flush(context);
        this.limit(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            let outcome = Pin::new(&mut this.stream).poll_shutdown(context);
            ready!(this.limit(context, outcome))?;
        }
        if !this.state.is_complete() {
            ready!(this.poll_drain(context));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.is_ahead() {
            let first = bytes.iter().find(|slice| !slice.is_empty());
            return first.map_or(Poll::Ready(Ok(0)), |slice| this.poll_write_rest(context, slice));
        }
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(context, bytes);
        this.limit(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Version;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        sync::watch,
        time::timeout,
    };

    use super::{
        super::state::{ActiveRequest, ConnectionState},
        *,
    };
    use crate::http::limits::Limits;

    /// Returns a client, and its connection after a complete request.
    fn asked(limits: Limits) -> (DuplexStream, Connection<DuplexStream>, ActiveRequest) {
        let (client, server) = duplex(64);
        let (_, stopped) = watch::channel(false);
        let state = ConnectionState::new(limits, stopped);
        let request = state.begin(Version::HTTP_11, false);
        (client, Connection::new(server, state), request)
    }

    #[tokio::test]
    async fn a_client_that_sends_no_more_gets_a_byte_early_and_then_the_rest() {
        let (mut client, mut connection, request) = asked(Limits::standard());
        client.shutdown().await.unwrap();
        tokio::select! {
            outcome = connection.read_u8() => panic!("{outcome:?}"),
            first = client.read_u8() => assert_eq!(first.unwrap(), b'H'),
        }
        request.record_answer_begun();
        connection.write_all(b"HTTP/1.1 200 OK").await.unwrap();
        connection.write_all(b"\r\nHost").await.unwrap();
        drop(request);
        assert_eq!(connection.read(&mut [0; 8]).await.unwrap(), 0);
        drop(connection);
        let mut rest = String::new();
        client.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "TTP/1.1 200 OK\r\nHost");
    }

    #[tokio::test]
    async fn a_client_that_is_gone_is_found_out() {
        let (client, mut connection, _request) = asked(Limits::standard());
        drop(client);
        assert_eq!(connection.read_u8().await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_given_up() {
        let limits = Limits { write: Duration::from_millis(10), ..Limits::standard() };
        let (_client, mut connection, _request) = asked(limits);
        assert_eq!(connection.write_all(&[0; 65]).await.unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_refused_body_is_read_before_the_connection_is_closed() {
        let (mut client, mut connection, request) = asked(Limits::standard());
        drop(request);
        let _refused = connection.state.begin(Version::HTTP_11, true);
        let send = async {
            client.write_all(&[0; 1000]).await?;
            client.shutdown().await
        };
        let both = timeout(Duration::from_secs(30), async { tokio::join!(send, connection.shutdown()) });
        assert!(matches!(both.await, Ok((Ok(()), Ok(())))));
    }
}
