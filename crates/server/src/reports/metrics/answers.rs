//! Histograms and counters of the answers of each model.

use std::{collections::VecDeque, sync::atomic::AtomicU64, time::Duration};

use narthex_gateway::{
    AnswerEnergy,
    request::{Summary, Times},
};
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::ModelLabels;

/// Number of models with metrics. Beyond it, those of the model that answered first are dropped, so that models that are
/// installed and removed again and again need no more memory.
const MODELS: usize = 128;

/// Histograms of the same kind for each model.
type Histograms = Family<ModelLabels, Histogram, fn() -> Histogram>;

/// Metrics of the answers of all models.
pub(super) struct AnswerMetrics {
    queue: Histograms,
    first_token: Histograms,
    between_tokens: Histograms,
    request: Histograms,
    prompt_tokens: Histograms,
    generated_tokens: Histograms,
    cache_hits: Family<ModelLabels, Counter>,
    fallback_answers: Family<ModelLabels, Counter>,
    /// Has only models whose energy was measured.
    joules: Family<ModelLabels, Counter<f64, AtomicU64>>,
    /// Models with metrics, in the order of their first answers.
    labels: Mutex<VecDeque<ModelLabels>>,
}

/// Metrics of the answers of one model.
#[derive(Clone)]
pub(crate) struct ModelMetrics {
    queue: Histogram,
    first_token: Histogram,
    between_tokens: Histogram,
    request: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
    cache_hits: Counter,
    fallback_answers: Counter,
    joules: Family<ModelLabels, Counter<f64, AtomicU64>>,
    labels: ModelLabels,
}

impl AnswerMetrics {
    /// Registers the metrics.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut register = |name, help, histogram: fn() -> Histogram| {
            let family = Histograms::new_with_constructor(histogram);
            registry.register(name, help, family.clone());
            family
        };
        let queue = register("queue_seconds", "Time of an answer in the queue of its model", short_times);
        let first_token = register("first_token_seconds", "Time to the first token", long_times);
        let between_tokens =
            register("between_tokens_seconds", "Time between two tokens of an answer", short_times);
        let request = register("request_seconds", "Time of a whole generation", long_times);
        let prompt_tokens = register("request_prompt_tokens", "Prompt tokens of a generation", token_counts);
        let generated_tokens =
            register("request_generated_tokens", "Generated tokens of a generation", token_counts);

        let cache_hits = Family::default();
        let fallback_answers = Family::default();
        registry.register(
            "prompt_cache_hits",
            "Generations whose prompts began with tokens that were in the KV cache",
            cache_hits.clone(),
        );
        registry.register(
            "fallback_answers",
            "Generations on another device, because a preferred one did not run the model",
            fallback_answers.clone(),
        );
        let joules = Family::default();
        registry.register(
            "answer_joules",
            "Energy of generations above that of the idle machine, in joules",
            joules.clone(),
        );
        Self {
            queue,
            first_token,
            between_tokens,
            request,
            prompt_tokens,
            generated_tokens,
            cache_hits,
            fallback_answers,
            joules,
            labels: Mutex::default(),
        }
    }

    /// Returns the metrics of a model. Their values are 0 before its first answer.
    pub(super) fn of_model(&self, model: ModelLabels) -> ModelMetrics {
        let metrics = ModelMetrics {
            queue: self.queue.get_or_create_owned(&model),
            first_token: self.first_token.get_or_create_owned(&model),
            between_tokens: self.between_tokens.get_or_create_owned(&model),
            request: self.request.get_or_create_owned(&model),
            prompt_tokens: self.prompt_tokens.get_or_create_owned(&model),
            generated_tokens: self.generated_tokens.get_or_create_owned(&model),
            cache_hits: self.cache_hits.get_or_create_owned(&model),
            fallback_answers: self.fallback_answers.get_or_create_owned(&model),
            joules: self.joules.clone(),
            labels: model.clone(),
        };

        let mut labels = self.labels.lock();
        if !labels.contains(&model) {
            labels.push_back(model);
        }
        if labels.len() > MODELS
            && let Some(oldest) = labels.pop_front()
        {
            self.remove(&oldest);
        }
        metrics
    }

    /// Drops the metrics of a model.
    fn remove(&self, model: &ModelLabels) {
        let histograms = [
            &self.queue,
            &self.first_token,
            &self.between_tokens,
            &self.request,
            &self.prompt_tokens,
            &self.generated_tokens,
        ];
        for histogram in histograms {
            histogram.remove(model);
        }
        self.cache_hits.remove(model);
        self.fallback_answers.remove(model);
        self.joules.remove(model);
    }
}

