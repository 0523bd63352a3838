//! `GET /v1/models` and `GET /v1/models/{id}`.

use std::time::UNIX_EPOCH;

use axum::{
    Json,
    extract::{Path, rejection::PathRejection},
    http::StatusCode,
};
use narthex_gateway::models::{ModelKind, ModelListing};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{app::App, error::ApiError};

/// A list of models.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<ModelObject>,
}

/// A model.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ModelObject {
    id: String,
    #[schemars(extend("const" = "model"))]
    object: &'static str,
    /// Creation time of the package in seconds since 1970; 0 if the model is not installed.
    created: u64,
    #[schemars(extend("const" = "narthex"))]
    owned_by: &'static str,
    /// Model that an alias stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    /// Task: `chat`, `text`, `embedding`, `rerank`, `answer`, `masked` or `other`.
    kind: &'static str,
    /// Endpoints of `/v1` that the model supports, and `tools`.
    capabilities: Vec<&'static str>,
    installed: bool,
    /// Maximum number of tokens, for an installed model.
    context_length: Option<usize>,
}

impl ModelObject {
    fn new(model: &ModelListing) -> Self {
        let newest = model.installed.iter().max_by_key(|package| package.created);
        let created = newest.and_then(|package| package.created.duration_since(UNIX_EPOCH).ok());
        Self {
            id: model.name.to_string(),
            object: "model",
            created: created.map_or(0, |since| since.as_secs()),
            owned_by: "narthex",
            root: None,
            kind: model.kind.as_str(),
            capabilities: capabilities(model.kind),
            installed: newest.is_some(),
            context_length: newest.map(|package| package.max_length),
        }
    }

    fn alias(&self, alias: &str) -> Self {
        Self { id: alias.to_owned(), root: Some(self.id.clone()), ..self.clone() }
    }
}

fn capabilities(kind: ModelKind) -> Vec<&'static str> {
    match kind {
        ModelKind::Chat => vec!["chat", "responses", "messages", "completions", "tools"],
        ModelKind::Text => vec!["completions"],
        ModelKind::Embedding => vec!["embeddings"],
        ModelKind::Rerank => vec!["rerank"],
        ModelKind::Answer => vec!["answer"],
        ModelKind::Masked => vec!["fill"],
        ModelKind::Other => Vec::new(),
    }
}

/// Lists the usable models: installed ones, those that are fetched on first use, and aliases of both.
pub(crate) async fn list(app: App) -> Result<Json<ModelList>, ApiError> {
    let gateway = app.gateway.clone();
    let (models, aliases) = app
        .shared
        .jobs
        .run(move || {
            let aliases = gateway.config().aliases.keys();
            let of = |alias: &String| gateway.model(alias).ok().map(|model| (alias.clone(), model.name));
            gateway.models().map(|models| (models, aliases.filter_map(of).collect::<Vec<_>>()))
        })
        .await?;
    let usable = models.iter().filter(|model| !model.installed.is_empty() || model.auto_pull);
    let mut data: Vec<ModelObject> = usable.map(ModelObject::new).collect();
    for (alias, name) in aliases {
        let found = data.iter().find(|model| model.id == name.as_str()).map(|model| model.alias(&alias));
        data.extend(found);
    }
    Ok(Json(ModelList { object: "list", data }))
}

/// Returns one model, by any name that is valid in requests.
pub(crate) async fn retrieve(
    app: App,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelObject>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    let alias = app.gateway.config().aliases.contains_key(&id).then(|| id.clone());
    let model = app.shared.jobs.run(move || app.gateway.model(&id)).await?;
    let model = ModelObject::new(&model);
    Ok(Json(match alias {
        Some(alias) => model.alias(&alias),
        None => model,
    }))
}
