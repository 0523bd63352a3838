//! `GET /v1/load/{id}`: what a load of an installed model would take from the memory. It loads nothing.

use axum::{
    Json,
    extract::{Path, rejection::PathRejection},
    http::StatusCode,
};
use narthex_gateway::{LoadForecast, LoadRoom};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{app::App, error::ApiError};

/// Outcome of a load, as far as it is known before.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LoadForecastObject {
    id: String,
    scheme: String,
    /// Bytes of the package, which are mostly weights.
    package_bytes: u64,
    /// Bytes of memory that the system can provide without swapping.
    free_bytes: Option<u64>,
    /// Models that would be unloaded, the least recently used first.
    unloads: Vec<String>,
    /// `loaded` if the model is in memory; `enough`; `short` if less memory is free than the package needs, so that the
    /// model would be slow; `full` if the load would wait for models in use.
    room: &'static str,
    /// The same in words, after the name of the model.
    text: String,
}

impl From<LoadForecast> for LoadForecastObject {
    fn from(forecast: LoadForecast) -> Self {
        Self {
            text: forecast.to_string(),
            id: forecast.name.to_string(),
            scheme: forecast.scheme.to_string(),
            package_bytes: forecast.package_bytes,
            free_bytes: forecast.free_bytes,
            unloads: forecast.unloads.iter().map(ToString::to_string).collect(),
            room: match forecast.room {
                LoadRoom::Loaded => "loaded",
                LoadRoom::Enough => "enough",
                LoadRoom::Short => "short",
                LoadRoom::Full => "full",
            },
        }
    }
}

/// Forecasts the load of a model.
pub(crate) async fn forecast(
    app: App,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<LoadForecastObject>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    let gateway = app.gateway.clone();
    let forecast = app.shared.jobs.run(move || gateway.forecast_load(&id)).await?;
    Ok(Json(forecast.into()))
}
