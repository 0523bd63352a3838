//! The report at `/health`: the state and memory of the server, and the state and devices of each model.

mod model;

use narthex_gateway::{
    MemoryReport,
    devices::DeviceStatus,
    models::{ModelState, ModelStatus},
};
use schemars::JsonSchema;
use serde::Serialize;

use self::model::ModelHealth;

/// State of the server.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct HealthReport {
    status: HealthStatus,
    /// Absent for callers without a required key.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    details: Option<HealthDetails>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum HealthStatus {
    Ok,
    /// A model could not be loaded.
    Degraded,
}

#[derive(Debug, Serialize, JsonSchema)]
struct HealthDetails {
    /// Version of Narthex.
    version: &'static str,
    memory: MemoryHealth,
    npu: NpuHealth,
    /// Models that were requested since the start.
    models: Vec<ModelHealth>,
}

/// Memory of the process and of the machine. Values that the system does not report are null.
#[derive(Debug, Serialize, JsonSchema)]
struct MemoryHealth {
    #[serde(flatten)]
    report: MemoryReport,
    /// True if less than a tenth of the memory is free.
    low: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
struct NpuHealth {
    /// True if a device is usable.
    available: bool,
    devices: Vec<DeviceStatus>,
}

impl HealthReport {
    /// Creates the report for callers without a required key, which states only that the server runs.
    pub(crate) fn alive() -> Self {
        Self { status: HealthStatus::Ok, details: None }
    }

    /// Creates the report for a server with these models and this memory, on a machine with these NPUs.
    pub(crate) fn new(models: &[ModelStatus], memory: &MemoryReport, npus: &[DeviceStatus]) -> Self {
        let failed = models.iter().any(|model| matches!(model.state, ModelState::Failed { .. }));
        let details = HealthDetails {
            version: env!("CARGO_PKG_VERSION"),
            memory: MemoryHealth { report: *memory, low: memory.is_low() },
            npu: NpuHealth { available: npus.iter().any(|npu| npu.usable), devices: npus.to_vec() },
            models: models.iter().map(ModelHealth::from).collect(),
        };
        let status = if failed { HealthStatus::Degraded } else { HealthStatus::Ok };
        Self { status, details: Some(details) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn memory_npus_and_failures_are_reported() {
        let memory = MemoryReport {
            resident_bytes: Some(900),
            weights_bytes: 500,
            kv_used_bytes: 20,
            kv_budget_bytes: 80,
            total_bytes: Some(1000),
            free_bytes: Some(90),
            warning_below_bytes: Some(100),
        };
        let npu = DeviceStatus {
            device: narthex_spec::DeviceName::Qnn,
            usable: false,
            present: true,
            reason: Some("no driver".to_owned()),
            fix: None,
        };
        let failed = ModelState::Failed { reason: "no memory".to_owned(), hint: None };
        let model = model::samples::status(failed, None);
        let expect = json!({
            "resident_bytes": 900, "weights_bytes": 500, "kv_used_bytes": 20, "kv_budget_bytes": 80,
            "total_bytes": 1000, "free_bytes": 90, "warning_below_bytes": 100, "low": true,
        });
        let report = json!(HealthReport::new(&[model], &memory, &[npu]));
        assert_eq!((&report["status"], &report["memory"]), (&json!("degraded"), &expect));
        let device =
            json!({"device": "qnn", "usable": false, "present": true, "reason": "no driver", "fix": null});
        assert_eq!(report["npu"], json!({"available": false, "devices": [device]}));
        assert_eq!(
            report["models"][0]["state"],
            json!({"state": "failed", "reason": "no memory", "hint": null})
        );
        assert_eq!(json!(HealthReport::alive()), json!({"status": "ok"}));
    }
}
