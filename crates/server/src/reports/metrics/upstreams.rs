//! Metrics of upstreams.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::Metrics;

/// End of a request to an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum UpstreamOutcome {
    /// The answer was passed on.
    Answered,
    /// The upstream refused the request.
    Refused,
    /// The upstream failed before its answer began.
    Failed,
    /// The answer ended too early.
    Cut,
    /// The client disconnected.
    Cancelled,
    /// The request was not sent, because the upstream had failed before or had too many requests.
    Skipped,
}

impl UpstreamOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Cut => "cut",
            Self::Cancelled => "cancelled",
            Self::Skipped => "skipped",
        }
    }
}

/// Labels of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamRequestLabels {
    upstream: String,
    outcome: &'static str,
}

/// Labels of an upstream. Only the settings name upstreams, so clients cannot invent labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct UpstreamLabels {
    upstream: String,
}

/// Metrics of all upstreams.
pub(super) struct UpstreamMetrics {
    requests: Family<UpstreamRequestLabels, Counter>,
    prompt_tokens: Family<UpstreamLabels, Counter>,
    generated_tokens: Family<UpstreamLabels, Counter>,
    first_byte: Family<UpstreamLabels, Histogram, fn() -> Histogram>,
}

impl UpstreamMetrics {
    /// Registers the metrics.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let requests = Family::default();
        let prompt_tokens = Family::default();
        let generated_tokens = Family::default();
        let buckets: fn() -> Histogram = || Histogram::new(exponential_buckets(0.01, 2.0, 15));
        let first_byte = Family::new_with_constructor(buckets);
        registry.register("upstream_requests", "Requests to upstreams by outcome", requests.clone());
        registry.register(
            "upstream_prompt_tokens",
            "Prompt tokens that upstreams read",
            prompt_tokens.clone(),
        );
        registry.register(
            "upstream_generated_tokens",
            "Tokens that upstreams generated",
            generated_tokens.clone(),
        );
        registry.register(
            "upstream_first_byte_seconds",
            "Time until the beginning of an upstream's answer",
            first_byte.clone(),
        );
        Self { requests, prompt_tokens, generated_tokens, first_byte }
    }
}

fn labels(upstream: &str) -> UpstreamLabels {
    UpstreamLabels { upstream: upstream.to_owned() }
}

impl Metrics {
    /// Counts a request to an upstream that has ended.
    pub(crate) fn upstream_request(&self, upstream: &str, outcome: UpstreamOutcome) {
        let labels = UpstreamRequestLabels { upstream: upstream.to_owned(), outcome: outcome.as_str() };
        self.upstreams.requests.get_or_create(&labels).inc();
    }

    /// Counts the tokens of an upstream's answer.
    pub(crate) fn upstream_tokens(&self, upstream: &str, prompt: usize, generated: usize) {
        let UpstreamMetrics { prompt_tokens, generated_tokens, .. } = &self.upstreams;
        prompt_tokens.get_or_create(&labels(upstream)).inc_by(prompt as u64);
        generated_tokens.get_or_create(&labels(upstream)).inc_by(generated as u64);
    }

    /// Adds the time until the beginning of an upstream's answer.
    pub(crate) fn upstream_first_byte(&self, upstream: &str, time: Duration) {
        self.upstreams.first_byte.get_or_create(&labels(upstream)).observe(time.as_secs_f64());
    }
}
