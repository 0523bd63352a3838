//! Answers of upstreams, passed on as they arrive. Memory for an answer does not grow with its length.

use std::{
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    body::{Body, BodyDataStream},
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, TRANSFER_ENCODING,
        },
    },
    response::{IntoResponse, Response},
};
use futures::StreamExt;
use hyper::body::Bytes;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::{sync::OwnedSemaphorePermit, time::timeout};

use super::routed::{PassedBody, UpstreamEndpoint};
use crate::{
    app::{App, Meter},
    error::{ApiError, OpenAiErrorBody},
    keys::Permit,
    reports::metrics::{OpenStream, UpstreamOutcome},
    upstream::{
        Link, UpstreamAnswer,
        event_filter::EventFilter,
        failure::UpstreamFailure,
        state::UpstreamState,
        usage::{TokenUsage, UsageScanner},
    },
};

/// Response header with the name of the upstream that answered.
pub(super) const UPSTREAM: HeaderName = HeaderName::from_static("x-narthex-upstream");

/// Maximum bytes of an answer that is passed on only once it is complete.
const MAX_WHOLE: usize = 1 << 20;

/// Memory of an answer that is one JSON value: its parts, and all of them together.
pub(crate) const WHOLE_BYTES: usize = 2 * MAX_WHOLE;

/// Memory of a stream that is passed on: an event that is held, and the parts around it.
pub(crate) const STREAM_BYTES: usize = 256 << 10;

/// Maximum bytes of the error of an upstream.
const MAX_ERROR: usize = 64 << 10;

/// Interval of the comments in a stream without events, which detect disconnected clients.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Assumed bytes of a token of an answer that states no counts.
const TOKEN_BYTES: usize = 4;

/// A request to an upstream. Its tokens are charged when it is dropped, which also cancels it.
struct Exchange {
    upstream: Arc<UpstreamState>,
    meter: Meter,
    endpoint: UpstreamEndpoint,
    start: Instant,
    link: Option<Link>,
    /// Tokens of an answer that states none.
    estimate: TokenUsage,
    usage: Option<TokenUsage>,
    outcome: UpstreamOutcome,
    has_begun: bool,
    _slot: OwnedSemaphorePermit,
    /// Answers of the caller's key in addition to the first one.
    _more_answers: Option<Permit>,
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let metrics = &self.meter.metrics;
        metrics.upstream_request(&self.upstream.name, self.outcome);
        if self.has_begun {
            let tokens = self.usage.unwrap_or(self.estimate);
            self.meter.tokens(tokens.prompt.saturating_add(tokens.generated));
            self.upstream.add_tokens(tokens);
            metrics.upstream_tokens(&self.upstream.name, tokens.prompt, tokens.generated);
        }
        if self.has_begun && self.outcome == UpstreamOutcome::Cancelled {
            self.upstream.succeed();
        }
    }
}

/// Sends a request to an upstream. Returns its answer once its first bytes are here, so that another server may still
/// answer after a failure.
pub(super) async fn forward(
    app: &App,
    upstream: Arc<UpstreamState>,
    body: &PassedBody,
    more_answers: Option<Permit>,
) -> Result<Response, UpstreamFailure> {
    let slot = upstream.enter().inspect_err(|failure| {
        upstream.fail(failure);
        app.meter.metrics.upstream_request(&upstream.name, UpstreamOutcome::Skipped);
    })?;
    app.meter.work.add_model(&body.route.name);
    let exchange = Exchange {
        upstream,
        meter: app.meter.clone(),
        endpoint: body.endpoint,
        start: Instant::now(),
        link: None,
        estimate: TokenUsage { prompt: body.json.len() / TOKEN_BYTES, generated: 0 },
        usage: None,
        outcome: UpstreamOutcome::Cancelled,
        has_begun: false,
        _slot: slot,
        _more_answers: more_answers,
    };
    let name = HeaderValue::from_str(&exchange.upstream.name);
    let mut response = exchange.respond(body).await?;
    if let Ok(name) = name {
        response.headers_mut().insert(UPSTREAM, name);
    }
    Ok(response)
}