impl ModelMetrics {
    /// Counts a finished generation, and its times if they were measured on a device. `fallback` has the reasons why
    /// preferred devices did not run the model.
    pub(crate) fn generation(&self, summary: &Summary, fallback: Option<&str>) {
        self.prompt_tokens.observe(summary.prompt_tokens as f64);
        self.generated_tokens.observe(summary.completion_tokens as f64);
        if summary.cached_tokens > 0 {
            self.cache_hits.inc();
        }
        if fallback.is_some() {
            self.fallback_answers.inc();
        }
        if let Some(AnswerEnergy { joules, .. }) = summary.energy {
            self.joules.get_or_create(&self.labels).inc_by(joules);
        }
        if let Some(Times { queued, first_token, total }) = summary.times {
            self.queue.observe(queued.as_secs_f64());
            self.first_token.observe(first_token.as_secs_f64());
            self.request.observe(total.as_secs_f64());
        }
    }

    /// Counts the time between two tokens.
    pub(crate) fn token_gap(&self, gap: Duration) {
        self.between_tokens.observe(gap.as_secs_f64());
    }
}

/// Times from 1 millisecond to 33 seconds.
fn short_times() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

/// Times from 10 milliseconds to 5 minutes.
pub(super) fn long_times() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 2.0, 16))
}

/// Counts from 1 to 262,144 tokens.
fn token_counts() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 4.0, 10))
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn labels(model: String) -> ModelLabels {
        ModelLabels { model, scheme: "w8".to_owned() }
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn each_model_has_the_figures_of_its_answers() {
        let mut registry = Registry::default();
        let metrics = AnswerMetrics::new(&mut registry);
        let tiny = metrics.of_model(labels("tiny".to_owned()));
        metrics.of_model(labels("other".to_owned()));
        let times = Times {
            queued: Duration::from_millis(500),
            first_token: Duration::from_secs(1),
            total: Duration::from_secs(2),
        };
        let summary = Summary {
            prompt_tokens: 30,
            cached_tokens: 20,
            completion_tokens: 5,
            times: Some(times),
            ..Summary::default()
        };
        tiny.generation(&summary, None);
        tiny.generation(&Summary { cached_tokens: 0, times: None, ..summary }, Some("qnn: no driver"));
        tiny.token_gap(Duration::from_millis(250));
        assert!(!text(&registry).contains("answer_joules_total{"), "an unknown energy has no value");
        let energy = AnswerEnergy { joules: 1.5, idle_watts: 4.0, is_shared: false, sensor: "RAPL" };
        metrics
            .of_model(labels("measured".to_owned()))
            .generation(&Summary { energy: Some(energy), ..Summary::default() }, None);

        let text = text(&registry);
        let check = |name: &str, value: &str| {
            let line = format!("{name}{{model=\"tiny\",scheme=\"w8\"}} {value}");
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        };
        check("queue_seconds_sum", "0.5");
        check("first_token_seconds_count", "1");
        check("request_seconds_sum", "2.0");
        check("between_tokens_seconds_sum", "0.25");
        check("request_prompt_tokens_sum", "60.0");
        check("request_generated_tokens_count", "2");
        check("prompt_cache_hits_total", "1");
        check("fallback_answers_total", "1");
        assert!(text.contains("answer_joules_total{model=\"measured\",scheme=\"w8\"} 1.5"), "{text}");
        let idle = "prompt_cache_hits_total{model=\"other\",scheme=\"w8\"} 0";
        assert!(text.contains(idle), "{text}");
    }

    #[test]
    fn the_number_of_models_is_bounded() {
        let mut registry = Registry::default();
        let metrics = AnswerMetrics::new(&mut registry);
        for number in 0..MODELS + 3 {
            metrics.of_model(labels(format!("copy-{number}")));
            metrics.of_model(labels(format!("copy-{number}")));
        }
        let text = text(&registry);
        let kept = text.lines().filter(|line| line.starts_with("queue_seconds_count")).count();
        assert_eq!(kept, MODELS);
        assert!(!text.contains("copy-2\"") && text.contains("copy-3\""), "{text}");
    }
}
