//! The report at `/health`: the state and memory of the server, and the state and devices of each model.

mod model;

use narthex_gateway::{
    MemoryReport, PowerReport,
    devices::DeviceStatus,
    models::{ModelState, ModelStatus},
};
use narthex_spec::DeviceKind;
use schemars::JsonSchema;
use serde::Serialize;

use self::model::ModelHealth;
#[cfg(test)]
pub(in crate::reports) use self::model::samples::status as sample_status;
use crate::upstream::state::UpstreamHealth;

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
    /// Absent if no counter of energy can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    power: Option<PowerReport>,
    npu: NpuHealth,
    /// Devices that this machine has.
    devices: Vec<DeviceStatus>,
    /// Supported devices that this machine lacks.
    absent_devices: Vec<DeviceStatus>,
    /// Models that were requested since the start.
    models: Vec<ModelHealth>,
    /// Other servers that answer requests. Absent without any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    upstreams: Vec<UpstreamHealth>,
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
    /// True if one is usable.
    available: bool,
    /// NPUs that this machine has.
    devices: Vec<DeviceStatus>,
}

impl HealthReport {
    /// Creates the report for callers without a required key, which states only that the server runs.
    pub(crate) fn alive() -> Self {
        Self { status: HealthStatus::Ok, details: None }
    }

    /// Creates the report for a server with these models and this memory. `devices` are those that this version supports;
    /// software that stands in for an NPU is no device of the machine.
    pub(crate) fn new(
        models: &[ModelStatus],
        memory: &MemoryReport,
        power: Option<PowerReport>,
        devices: Vec<DeviceStatus>,
    ) -> Self {
        let is_hardware = |status: &DeviceStatus| status.device.kind() != DeviceKind::StandIn;
        let (devices, absent_devices): (Vec<_>, Vec<_>) =
            devices.into_iter().filter(is_hardware).partition(|status| status.present);
        let npus: Vec<_> =
            devices.iter().filter(|status| status.device.kind() == DeviceKind::Npu).cloned().collect();
        let failed = models.iter().any(|model| matches!(model.state, ModelState::Failed { .. }));
        let details = HealthDetails {
            version: env!("CARGO_PKG_VERSION"),
            memory: MemoryHealth { report: *memory, low: memory.is_low() },
            power,
            npu: NpuHealth { available: npus.iter().any(|npu| npu.usable), devices: npus },
            devices,
            absent_devices,
            models: models.iter().map(ModelHealth::from).collect(),
            upstreams: Vec::new(),
        };
        let status = if failed { HealthStatus::Degraded } else { HealthStatus::Ok };
        Self { status, details: Some(details) }
    }

    /// Adds the upstreams to a report with details.
    pub(crate) fn with_upstreams(mut self, upstreams: Vec<UpstreamHealth>) -> Self {
        if let Some(details) = &mut self.details {
            details.upstreams = upstreams;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::DeviceName;
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
        let device = |device, present| DeviceStatus {
            device,
            usable: false,
            present,
            reason: Some("no driver".to_owned()),
            fix: None,
        };
        let devices = vec![
            device(DeviceName::Qnn, true),
            device(DeviceName::QnnEmulation, true),
            device(DeviceName::Cpu, true),
            device(DeviceName::VitisAi, false),
        ];
        let failed = ModelState::Failed { reason: "no memory".to_owned(), hint: None };
        let model = model::samples::status(failed, None);
        let expect = json!({
            "resident_bytes": 900, "weights_bytes": 500, "kv_used_bytes": 20, "kv_budget_bytes": 80,
            "total_bytes": 1000, "free_bytes": 90, "warning_below_bytes": 100, "low": true,
        });
        let report = json!(HealthReport::new(&[model], &memory, None, devices));
        assert_eq!(report.get("power"), None);
        let power = PowerReport { sensor: "RAPL".to_owned(), watts: Some(9.5), idle_watts: Some(4.0) };
        let measured = json!(HealthReport::new(&[], &memory, Some(power), Vec::new()));
        assert_eq!(measured["power"], json!({"sensor": "RAPL", "watts": 9.5, "idle_watts": 4.0}));
        assert_eq!((&report["status"], &report["memory"]), (&json!("degraded"), &expect));
        let npu =
            json!({"device": "qnn", "usable": false, "present": true, "reason": "no driver", "fix": null});
        assert_eq!(report["npu"], json!({"available": false, "devices": [npu]}));
        let names = |list: &str| -> Vec<String> {
            let devices = report[list].as_array().unwrap();
            devices.iter().map(|status| status["device"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(
            (names("devices"), names("absent_devices")),
            (vec!["qnn".into(), "cpu".into()], vec!["vitisai".into()])
        );
        assert_eq!(
            report["models"][0]["state"],
            json!({"state": "failed", "reason": "no memory", "hint": null})
        );
        assert_eq!(json!(HealthReport::alive()), json!({"status": "ok"}));
    }
}