impl Exchange {
    async fn respond(mut self, body: &PassedBody) -> Result<Response, UpstreamFailure> {
        let path = self.upstream.settings.url.path_of(body.endpoint.path());
        let posted = self.upstream.client.post(&path, &body.json).await;
        let UpstreamAnswer { response, link } = posted.map_err(|failure| self.failed(failure))?;
        self.link = Some(link);
        let (head, incoming) = response.into_parts();
        let data = Body::new(incoming).into_data_stream();
        match head.status.as_u16() {
            200..300 => {}
            status @ (401 | 403 | 407) => return Err(self.failed(UpstreamFailure::KeyRefused(status))),
            status @ 300..400 => return Err(self.failed(UpstreamFailure::Redirect(status))),
            400..500 => return self.refused(head.status, &head.headers, data).await,
            status => return Err(self.failed(UpstreamFailure::Status(status))),
        }

        if head.headers.get(CONTENT_ENCODING).is_some_and(|value| value != "identity") {
            let reason = "expected bytes without compression, which was not accepted, found compressed ones";
            return Err(self.failed(UpstreamFailure::Malformed(reason)));
        }
        match media_type(&head.headers) {
            "text/event-stream" => {
                let is_framed =
                    [TRANSFER_ENCODING, CONTENT_LENGTH].iter().any(|name| head.headers.contains_key(name));
                let filter = EventFilter::new(body.hides_usage);
                RelayedEvents { exchange: self, data, filter, is_framed, last: Instant::now() }
                    .respond()
                    .await
            }
            "application/json" => {
                let scanner = UsageScanner::default();
                RelayedJson { exchange: self, data, scanner, length: 0 }.respond().await
            }
            _ => Err(self
                .failed(UpstreamFailure::Malformed("expected JSON or an event stream, found another type"))),
        }
    }

    /// Counts a failure, and returns it.
    fn failed(&mut self, failure: UpstreamFailure) -> UpstreamFailure {
        self.outcome = if self.has_begun { UpstreamOutcome::Cut } else { UpstreamOutcome::Failed };
        self.upstream.fail(&failure);
        tracing::warn!(upstream = self.upstream.name, "{}", failure.message(&self.upstream.name));
        failure
    }

    /// Counts the first bytes of an answer.
    fn begin(&mut self) {
        if !self.has_begun {
            self.has_begun = true;
            let time = self.start.elapsed();
            self.upstream.first_byte(time);
            self.meter.metrics.upstream_first_byte(&self.upstream.name, time);
        }
    }

    /// Counts an answer that is complete, whose connection may be used again.
    fn complete(&mut self, outcome: UpstreamOutcome) {
        self.outcome = outcome;
        self.upstream.succeed();
        if let Some(link) = self.link.take() {
            self.upstream.client.give_back(link);
        }
    }

    /// Returns the next bytes of an answer; `None` at its end.
    async fn next(&self, data: &mut BodyDataStream) -> Result<Option<Bytes>, UpstreamFailure> {
        let limit = self.upstream.settings.timeout;
        match timeout(limit, data.next()).await {
            Ok(Some(Ok(bytes))) => Ok(Some(bytes)),
            Ok(Some(Err(_))) => Err(UpstreamFailure::Cut),
            Ok(None) => Ok(None),
            Err(_) => Err(UpstreamFailure::Timeout(limit)),
        }
    }

