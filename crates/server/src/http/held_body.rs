//! Response bodies that own a value until they end or until their bytes were sent, and report their progress to it. A
//! client that disconnects ends its body.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use futures::ready;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};

struct HeldBody<T, F> {
    body: Body,
    held: T,
    on_poll: F,
}

impl<T: Unpin, F: Fn(&T, PollResult) + Unpin> HttpBody for HeldBody<T, F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let outcome = Pin::new(&mut this.body).poll_frame(context);
        let result = if outcome.is_ready() { PollResult::Next } else { PollResult::Pending };
        (this.on_poll)(&this.held, result);
        outcome
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Result of a poll of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PollResult {
    /// The next part of the body, or its end. The client has taken everything before it.
    Next,
    /// The next part does not exist yet.
    Pending,
}

/// Attaches a value to the body of a response, which drops it at the end of the body.
pub(crate) fn hold<T: Send + Unpin + 'static>(held: T, response: Response) -> Response {
    hold_watched(held, response, |_, _| ())
}

/// Attaches a value as [`hold`] does. Each poll of the body calls `on_poll`.
pub(crate) fn hold_watched<T: Send + Unpin + 'static>(
    held: T,
    response: Response,
    on_poll: impl Fn(&T, PollResult) + Send + Unpin + 'static,
) -> Response {
    response.map(|body| Body::new(HeldBody { body, held, on_poll }))
}

/// Attaches a value to the body of a response and to its bytes, which drop it after the last byte was sent. A connection
/// takes the last part of a body, and ends the body, long before a slow client has read that part.
pub(crate) fn hold_until_sent<T: Clone + Send + Unpin + 'static>(held: T, response: Response) -> Response {
    response.map(|body| Body::new(SentBody { body, held }))
}

struct SentBody<T> {
    body: Body,
    held: T,
}

impl<T: Clone + Send + Unpin + 'static> HttpBody for SentBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let held = self.held.clone();
        let held_frame =
            frame.map(|frame| frame.map_data(|bytes| Bytes::from_owner(HeldBytes { bytes, _held: held })));
        Poll::Ready(Some(held_frame))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes that own a value.
struct HeldBytes<T> {
    bytes: Bytes,
    _held: T,
}

impl<T> AsRef<[u8]> for HeldBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::StreamExt;

    use super::*;

    #[tokio::test]
    async fn a_value_is_held_until_the_last_byte_was_sent() {
        let held = Arc::new(());
        let response = hold_until_sent(held.clone(), Response::new(Body::from("ab")));
        assert_eq!(response.body().size_hint().exact(), Some(2));
        let mut parts = response.into_body().into_data_stream();
        let mut bytes = parts.next().await.unwrap().unwrap();
        assert!(parts.next().await.is_none());
        drop(parts);
        // The connection has the bytes, and sends them one by one.
        let first = bytes.split_to(1);
        drop(first);
        assert_eq!((&*bytes, Arc::strong_count(&held)), (b"b".as_slice(), 2));
        drop(bytes);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
