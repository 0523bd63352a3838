//! `GET /v1/models` and `GET /v1/models/{id}`, with the fields of both OpenAI's and Anthropic's API.

use axum::{
    Json,
    extract::{
        Path, Query,
        rejection::{PathRejection, QueryRejection},
    },
    http::{HeaderMap, StatusCode},
};
use narthex_gateway::{
    UpstreamRoute,
    models::{ModelKind, ModelListing},
};
use narthex_spec::{MediaKind, date::unix_seconds, manifest::PublishedSampling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    app::App,
    error::ApiError,
    protocol::{Protocol, timestamp::rfc_3339},
};

/// A list of models.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    #[schemars(extend("const" = "list"))]
    object: &'static str,
    data: Vec<ModelObject>,
    /// Always false, because the list has one page.
    #[schemars(extend("const" = false))]
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// A model.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ModelObject {
    id: String,
    #[schemars(extend("const" = "model"))]
    object: &'static str,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "model"))]
    object_type: &'static str,
    display_name: String,
    /// Creation time of the package in seconds since 1970; 0 if the model is not installed.
    created: u64,
    /// The same time in the format of RFC 3339.
    created_at: String,
    /// `narthex`, or the name of the upstream that answers.
    owned_by: String,
    /// Model that an alias stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    root: Option<String>,
    /// Task: `chat`, `text`, `embedding`, `rerank`, `answer`, `masked`, `transcription`, `speech` or `other`.
    kind: &'static str,
    /// Endpoints of `/v1` that the model supports; `tools`; `vision` and `audio` for a model that reads images or audio in
    /// conversations. Null in answers to clients of Anthropic's API, which expect another type.
    capabilities: Option<Vec<&'static str>>,
    installed: bool,
    /// Maximum number of tokens, for an installed model.
    context_length: Option<usize>,
    /// The same number under its name in Anthropic's API.
    max_input_tokens: Option<usize>,
    /// Sampling of the model's publisher, for requests that state none.
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling: Option<SamplingObject>,
}

/// Sampling that a model's publisher recommends.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct SamplingObject {
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
}

impl SamplingObject {
    /// Returns the object, or `None` if the publisher states nothing.
    fn new(sampling: &PublishedSampling) -> Option<Self> {
        let PublishedSampling { temperature, top_p, top_k, min_p, repetition_penalty } = *sampling;
        let object = Self { temperature, top_p, top_k, min_p, repetition_penalty };
        (!sampling.is_empty()).then_some(object)
    }
}

/// Returns the protocol of the client. The path is the same for all.
fn protocol(headers: &HeaderMap) -> Protocol {
    if headers.contains_key("anthropic-version") { Protocol::Anthropic } else { Protocol::OpenAi }
}

impl ModelObject {
    fn new(model: &ModelListing, protocol: Protocol) -> Self {
        let newest = model.installed.iter().max_by_key(|package| package.created);
        let context_length = model.usual_package().map(|package| package.context_length);
        let created = newest.map_or(0, |package| unix_seconds(package.created));
        Self {
            id: model.name.to_string(),
            object: "model",
            object_type: "model",
            display_name: model.name.to_string(),
            created,
            created_at: rfc_3339(created),
            owned_by: "narthex".to_owned(),
            root: None,
            kind: model.kind.as_str(),
            capabilities: (protocol != Protocol::Anthropic).then(|| capabilities(model.kind, &model.reads)),
            installed: newest.is_some(),
            context_length,
            max_input_tokens: context_length,
            sampling: model.usual_package().and_then(|package| SamplingObject::new(&package.sampling)),
        }
    }

    /// Creates the model of an upstream, about which only its names are known.
    fn of_upstream(route: &UpstreamRoute, protocol: Protocol) -> Self {
        Self {
            id: route.name.clone(),
            object: "model",
            object_type: "model",
            display_name: route.name.clone(),
            created: 0,
            created_at: rfc_3339(0),
            owned_by: route.upstream.clone(),
            root: (route.name != route.model).then(|| route.model.clone()),
            kind: ModelKind::Other.as_str(),
            capabilities: (protocol != Protocol::Anthropic).then(Vec::new),
            installed: false,
            context_length: None,
            max_input_tokens: None,
            sampling: None,
        }
    }

