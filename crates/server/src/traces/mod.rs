//! Traces of requests for collectors of OpenTelemetry, by OTLP over HTTP with protobuf.
//!
//! A request is a span with the conventions for HTTP servers, a child of the span that its `traceparent` names (W3C Trace
//! Context). The work of a model for it is a child with the conventions for generative AI. Both are exported after the end of
//! the request, in batches, by a thread of their own. Spans contain no texts, no keys and no queries. `OTEL_SERVICE_NAME`,
//! `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_BSP_*` apply as specified.

mod collector;
mod span;

use std::{
    fmt,
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use axum::http::HeaderMap;
use narthex_gateway::UpstreamUrl;
use opentelemetry::{
    Context, InstrumentationScope, Key, propagation::TextMapPropagator, trace::TracerProvider,
};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};

pub(crate) use self::span::{TracedGeneration, TracedRequest};
use self::{collector::Collector, span::RequestSpans};

/// Path of traces at a collector whose address has none.
const PATH: &str = "/v1/traces";

/// Maximum time in which the last spans are exported when the server ends.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// Address of a collector: `http://` or `https://`, a host, and a path, which is `/v1/traces` by default.
///
/// ```
/// use narthex_server::TracesEndpoint;
///
/// let endpoint: TracesEndpoint = "http://localhost:4318".parse()?;
/// assert_eq!(endpoint.to_string(), "http://localhost:4318/v1/traces");
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracesEndpoint(UpstreamUrl);

impl TracesEndpoint {
    /// Returns true if the collector is on this machine.
    pub fn is_loopback(&self) -> bool {
        self.0.is_loopback()
    }

    fn path(&self) -> String {
        match self.0.path_of("") {
            none if none.is_empty() => PATH.to_owned(),
            path => path,
        }
    }
}

impl fmt::Display for TracesEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.0.is_secure() { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.0.authority(), self.path())
    }
}

impl FromStr for TracesEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |reason: String| reason.replace("http://box.lan:8000/v1", "http://localhost:4318");
        text.parse().map(Self).map_err(named)
    }
}

/// Traces of a server. Clones share them. By default, there are none.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces(Option<Arc<Exports>>);

#[derive(Debug)]
struct Exports {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Exports traces to a collector. Must be called in the runtime that sends them.
    ///
    /// # Errors
    /// The reason why the variables of OpenTelemetry cannot be used.
    pub(crate) fn start(endpoint: &TracesEndpoint) -> Result<Self, String> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Collector::new(endpoint.0.clone()))
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.to_string())
            .build()
            .map_err(|error| error.to_string())?;
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource()).build();
        Ok(Self::of(provider))
    }

    fn of(provider: SdkTracerProvider) -> Self {
        let scope = InstrumentationScope::builder("narthex").with_version(env!("CARGO_PKG_VERSION")).build();
        let tracer = provider.tracer_with_scope(scope);
        Self(Some(Arc::new(Exports { provider, tracer })))
    }

    /// Starts the span of a request with these headers.
    pub(crate) fn begin(&self, headers: &HeaderMap) -> Option<RequestTrace> {
        let exports = self.0.clone()?;
        let parent =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
        Some(RequestTrace { exports, parent, start: SystemTime::now() })
    }

    /// Exports the last spans, for at most [`SHUTDOWN`].
    pub(crate) async fn stop(&self) {
        let Some(exports) = self.0.clone() else { return };
        // The exporting thread waits for this runtime.
        let ended =
            tokio::task::spawn_blocking(move || exports.provider.shutdown_with_timeout(SHUTDOWN)).await;
        if let Ok(Err(error)) = ended {
            tracing::warn!("the last traces were not exported: {error}");
        }
    }
}

/// Returns the attributes of this program: those of the environment, with the program's name unless that names another one.
fn resource() -> Resource {
    let name = Resource::builder().build().get(&Key::from_static_str("service.name"));
    let builder = Resource::builder();
    match name {
        Some(name) if !name.as_str().starts_with("unknown_service") => builder.build(),
        _ => builder.with_service_name("narthex").build(),
    }
}

/// A request whose span is exported at its end.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    exports: Arc<Exports>,
    /// The span of the caller, if the headers name one.
    parent: Context,
    start: SystemTime,
}

impl RequestTrace {
    /// Ends the span now.
    pub(crate) fn end(self, request: &TracedRequest<'_>) {
        let Self { exports, parent, start } = self;
        let end = SystemTime::now();
        RequestSpans { tracer: &exports.tracer, request, start, end }.export(&parent);
    }
}

#[cfg(test)]
mod tests;
