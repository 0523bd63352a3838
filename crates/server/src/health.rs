//! `/health`: that the server lives, and where each model stands and runs.

use narthex_gateway::listing::{ModelState, ModelStatus};
use serde_json::{Value, json};

/// The health of a server with these models.
pub(crate) fn report(models: &[ModelStatus]) -> Value {
    let failed = models.iter().any(|model| matches!(model.state, ModelState::Failed { .. }));
    let models: Vec<Value> = models
        .iter()
        .map(|model| {
            json!({
                "id": model.name,
                "scheme": model.scheme,
                "state": model.state,
                "device": model.device,
                "placement": model.placement,
                "max_length": model.max_length,
                "engine": model.engine,
            })
        })
        .collect();
    json!({
        "status": if failed { "degraded" } else { "ok" },
        "version": env!("CARGO_PKG_VERSION"),
        "npu": {"available": false, "reason": "this version runs on the CPU"},
        "models": models,
    })
}
