//! The report at `/health`: the state and memory of the server, and the state and devices of each model.

use narthex_gateway::{
    MemoryReport, PlacementReport,
    devices::DeviceStatus,
    models::{ModelState, ModelStatus},
};
use serde_json::{Value, json};

/// Returns the report for callers without a required key, which states only that the server runs.
pub(crate) fn alive() -> Value {
    json!({"status": "ok"})
}

/// Returns the report for a server with these models and this memory, on a machine with these NPUs.
pub(crate) fn report(models: &[ModelStatus], memory: &MemoryReport, npus: &[DeviceStatus]) -> Value {
    let failed = models.iter().any(|model| matches!(model.state, ModelState::Failed { .. }));
    let models: Vec<Value> = models
        .iter()
        .map(|model| {
            json!({
                "id": model.name,
                "scheme": model.scheme,
                "state": model.state,
                "device": model.placement.as_ref().map(PlacementReport::name),
                "why": model.placement.as_ref().and_then(|report| report.why.as_deref()),
                "npu_share": model.placement.as_ref().map(|report| report.npu_share),
                "npu_phases": model.placement.as_ref().and_then(|report| report.phases),
                "placement": model.placement.as_ref().map(|report| &report.lines),
                "fallen": model.placement.as_ref().map(|report| &report.fallback),
                "notes": model.placement.as_ref().map(|report| &report.notes),
                "passed_over": model.passed_over,
                "max_length": model.max_length,
                "package_bytes": model.package_bytes,
                "draft_model": model.draft_model,
                "engine": model.engine,
            })
        })
        .collect();
    json!({
        "status": if failed { "degraded" } else { "ok" },
        "version": env!("CARGO_PKG_VERSION"),
        "memory": memory_report(memory),
        "npu": {"available": npus.iter().any(|npu| npu.usable), "devices": npus},
        "models": models,
    })
}

fn memory_report(memory: &MemoryReport) -> Value {
    let mut report = json!(memory);
    report["low"] = json!(memory.is_low());
    report
}

#[cfg(test)]
mod tests {
    use narthex_gateway::{FallbackNodes, models::ModelKind};
    use narthex_spec::{DeviceName, Scheme};

    use super::*;

    #[test]
    fn the_chosen_devices_are_reported_with_reasons_and_notes() {
        let placement = PlacementReport {
            device: DeviceName::Qnn,
            decode: Some(DeviceName::Cpu),
            head: None,
            multiply_accumulates: 8,
            npu_share: 0.5,
            phases: None,
            lines: Vec::new(),
            fallback: FallbackNodes::default(),
            why: Some("measured on this machine".to_owned()),
            notes: vec!["the kept contexts were refused".to_owned()],
        };
        let model = ModelStatus {
            name: "tiny".parse().unwrap(),
            kind: Some(ModelKind::Chat),
            scheme: Scheme::W8,
            state: ModelState::Ready,
            placement: Some(placement),
            passed_over: Vec::new(),
            engine: None,
            max_length: None,
            package_bytes: None,
            draft_model: None,
        };
        let memory = MemoryReport {
            resident_bytes: Some(900),
            weights_bytes: 500,
            kv_used_bytes: 20,
            kv_budget_bytes: 80,
            total_bytes: Some(1000),
            free_bytes: Some(90),
            warning_below_bytes: Some(100),
        };
        let report = report(&[model], &memory, &[]);
        let memory = &report["memory"];
        assert_eq!((&memory["weights_bytes"], &memory["free_bytes"]), (&json!(500), &json!(90)));
        assert_eq!((&memory["warning_below_bytes"], &memory["low"]), (&json!(100), &json!(true)));
        let found = &report["models"][0];
        assert_eq!(found["device"], "prefill=qnn,decode=cpu");
        assert_eq!(found["why"], "measured on this machine");
        assert_eq!(found["notes"], json!(["the kept contexts were refused"]));
    }
}
