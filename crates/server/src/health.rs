//! `/health`: that the server lives, and where each model stands and runs.

use narthex_gateway::{
    PlacementReport,
    devices::DeviceStatus,
    listing::{ModelState, ModelStatus},
};
use serde_json::{Value, json};

/// The health of a server with these models, on a machine with these NPUs.
pub(crate) fn report(models: &[ModelStatus], npus: &[DeviceStatus]) -> Value {
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
                "placement": model.placement.as_ref().map(|report| &report.lines),
                "passed_over": model.passed_over,
                "max_length": model.max_length,
                "engine": model.engine,
            })
        })
        .collect();
    json!({
        "status": if failed { "degraded" } else { "ok" },
        "version": env!("CARGO_PKG_VERSION"),
        "npu": {"available": npus.iter().any(|npu| npu.usable), "devices": npus},
        "models": models,
    })
}
