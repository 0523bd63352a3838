//! Response bodies that own a value until they end or their client disconnects, and report their progress to it.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
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
