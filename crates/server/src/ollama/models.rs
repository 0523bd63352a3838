//! `GET /api/tags` and `GET /api/version`.

use axum::Json;
use narthex_gateway::models::ModelListing;
use serde_json::{Value, json};

use super::OllamaError;
use crate::app::App;

fn entry(model: &ModelListing) -> Value {
    json!({"name": model.name, "model": model.name, "details": {"format": "onnx"}})
}

/// Lists the installed models.
pub(crate) async fn tags(app: App) -> Result<Json<Value>, OllamaError> {
    let gateway = app.gateway.clone();
    let models = app.shared.jobs.run(move || gateway.models()).await?;
    let installed = models.iter().filter(|model| !model.installed.is_empty());
    Ok(Json(json!({"models": installed.map(entry).collect::<Vec<_>>()})))
}

/// Returns the version of this program.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}
