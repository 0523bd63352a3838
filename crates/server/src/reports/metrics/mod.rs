//! Metrics for Prometheus at `/metrics`. `answers` has those of the answers of each model, `models` those of the models in
//! memory, `upstreams` those of upstreams, and `scheduler` those that routers of a cluster read.

mod answers;
mod models;
mod scheduler;
mod upstreams;

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64},
};

use narthex_gateway::{MemoryReport, PowerReport, ReadyModel, models::ModelStatus, request::Summary};
use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use self::{
    answers::AnswerMetrics, models::ModelGauges, scheduler::SchedulerMetrics, upstreams::UpstreamMetrics,
};
pub(crate) use self::{answers::ModelMetrics, upstreams::UpstreamOutcome};

/// Labels of one HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u32,
}

/// Labels of a model, which may be loaded in several schemes. Only installed models have any, so clients cannot invent labels.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
    scheme: String,
}

/// Labels of a size in memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemoryLabels {
    /// `resident`, `weights`, `kv`, `free`, `total` or `warning_below`.
    kind: &'static str,
}

/// Labels of the power of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PowerLabels {
    /// `now` or `idle`.
    kind: &'static str,
    sensor: String,
}

/// Counts a stream or a live session as open until it is dropped.
pub(crate) struct OpenStream(Arc<Metrics>);

impl OpenStream {
    pub(crate) fn new(metrics: Arc<Metrics>) -> Self {
        metrics.streams.inc();
        Self(metrics)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.dec();
    }
}

/// The counters of a server.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    answers: AnswerMetrics,
    models: ModelGauges,
    scheduler: SchedulerMetrics,
    upstreams: UpstreamMetrics,
    memory: Family<MemoryLabels, Gauge>,
    memory_low: Gauge<i64, AtomicI64>,
    power: Family<PowerLabels, Gauge<f64, AtomicU64>>,
    streams: Gauge<i64, AtomicI64>,
    /// Held while the gauges of models are set and written, so that concurrent scrapes do not mix.
    rendering: Mutex<()>,
}

impl Metrics {
    pub(crate) fn new() -> Arc<Self> {
        let mut root = Registry::default();
        let scheduler = SchedulerMetrics::new(&mut root);
        let registry = root.sub_registry_with_prefix("narthex");
        let answers = AnswerMetrics::new(registry);
        let models = ModelGauges::new(registry);
        let upstreams = UpstreamMetrics::new(registry);
        let requests = Family::default();
        let prompt_tokens = Counter::default();
        let cached_tokens = Counter::default();
        let generated_tokens = Counter::default();
        let memory = Family::default();
        let memory_low = Gauge::default();
        let power = Family::default();
        let streams = Gauge::default();
        registry.register("http_requests", "HTTP requests by route and status", requests.clone());
        registry.register("prompt_tokens", "Prompt tokens of finished requests", prompt_tokens.clone());
        registry.register(
            "cached_prompt_tokens",
            "Prompt tokens of finished requests that were not computed, because their keys and values were present",
            cached_tokens.clone(),
        );
        registry.register(
            "generated_tokens",
            "Generated tokens of finished requests",
            generated_tokens.clone(),
        );

        registry.register(
            "memory_bytes",
            "Memory in bytes: resident in the process, packages in memory, KV caches in use, free, total, and the \
             threshold of a warning",
            memory.clone(),
        );

        registry.register("memory_low", "1 if the free memory is below the threshold", memory_low.clone());
        registry.register("power_watts", "Power of the machine, now and without requests", power.clone());
        registry.register("open_streams", "Open streams", streams.clone());
        Arc::new(Self {
            registry: root,
            requests,
            prompt_tokens,
            cached_tokens,
            generated_tokens,
            answers,
            models,
            scheduler,
            upstreams,
            memory,
            memory_low,
            power,
            streams,
            rendering: Mutex::new(()),
        })
    }

    /// Counts a request that was answered.
    pub(crate) fn request(&self, route: &str, status: u16) {
        let labels = RequestLabels { route: route.to_owned(), status: u32::from(status) };
        self.requests.get_or_create(&labels).inc();
    }

    /// Returns the metrics of a model's answers.
    pub(crate) fn of_model(&self, model: &ReadyModel) -> ModelMetrics {
        self.of_labels(&model.name().to_string(), &model.scheme().to_string())
    }

    /// Returns the metrics of the answers of a model in this scheme.
    pub(crate) fn of_labels(&self, model: &str, scheme: &str) -> ModelMetrics {
        self.answers.of_model(ModelLabels { model: model.to_owned(), scheme: scheme.to_owned() })
    }

    /// Counts a finished generation.
    pub(crate) fn generation(&self, summary: &Summary) {
        self.prompt_tokens.inc_by(summary.prompt_tokens as u64);
        self.cached_tokens.inc_by(summary.cached_tokens as u64);
        self.generated_tokens.inc_by(summary.completion_tokens as u64);
        self.scheduler.generation(summary);
    }

