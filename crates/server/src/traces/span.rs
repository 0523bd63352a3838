//! The spans of a request: attributes of OpenTelemetry's conventions for HTTP and for generative AI.

use std::time::SystemTime;

use axum::http::StatusCode;
use narthex_gateway::request::Times;
use opentelemetry::{
    Context, KeyValue,
    trace::{Span, SpanKind, Status, TraceContextExt, Tracer},
};
use opentelemetry_sdk::trace::SdkTracer;

/// A request that has ended.
pub(crate) struct TracedRequest<'a> {
    /// Method and path in the route table, as in `POST /v1/chat/completions`.
    pub(crate) route: &'a str,
    pub(crate) id: Option<&'a str>,
    /// `None` if the client disconnected before the response.
    pub(crate) status: Option<u16>,
    pub(crate) device: Option<&'a str>,
    /// Name and scheme of the model that answered.
    pub(crate) model: Option<&'a str>,
    /// Tokens that were read, with those in the KV cache.
    pub(crate) input_tokens: usize,
    /// Tokens among them that were in the KV cache.
    pub(crate) cached_tokens: usize,
    pub(crate) output_tokens: usize,
    /// The last generation.
    pub(crate) generation: Option<TracedGeneration>,
}

/// A generation that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TracedGeneration {
    pub(crate) end: SystemTime,
    /// `None` if software stood in for an NPU, because its times are meaningless.
    pub(crate) times: Option<Times>,
}

/// The spans of a request.
pub(super) struct RequestSpans<'a> {
    pub(super) tracer: &'a SdkTracer,
    pub(super) request: &'a TracedRequest<'a>,
    pub(super) start: SystemTime,
    pub(super) end: SystemTime,
}

impl RequestSpans<'_> {
    /// Exports the spans, as children of the caller's.
    pub(super) fn export(&self, parent: &Context) {
        let request = self.request;
        let (method, path) = request.route.split_once(' ').unwrap_or((request.route, ""));
        let error = error_type(request.status);
        let mut attributes = vec![
            KeyValue::new("http.request.method", method.to_owned()),
            KeyValue::new("http.route", path.to_owned()),
        ];
        let status = request.status.map(i64::from);
        attributes.extend(status.map(|status| KeyValue::new("http.response.status_code", status)));
        attributes.extend(request.id.map(|id| KeyValue::new("narthex.request_id", id.to_owned())));
        attributes.extend(error.clone().map(|error| KeyValue::new("error.type", error)));

        let builder = self.tracer.span_builder(request.route.to_owned()).with_kind(SpanKind::Server);
        let builder = builder.with_attributes(attributes).with_start_time(self.start);
        let mut span = builder.start_with_context(self.tracer, parent);
        if let Some(error) = error {
            span.set_status(Status::error(error));
        }
        let context = parent.with_span(span);
        if let Some(model) = request.model {
            self.export_work(&context, path, model);
        }
        context.span().end_with_timestamp(self.end);
    }

    /// Exports the span of the model's work, which is that of the last generation, or else of the whole request.
    fn export_work(&self, context: &Context, path: &str, model: &str) {
        let request = self.request;
        let operation = operation(path);
        let count = |tokens: usize| i64::try_from(tokens).unwrap_or(i64::MAX);
        let mut attributes = vec![
            KeyValue::new("gen_ai.operation.name", operation.to_owned()),
            KeyValue::new("gen_ai.provider.name", "narthex"),
            KeyValue::new("gen_ai.request.model", model.to_owned()),
            KeyValue::new("gen_ai.response.model", model.to_owned()),
            KeyValue::new("gen_ai.usage.input_tokens", count(request.input_tokens)),
        ];
        if request.generation.is_some() {
            attributes.extend([
                KeyValue::new("gen_ai.usage.output_tokens", count(request.output_tokens)),
                KeyValue::new("gen_ai.usage.cache_read.input_tokens", count(request.cached_tokens)),
            ]);
        }
        attributes.extend(request.device.map(|device| KeyValue::new("narthex.device", device.to_owned())));

        let times = request.generation.and_then(|generation| Some((generation.end, generation.times?)));
        let (start, end) = match times {
            Some((end, times)) => (end.checked_sub(times.total).unwrap_or(self.start), end),
            None => (self.start, self.end),
        };
        let builder = self.tracer.span_builder(format!("{operation} {model}"));
        let builder = builder.with_kind(SpanKind::Internal).with_attributes(attributes);
        let mut span = builder.with_start_time(start).start_with_context(self.tracer, context);
        if let Some((_, times)) = times {
            span.add_event_with_timestamp("left the queue", start + times.queued, Vec::new());
            span.add_event_with_timestamp("first token", start + times.first_token, Vec::new());
        }
        span.end_with_timestamp(end);
    }
}

/// Returns the type of the error of a response. Errors of clients are none of a server's span.
fn error_type(status: Option<u16>) -> Option<String> {
    match status {
        None => Some("disconnected".to_owned()),
        Some(status) if status >= StatusCode::INTERNAL_SERVER_ERROR.as_u16() => Some(status.to_string()),
        Some(_) => None,
    }
}

/// Returns the name of the operation of a path: that of the conventions, or else the last part of the path.
fn operation(path: &str) -> &str {
    match path {
        "/v1/chat/completions" | "/v1/messages" | "/v1/responses" | "/api/chat" => "chat",
        "/v1/completions" | "/api/generate" => "text_completion",
        "/v1/embeddings" | "/api/embed" | "/api/embeddings" => "embeddings",
        other => other.rsplit('/').next().unwrap_or(other),
    }
}
