//! Bodies of answers, which tell their connection how long the client takes nothing of them.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};

use super::state::ActiveRequest;

/// Body of an answer. Its request is active until it is dropped.
struct ActiveAnswer {
    body: Body,
    request: ActiveRequest,
}

impl HttpBody for ActiveAnswer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        let outcome = Pin::new(&mut this.body).poll_frame(context);
        match outcome {
            Poll::Ready(_) => this.request.wait_for_client(),
            Poll::Pending => this.request.wait_for_answer(),
        }
        outcome
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the answer to a request, which stays active until the end of its body.
pub(super) fn answer(request: ActiveRequest, response: Response) -> Response {
    request.answer();
    response.map(|body| Body::new(ActiveAnswer { body, request }))
}