    /// Returns all metrics in the OpenMetrics text format.
    pub(crate) fn render(
        &self,
        models: &[ModelStatus],
        memory: &MemoryReport,
        power: Option<&PowerReport>,
    ) -> String {
        let _rendering = self.rendering.lock();
        self.set_memory(memory);
        self.set_power(power);
        self.scheduler.set(models, memory);
        self.models.set(models);

        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Sets the gauges of power. A value that is not known has no gauge.
    fn set_power(&self, power: Option<&PowerReport>) {
        self.power.clear();
        let Some(PowerReport { sensor, watts, idle_watts }) = power else { return };
        for (kind, watts) in [("now", watts), ("idle", idle_watts)] {
            if let Some(watts) = watts {
                self.power.get_or_create(&PowerLabels { kind, sensor: sensor.clone() }).set(*watts);
            }
        }
    }

    /// Sets the gauges of memory. A size that the system does not report has no gauge.
    fn set_memory(&self, memory: &MemoryReport) {
        let sizes = [
            ("resident", memory.resident_bytes),
            ("weights", Some(memory.weights_bytes)),
            ("kv", Some(memory.kv_used_bytes)),
            ("free", memory.free_bytes),
            ("total", memory.total_bytes),
            ("warning_below", memory.warning_below_bytes),
        ];
        self.memory.clear();
        for (kind, bytes) in sizes {
            if let Some(bytes) = bytes {
                self.memory.get_or_create(&MemoryLabels { kind }).set(bytes.try_into().unwrap_or(i64::MAX));
            }
        }
        self.memory_low.set(i64::from(memory.is_low()));
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use narthex_gateway::{
        AnswerEnergy, FallbackNodes, PlacementReport,
        models::{EngineCounters, ModelState},
        request::Times,
    };
    use narthex_spec::DeviceName;
    use serde_json::Value;

    use super::*;
    use crate::reports::health::sample_status;

    #[test]
    fn tokens_and_memory_are_stated_as_far_as_they_are_known() {
        let metrics = Metrics::new();
        let first_token = Duration::from_secs(2);
        let times = Times { queued: Duration::ZERO, first_token, total: Duration::from_secs(3) };
        let summary = Summary {
            prompt_tokens: 3,
            cached_tokens: 2,
            completion_tokens: 5,
            times: Some(times),
            ..Summary::default()
        };
        metrics.generation(&summary);
        metrics.generation(&summary);
        let memory = MemoryReport {
            resident_bytes: None,
            weights_bytes: 500,
            kv_used_bytes: 20,
            kv_budget_bytes: 80,
            total_bytes: Some(1000),
            free_bytes: Some(90),
            warning_below_bytes: Some(100),
        };
        let text = metrics.render(&[], &memory, None);
        assert!(!text.contains("narthex_power_watts{"), "an unknown power has no value\n{text}");
        let power = PowerReport { sensor: "RAPL".to_owned(), watts: Some(12.5), idle_watts: None };
        let text = metrics.render(&[], &memory, Some(&power));
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("narthex_cached_prompt_tokens_total 4");
        has("narthex_generated_tokens_total 10");
        has("vllm:time_to_first_token_seconds_sum 4.0");
        has("narthex_memory_bytes{kind=\"weights\"} 500");
        has("narthex_memory_bytes{kind=\"free\"} 90");
        has("narthex_memory_low 1");
        has("narthex_power_watts{kind=\"now\",sensor=\"RAPL\"} 12.5");
        assert!(!text.contains("resident\""), "an unknown size has no value\n{text}");
    }

    /// Returns the names of metrics in the queries of a dashboard, without the suffixes of counters and histograms.
    fn queried(value: &Value, names: &mut BTreeSet<String>) {
        match value {
            Value::String(text) => {
                let words = text.split(|char: char| !char.is_ascii_alphanumeric() && !"_:".contains(char));
                let metrics = words.filter(|word| word.starts_with("narthex_") || word.starts_with("vllm:"));
                names.extend(metrics.map(|name| {
                    let suffixes = ["_total", "_bucket", "_sum", "_count"];
                    suffixes.iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name).to_owned()
                }));
            }
            Value::Array(values) => values.iter().for_each(|value| queried(value, names)),
            Value::Object(fields) => fields.values().for_each(|value| queried(value, names)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    /// Returns the names of the metrics that a server with a model has.
    fn exposed() -> BTreeSet<String> {
        let metrics = Metrics::new();
        metrics.request("/v1/models", 200);
        let energy = AnswerEnergy { joules: 1.0, idle_watts: 1.0, is_shared: false, sensor: "RAPL" };
        let summary = Summary { energy: Some(energy), ..Summary::default() };
        metrics.of_labels("tiny", "w8").generation(&summary, None);
        let placement = PlacementReport {
            device: DeviceName::Cpu,
            decode: None,
            head: None,
            multiply_accumulates: 1,
            npu_share: 0.0,
            phases: None,
            lines: Vec::new(),
            towers: Vec::new(),
            fallback: FallbackNodes::default(),
            why: None,
            notes: Vec::new(),
        };

        let model = ModelStatus {
            engine: Some(EngineCounters::default()),
            ..sample_status(ModelState::Ready, Some(placement))
        };
        let memory = MemoryReport {
            resident_bytes: None,
            weights_bytes: 1,
            kv_used_bytes: 0,
            kv_budget_bytes: 0,
            total_bytes: None,
            free_bytes: None,
            warning_below_bytes: None,
        };
        let power = PowerReport { sensor: "RAPL".to_owned(), watts: Some(1.0), idle_watts: None };
        let text = metrics.render(&[model], &memory, Some(&power));
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|typed| Some(typed.split_once(' ')?.0.to_owned())).collect()
    }

    #[test]
    fn the_dashboard_and_the_book_name_metrics_that_exist() {
        let exposed = exposed();
        let dashboard = include_str!("../../../../../packaging/grafana/narthex.json");
        let mut names = BTreeSet::new();
        queried(&serde_json::from_str(dashboard).unwrap(), &mut names);
        let missing: Vec<_> = names.difference(&exposed).collect();
        assert!(
            missing.is_empty() && names.len() > 20,
            "the dashboard queries {missing:?}, which do not exist"
        );

        let page = include_str!("../../../../../docs/src/monitoring.md");
        let undocumented: Vec<_> = exposed.iter().filter(|name| !page.contains(name.as_str())).collect();
        assert!(undocumented.is_empty(), "docs/src/monitoring.md lacks {undocumented:?}");
    }
}