    /// Passes on the error of a request that the upstream refuses.
    async fn refused(
        mut self,
        status: StatusCode,
        headers: &HeaderMap,
        mut data: BodyDataStream,
    ) -> Result<Response, UpstreamFailure> {
        let mut bytes = Vec::new();
        while let Some(part) = self.next(&mut data).await.map_err(|failure| self.failed(failure))? {
            bytes.extend_from_slice(&part);
            if bytes.len() > MAX_ERROR {
                break;
            }
        }

        let is_json = bytes.len() <= MAX_ERROR && serde_json::from_slice::<IgnoredAny>(&bytes).is_ok();
        if bytes.len() <= MAX_ERROR {
            self.complete(UpstreamOutcome::Refused);
        } else {
            self.outcome = UpstreamOutcome::Refused;
        }
        let mut response = if is_json {
            let body = self.without_key(bytes);
            (status, [(CONTENT_TYPE, "application/json")], body).into_response()
        } else {
            let message =
                format!("the upstream {} refused the request with status {status}", self.upstream.name);
            ApiError::plain(status, message).with_code("upstream_refused").into_response()
        };
        if let Some(wait) = headers.get(RETRY_AFTER) {
            response.headers_mut().insert(RETRY_AFTER, wait.clone());
        }
        Ok(response)
    }

    /// Hides the upstream's key in an error that repeats it.
    fn without_key(&self, text: Vec<u8>) -> Vec<u8> {
        let Some(key) = &self.upstream.settings.key else { return text };
        match String::from_utf8(text) {
            Ok(text) => text.replace(key.secret(), "***").into_bytes(),
            Err(error) => error.into_bytes(),
        }
    }
}

/// Returns the media type of an answer, without parameters.
fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = value.split(';').next().unwrap_or_default().trim();
    let known = ["application/json", "text/event-stream"];
    known.into_iter().find(|known| name.eq_ignore_ascii_case(known)).unwrap_or(name)
}

/// An answer that is one JSON value.
struct RelayedJson {
    exchange: Exchange,
    data: BodyDataStream,
    scanner: UsageScanner,
    length: usize,
}

impl RelayedJson {
    async fn respond(mut self) -> Result<Response, UpstreamFailure> {
        let mut whole = Vec::new();
        while whole.len() <= MAX_WHOLE {
            match self.next().await.map_err(|failure| self.exchange.failed(failure))? {
                Some(bytes) => whole.extend_from_slice(&bytes),
                None => return self.whole(whole),
            }
        }

        self.exchange.begin();
        let parts = futures::stream::unfold(Some(self), |relayed| async {
            let mut relayed = relayed?;
            match relayed.next().await {
                Ok(bytes) => {
                    let bytes = bytes.or_else(|| {
                        relayed.exchange.complete(UpstreamOutcome::Answered);
                        None
                    })?;
                    Some((Ok(bytes), Some(relayed)))
                }
                Err(failure) => {
                    let failure = relayed.exchange.failed(failure);
                    Some((Err(io::Error::other(failure.to_string())), None))
                }
            }
        });
        let parts = futures::stream::iter([Ok(Bytes::from(whole))]).chain(parts);
        Ok(([(CONTENT_TYPE, "application/json")], Body::from_stream(parts)).into_response())
    }

    /// Returns an answer that is complete.
    fn whole(mut self, bytes: Vec<u8>) -> Result<Response, UpstreamFailure> {
        if serde_json::from_slice::<IgnoredAny>(&bytes).is_err() {
            let reason = "expected JSON, found other bytes";
            return Err(self.exchange.failed(UpstreamFailure::Malformed(reason)));
        }
        self.exchange.begin();
        self.exchange.complete(UpstreamOutcome::Answered);
        Ok(([(CONTENT_TYPE, "application/json")], bytes).into_response())
    }

    async fn next(&mut self) -> Result<Option<Bytes>, UpstreamFailure> {
        let bytes = self.exchange.next(&mut self.data).await?;
        if let Some(bytes) = &bytes {
            self.scanner.feed(bytes);
            self.length += bytes.len();
            self.exchange.usage = self.scanner.usage();
            let is_encoder = self.exchange.endpoint.is_encoder();
            self.exchange.estimate.generated = if is_encoder { 0 } else { self.length / TOKEN_BYTES };
        }
        Ok(bytes)
    }
}

/// An answer that is a stream of events.
struct RelayedEvents {
    exchange: Exchange,
    data: BodyDataStream,
    filter: EventFilter,
    /// True if HTTP marks the end of the body.
    is_framed: bool,
    /// Time of the last bytes.
    last: Instant,
}