    fn alias(&self, alias: &str) -> Self {
        Self {
            id: alias.to_owned(),
            display_name: alias.to_owned(),
            root: Some(self.id.clone()),
            ..self.clone()
        }
    }
}

fn capabilities(kind: ModelKind, reads: &[MediaKind]) -> Vec<&'static str> {
    match kind {
        ModelKind::Chat => {
            let mut capabilities = vec!["chat", "responses", "messages", "completions", "tools"];
            capabilities.extend(reads.iter().map(|kind| kind.capability()));
            capabilities
        }
        ModelKind::Text => vec!["completions"],
        ModelKind::Embedding => vec!["embeddings"],
        ModelKind::Rerank => vec!["rerank"],
        ModelKind::Classification | ModelKind::TokenClassification => vec!["classify"],
        ModelKind::Answer => vec!["answer", "chat", "responses", "messages"],
        ModelKind::Masked => vec!["fill"],
        ModelKind::Transcription => vec!["transcriptions"],
        ModelKind::Speech => vec!["speech"],
        ModelKind::Other => Vec::new(),
    }
}

/// Query of the list of models.
#[derive(Debug, Deserialize)]
pub(crate) struct ListQuery {
    /// Also lists models that the caller's requests may download.
    #[serde(default)]
    available: bool,
}

/// Lists the installed models, those of upstreams that the settings name, and the aliases. With `available=true`, also lists those that are fetched on first use.
pub(crate) async fn list(
    app: App,
    headers: HeaderMap,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<ModelList>, ApiError> {
    let Query(ListQuery { available }) =
        query.map_err(|rejection| ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    let gateway = app.gateway.clone();
    let listing = app.shared.jobs.run(move || gateway.models().map(|models| (models, gateway.aliases())));
    let (models, aliases) = listing.await?;
    let usable = models.iter().filter(|model| !model.installed.is_empty() || (available && model.auto_pull));
    let protocol = protocol(&headers);
    let mut data: Vec<ModelObject> = usable.map(|model| ModelObject::new(model, protocol)).collect();
    // A request for this name is answered by the upstream.
    let of_upstreams = app.gateway.upstream_models();
    data.retain(|model| of_upstreams.iter().all(|route| route.name != model.id));
    data.extend(of_upstreams.iter().map(|route| ModelObject::of_upstream(route, protocol)));
    for (alias, name) in aliases {
        let found = data.iter().find(|model| model.id == name.as_str()).map(|model| model.alias(&alias));
        data.extend(found);
    }
    let first_id = data.first().map(|model| model.id.clone());
    let last_id = data.last().map(|model| model.id.clone());
    Ok(Json(ModelList { object: "list", data, has_more: false, first_id, last_id }))
}

/// Returns one model, by any name that is valid in requests.
pub(crate) async fn retrieve(
    app: App,
    headers: HeaderMap,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelObject>, ApiError> {
    let Path(id) = id.map_err(|rejection| ApiError::plain(StatusCode::BAD_REQUEST, rejection.body_text()))?;
    if let Some(route) = app.gateway.upstream_route(&id)? {
        return Ok(Json(ModelObject::of_upstream(&route, protocol(&headers))));
    }
    let alias = app.gateway.config().aliases.contains_key(&id).then(|| id.clone());
    let model = app.shared.jobs.run(move || app.gateway.model(&id)).await?;
    let model = ModelObject::new(&model, protocol(&headers));
    Ok(Json(match alias {
        Some(alias) => model.alias(&alias),
        None => model,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_stated_sampling_is_listed() {
        let sampling =
            PublishedSampling { temperature: Some(0.2), top_k: Some(20), ..PublishedSampling::default() };
        let object = serde_json::to_string(&SamplingObject::new(&sampling)).unwrap();
        assert_eq!(object, r#"{"temperature":0.2,"top_k":20}"#);
        assert!(SamplingObject::new(&PublishedSampling::default()).is_none());
    }
}
