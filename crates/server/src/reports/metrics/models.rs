//! Gauges of the models in memory.

use std::sync::atomic::AtomicU64;

use narthex_gateway::models::ModelStatus;
use prometheus_client::{
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use super::ModelLabels;

/// Gauges of each model in memory.
pub(super) struct ModelGauges {
    running: Family<ModelLabels, Gauge>,
    waiting: Family<ModelLabels, Gauge>,
    kv_usage: Family<ModelLabels, Gauge<f64, AtomicU64>>,
    prefix_bytes: Family<ModelLabels, Gauge>,
    npu_share: Family<ModelLabels, Gauge<f64, AtomicU64>>,
    fallback_nodes: Family<ModelLabels, Gauge>,
}

impl ModelGauges {
    /// Registers the gauges.
    pub(super) fn new(registry: &mut Registry) -> Self {
        let running = Family::default();
        let waiting = Family::default();
        let kv_usage = Family::default();
        let prefix_bytes = Family::default();
        let npu_share = Family::default();
        let fallback_nodes = Family::default();
        registry.register("requests_running", "Sequences in slots, per model", running.clone());
        registry.register("requests_waiting", "Sequences waiting for a slot, per model", waiting.clone());
        registry.register(
            "kv_cache_usage",
            "Share of the KV budget in use, per model, 0 to 1",
            kv_usage.clone(),
        );

        registry.register(
            "prefix_bytes",
            "Bytes of the KV cache for prefixes that have lost their slots, per model",
            prefix_bytes.clone(),
        );
        registry.register(
            "npu_share",
            "Share of the multiply-accumulates that run on an NPU, per model, 0 to 1",
            npu_share.clone(),
        );
        registry.register(
            "fallback_nodes",
            "Nodes on another device than intended, per model",
            fallback_nodes.clone(),
        );
        Self { running, waiting, kv_usage, prefix_bytes, npu_share, fallback_nodes }
    }

    /// Sets the gauges. A model that was unloaded since the last scrape does not keep its values.
    pub(super) fn set(&self, models: &[ModelStatus]) {
        self.running.clear();
        self.waiting.clear();
        self.kv_usage.clear();
        self.prefix_bytes.clear();
        self.npu_share.clear();
        self.fallback_nodes.clear();
        for model in models {
            let label = ModelLabels { model: model.name.to_string(), scheme: model.scheme.to_string() };
            if let Some(placement) = &model.placement {
                self.npu_share.get_or_create(&label).set(placement.npu_share);
                self.fallback_nodes.get_or_create(&label).set(placement.fallback.count as i64);
            }

            let Some(engine) = &model.engine else { continue };
            self.running.get_or_create(&label).set(engine.running as i64);
            self.waiting.get_or_create(&label).set(engine.waiting as i64);
            let share = engine.kv_used_bytes as f64 / engine.kv_budget_bytes.max(1) as f64;
            self.kv_usage.get_or_create(&label).set(share);
            self.prefix_bytes.get_or_create(&label).set(engine.prefix_bytes as i64);
        }
    }
}