/// Next part of a stream.
enum StreamPart {
    Events(Vec<u8>),
    /// Nothing has arrived for [`KEEP_ALIVE`].
    Quiet,
    End,
}

impl RelayedEvents {
    async fn respond(mut self) -> Result<Response, UpstreamFailure> {
        let first = loop {
            match self.next().await.map_err(|failure| self.exchange.failed(failure))? {
                StreamPart::Events(bytes) => break bytes,
                StreamPart::Quiet => {}
                StreamPart::End => {
                    return Err(self
                        .exchange
                        .failed(UpstreamFailure::Malformed("expected events, found none")));
                }
            }
        };
        self.exchange.begin();
        let count = OpenStream::new(self.exchange.meter.metrics.clone());
        let parts = futures::stream::unfold(Some((self, count)), |relayed| async {
            let (mut relayed, count) = relayed?;
            let (bytes, is_last) = relayed.passed().await;
            Some((Ok::<_, Infallible>(Bytes::from(bytes)), (!is_last).then_some((relayed, count))))
        });
        let parts = futures::stream::iter([Ok(Bytes::from(first))]).chain(parts);
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
        Ok((headers, Body::from_stream(parts)).into_response())
    }

    /// Returns the next bytes for the client, and whether they are the last ones.
    async fn passed(&mut self) -> (Vec<u8>, bool) {
        loop {
            match self.next().await {
                Ok(StreamPart::Events(bytes)) => return (bytes, false),
                Ok(StreamPart::Quiet) if self.filter.is_between_events() => {
                    return (b":\n\n".to_vec(), false);
                }
                Ok(StreamPart::Quiet) => {}
                Ok(StreamPart::End) => {
                    self.exchange.complete(UpstreamOutcome::Answered);
                    return (self.filter.rest(), true);
                }
                Err(failure) => {
                    let failure = self.exchange.failed(failure);
                    return (self.error_event(&failure), true);
                }
            }
        }
    }

    async fn next(&mut self) -> Result<StreamPart, UpstreamFailure> {
        let limit = self.exchange.upstream.settings.timeout;
        loop {
            let left = limit.saturating_sub(self.last.elapsed());
            match timeout(left.min(KEEP_ALIVE), self.data.next()).await {
                Ok(Some(Ok(bytes))) => {
                    self.last = Instant::now();
                    let passed = self.filter.feed(&bytes);
                    self.exchange.usage = self.filter.usage();
                    self.exchange.estimate.generated = self.filter.events();
                    if !passed.is_empty() {
                        return Ok(StreamPart::Events(passed));
                    }
                }
                Ok(None) if self.is_framed || self.filter.has_ended() => return Ok(StreamPart::End),
                Ok(Some(Err(_)) | None) => return Err(UpstreamFailure::Cut),
                // Nothing more is needed from a connection that stays open.
                Err(_) if self.filter.has_ended() => {
                    self.exchange.link = None;
                    return Ok(StreamPart::End);
                }
                Err(_) if self.last.elapsed() >= limit => return Err(UpstreamFailure::Timeout(limit)),
                Err(_) => return Ok(StreamPart::Quiet),
            }
        }
    }

    /// Returns the event of an answer that failed after its beginning was sent.
    fn error_event(&self, failure: &UpstreamFailure) -> Vec<u8> {
        let message = failure.message(&self.exchange.upstream.name);
        let end = if self.filter.is_between_events() { "" } else { "\n\n" };
        let event = match self.exchange.endpoint {
            UpstreamEndpoint::Responses => {
                let error = json!({
                    "type": "error", "code": failure.code(), "message": message, "param": null,
                    "sequence_number": self.filter.events(),
                });
                format!("{end}event: error\ndata: {error}\n\n")
            }
            _ => {
                let error = json!(OpenAiErrorBody::of_stream(message).with_code(failure.code()));
                format!("{end}data: {error}\n\n")
            }
        };
        event.into_bytes()
    }
}
