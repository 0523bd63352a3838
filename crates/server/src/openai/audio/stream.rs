//! A transcript as server-sent events while it is recognised.

use std::{convert::Infallible, ops::ControlFlow, time::Duration};

use axum::response::{
    IntoResponse, Response,
    sse::{Event, KeepAlive, Sse},
};
use narthex_audio::transcript::{PlainTranscript, Segment, TokenLogprob};
use narthex_gateway::{Cancel, request::TranscriptionEvent};
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::mpsc;

use super::job::TranscriptionJob;
use crate::{
    app::App,
    error::{ApiError, OpenAiErrorBody},
    http::budget::Reservation,
    protocol::{blocking::CancelOnDrop, device_headers::with_device_headers, loading},
};

/// Interval of the comments that keep a quiet stream open and detect disconnected clients.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// An event of a transcription.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum TranscriptEvent {
    /// Text that follows.
    #[serde(rename = "transcript.text.delta")]
    Delta {
        /// The text.
        delta: String,
        /// Its tokens with their probabilities, if they were requested.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        logprobs: Vec<TokenLogprob>,
    },
    /// The end of the transcript.
    #[serde(rename = "transcript.text.done")]
    Done(PlainTranscript),
}

/// Starts a transcription, and returns the response with its events.
///
/// The channel is unbounded, because a model must not wait for a slow client. A transcript is at most as large as the text
/// of [`super::job::MAX_SECONDS`].
pub(super) async fn respond(
    app: &App,
    job: TranscriptionJob,
    body: Reservation,
) -> Result<Response, ApiError> {
    let model = loading::wait(app, &job.request.model).await?;
    let ran_on = model.ran_on();
    let (sender, receiver) = mpsc::unbounded_channel();
    let cancel = Cancel::new();
    let guard = CancelOnDrop(cancel.clone());
    let jobs = app.shared.jobs.clone();

    tokio::spawn(async move {
        let events = sender.clone();
        let run = jobs.run_encoder(move || {
            let _body = body;
            let mut is_first = true;
            job.run(&model, &cancel, |event| match event {
                TranscriptionEvent::Segment(Segment { text, logprobs, .. }) => {
                    let delta = if is_first { text.trim_start().to_owned() } else { text };
                    is_first = false;
                    let delta = TranscriptEvent::Delta { delta, logprobs };
                    // The receiver is gone if the client has disconnected.
                    if events.send(Ok(delta)).is_ok() {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                }
                TranscriptionEvent::Progress { .. } => ControlFlow::Continue(()),
            })
        });
        let end = run.await.map(|transcript| TranscriptEvent::Done(transcript.plain()));
        let _ = sender.send(end);
    });
    Ok(with_device_headers(&ran_on, first(receiver, guard).await?))
}

/// Waits for the first event, so that a request that fails at once has the status of its error.
async fn first(
    mut receiver: mpsc::UnboundedReceiver<Result<TranscriptEvent, ApiError>>,
    guard: CancelOnDrop,
) -> Result<Response, ApiError> {
    let first = match tokio::time::timeout(KEEP_ALIVE, receiver.recv()).await {
        Ok(Some(event)) => Some(event?),
        Ok(None) => return Err(ApiError::panicked()),
        Err(_) => None,
    };
    let begin = futures::stream::iter(first.map(|event| Ok(encode(Ok(event)))));
    let rest = futures::stream::unfold((receiver, guard), |(mut receiver, guard)| async move {
        let event = receiver.recv().await?;
        Some((Ok::<_, Infallible>(encode(event)), (receiver, guard)))
    });
    let events = futures::StreamExt::chain(begin, rest);
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("")).into_response())
}

/// Returns the server-sent event of an event or of an error, which is the last one.
fn encode(event: Result<TranscriptEvent, ApiError>) -> Event {
    // Serialising strings and numbers to JSON cannot fail.
    let json = match event {
        Ok(event) => serde_json::to_string(&event),
        Err(error) => serde_json::to_string(&OpenAiErrorBody::of_stream(error.message())),
    };
    Event::default().data(json.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use narthex_audio::transcript::Usage;

    use super::*;

    #[test]
    fn events_have_the_names_of_the_api() {
        let delta = TranscriptEvent::Delta { delta: "Hi".to_owned(), logprobs: Vec::new() };
        assert_eq!(
            serde_json::to_string(&delta).unwrap(),
            r#"{"type":"transcript.text.delta","delta":"Hi"}"#
        );
        let logprobs = vec![TokenLogprob { token: "Hi".to_owned(), logprob: -0.5, bytes: b"Hi".to_vec() }];
        let usage = Usage::Duration { seconds: 2 };
        let done = TranscriptEvent::Done(PlainTranscript { text: "Hi".to_owned(), logprobs, usage });
        assert_eq!(
            serde_json::to_string(&done).unwrap(),
            r#"{"type":"transcript.text.done","text":"Hi","logprobs":[{"token":"Hi","logprob":-0.5,"bytes":[72,105]}],"#
                .to_owned()
                + r#""usage":{"type":"duration","seconds":2}}"#
        );
    }
}
