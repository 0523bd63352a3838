//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::time::UNIX_EPOCH;

use axum::{
    Json,
    extract::{Path, rejection::PathRejection},
    http::StatusCode,
};
use narthex_gateway::models::ModelListing;
use serde_json::{Value, json};

use crate::{app::App, error::ApiError, model_name::refuse_path};

fn object(model: &ModelListing) -> Value {
    let newest = model.installed.iter().max_by_key(|package| package.created);
    let created = newest.and_then(|package| package.created.duration_since(UNIX_EPOCH).ok());
    json!({
        "id": model.name,
        "object": "model",
        "created": created.map_or(0, |since| since.as_secs()),
        "owned_by": "narthex",
        "installed": newest.is_some(),
        "context_length": newest.map(|package| package.max_length),
    })
}

/// Lists the usable models: those installed, and those that are fetched on first use.
pub(crate) async fn list(app: App) -> Result<Json<Value>, ApiError> {
    let models = app.shared.jobs.run(move || app.gateway.models()).await?;
    let usable = models.iter().filter(|model| !model.installed.is_empty() || model.auto_pull);
    Ok(Json(json!({"object": "list", "data": usable.map(object).collect::<Vec<_>>()})))
}

/// Returns one model, by any name that a request may use.
pub(crate) async fn retrieve(
    app: App,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    refuse_path(&id)?;
    Ok(Json(object(&app.shared.jobs.run(move || app.gateway.model(&id)).await?)))
}
