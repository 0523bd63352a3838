//! Load of the server under the names of vLLM, which llm-d's router and the Gateway API Inference Extension read.
//!
//! They take one value for a server, the first one that they find. Therefore, each metric has one value for all models, without
//! labels, and is present before the first load. `vllm:lora_requests_info` and `vllm:cache_config_info` are missing,
//! because there are no adapters, and because the KV cache has no blocks.

use std::sync::atomic::AtomicU64;

use narthex_gateway::{MemoryReport, models::ModelStatus, request::Summary};
use prometheus_client::{
    metrics::{gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use super::answers::long_times;

/// Metrics that a router reads.
pub(super) struct SchedulerMetrics {
    first_token: Histogram,
    running: Gauge,
    waiting: Gauge,
    kv_usage: Gauge<f64, AtomicU64>,
}

impl SchedulerMetrics {
    /// Registers the metrics. The names are complete, without the prefix of the other metrics.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let running = Gauge::default();
        let waiting = Gauge::default();
        let kv_usage = Gauge::default();
        registry.register("vllm:num_requests_running", "Sequences in slots, of all models", running.clone());
        registry.register(
            "vllm:num_requests_waiting",
            "Sequences waiting for a slot, of all models",
            waiting.clone(),
        );
        registry.register(
            "vllm:kv_cache_usage_perc",
            "Share of the KV budgets of all models in use, 0 to 1",
            kv_usage.clone(),
        );
        let first_token = long_times();
        registry.register(
            "vllm:time_to_first_token_seconds",
            "Time to the first token, of all models",
            first_token.clone(),
        );
        Self { first_token, running, waiting, kv_usage }
    }

    /// Counts a finished generation.
    pub(super) fn generation(&self, summary: &Summary) {
        if let Some(times) = summary.times {
            self.first_token.observe(times.first_token.as_secs_f64());
        }
    }

    /// Sets the gauges.
    pub(super) fn set(&self, models: &[ModelStatus], memory: &MemoryReport) {
        let engines = || models.iter().filter_map(|model| model.engine.as_ref());
        self.running.set(engines().map(|engine| engine.running as i64).sum());
        self.waiting.set(engines().map(|engine| engine.waiting as i64).sum());
        self.kv_usage.set(memory.kv_used_bytes as f64 / memory.kv_budget_bytes.max(1) as f64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use narthex_gateway::models::{EngineCounters, ModelState};

    use super::*;
    use crate::reports::{health::sample_status, metrics::Metrics};

    /// Samples of a text by their names, as the Prometheus text parser of Go reads them. It ignores comments other than HELP
    /// and TYPE, and refuses types that it does not know.
    fn families(text: &str) -> BTreeMap<&str, Vec<f64>> {
        let mut families = BTreeMap::<&str, Vec<f64>>::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let kind = comment.strip_prefix("TYPE ").and_then(|typed| typed.split(' ').nth(1));
                let known = ["counter", "gauge", "histogram", "summary", "untyped"];
                assert!(kind.is_none_or(|kind| known.contains(&kind)), "{line}");
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            let name = name.split_once('{').map_or(name, |(name, _)| name);
            families.entry(name).or_default().push(value.parse().unwrap());
        }
        families
    }

    /// Returns the specifications of an `engineConfigs` entry in the documentation, by their keys.
    fn specifications(page: &str) -> BTreeMap<&str, &str> {
        let entry = page.split_once("- name: narthex\n").unwrap().1;
        let keys = entry.lines().map_while(|line| line.trim().split_once("Spec: "));
        keys.map(|(key, name)| (key, name.trim_matches('"'))).collect()
    }

    #[test]
    fn routers_find_one_value_for_each_specification() {
        let page = include_str!("../../../../../docs/src/monitoring.md");
        let specifications = specifications(page);
        let engine = |running, waiting| EngineCounters { running, waiting, ..EngineCounters::default() };
        let model = |running, waiting| ModelStatus {
            engine: Some(engine(running, waiting)),
            ..sample_status(ModelState::Ready, None)
        };
        let memory = |kv_used_bytes, kv_budget_bytes| MemoryReport {
            resident_bytes: None,
            weights_bytes: 0,
            kv_used_bytes,
            kv_budget_bytes,
            total_bytes: None,
            free_bytes: None,
            warning_below_bytes: None,
        };
        let check = |models: &[ModelStatus], memory: &MemoryReport, expect: [f64; 3]| {
            let text = Metrics::new().render(models, memory, None);
            let families = families(&text);
            let found = ["queuedRequests", "runningRequests", "kvUsage"].map(|key| {
                let [value] = families[specifications[key]][..] else { panic!("{key}: {text}") };
                value
            });
            assert_eq!(found, expect);
        };
        check(&[], &memory(0, 0), [0.0; 3]);
        check(&[model(1, 4), model(2, 3)], &memory(30, 120), [7.0, 3.0, 0.25]);

        // The routers read the names of vLLM from a server without a configuration of its own.
        let of_vllm = ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"];
        assert_eq!(["queuedRequests", "runningRequests", "kvUsage"].map(|key| specifications[key]), of_vllm);
        // An empty specification is not read.
        assert_eq!([specifications["lora"], specifications["cacheInfo"]], ["", ""]);
    }

    #[test]
    fn the_settings_for_kubernetes_are_those_of_the_documentation() {
        let page = include_str!("../../../../../docs/src/monitoring.md");
        let settings = include_str!("../../../../../packaging/kubernetes/router/picker-settings.yaml");
        assert_eq!(specifications(settings), specifications(page));
    }
}
