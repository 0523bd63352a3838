//! Response bodies that own a value until they end or their client disconnects.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};

struct HeldBody<T> {
    body: Body,
    _held: T,
}

impl<T: Unpin> HttpBody for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Attaches a value to the body of a response, which drops it at the end of the body.
pub(crate) fn hold<T: Send + Unpin + 'static>(held: T, response: Response) -> Response {
    response.map(|body| Body::new(HeldBody { body, _held: held }))
}
