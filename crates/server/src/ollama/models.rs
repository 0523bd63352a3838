//! `GET /api/tags`, `GET /api/ps`, `POST /api/show`, `POST /api/copy`, `DELETE /api/delete` and `GET /api/version`.

use std::collections::BTreeMap;

use axum::{Json, http::StatusCode};
use narthex_gateway::{
    Gateway,
    models::{InstalledPackage, KvCacheStatus, ModelKind, ModelListing, ModelState, ModelStatus},
    split_scheme,
};
use narthex_spec::{
    Scheme,
    arch::Structure,
    date::{unix_now, unix_seconds},
    manifest::PublishedSampling,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{Body, FromBody},
        fields::BodyFields,
        ignored::IgnoredParameters,
        settings,
        timestamp::{self, rfc_3339},
    },
    settings_editor::SettingsChange,
};

/// Expiry time of a model that stays in memory.
const NEVER: &str = "9999-12-31T23:59:59Z";

/// Facts about a model.
#[derive(Debug, Clone, Serialize, JsonSchema)]
struct ModelDetails {
    parent_model: &'static str,
    #[schemars(extend("const" = "onnx"))]
    format: &'static str,
    family: String,
    families: Vec<String>,
    /// Number of parameters, such as `135M`.
    parameter_size: String,
    /// Weight scheme.
    quantization_level: String,
}

impl ModelDetails {
    fn new(model: Option<&ModelListing>, family: Option<String>, scheme: Scheme) -> Self {
        let parameters = model.and_then(|model| model.parameters);
        let family = family.unwrap_or_default();
        Self {
            parent_model: "",
            format: "onnx",
            families: Some(family.clone()).filter(|family| !family.is_empty()).into_iter().collect(),
            family,
            parameter_size: parameters.map_or_else(String::new, parameter_size),
            quantization_level: scheme.to_string(),
        }
    }
}

/// Formats a number of parameters, such as `135M` or `1.7B`.
fn parameter_size(parameters: u64) -> String {
    match parameters {
        0..1_000_000_000 => format!("{}M", parameters.div_ceil(1_000_000)),
        _ => format!("{:.1}B", parameters as f64 / 1e9),
    }
}

/// Models of `/api/tags`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InstalledModels {
    models: Vec<InstalledModel>,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
struct InstalledModel {
    name: String,
    model: String,
    modified_at: String,
    /// Bytes on disk.
    size: u64,
    digest: String,
    details: ModelDetails,
    /// As in `/api/show`.
    capabilities: Vec<&'static str>,
}

impl InstalledModel {
    /// Describes a package under the name that requests use: the model's for its usual package, otherwise with the
    /// scheme.
    fn new(model: &ModelListing, package: &InstalledPackage) -> Self {
        let is_usual = model.usual_package().is_some_and(|usual| usual.scheme == package.scheme);
        let name = match is_usual {
            true => model.name.to_string(),
            false => format!("{}@{}", model.name, package.scheme),
        };
        Self {
            name: name.clone(),
            model: name,
            modified_at: rfc_3339(unix_seconds(package.created)),
            size: package.bytes,
            digest: package.digest.to_string(),
            details: ModelDetails::new(Some(model), None, package.scheme),
            capabilities: capabilities(model.kind, Some(package)),
        }
    }
}

/// Lists the packages of the installed models, and their aliases.
pub(crate) async fn tags(app: App) -> Result<Json<InstalledModels>, ApiError> {
    let gateway = app.gateway.clone();
    let listing = app.shared.jobs.run(move || gateway.models().map(|models| (models, gateway.aliases())));
    let (models, aliases) = listing.await?;
    let installed = models
        .iter()
        .flat_map(|model| model.installed.iter().map(|package| InstalledModel::new(model, package)));
    let mut models: Vec<InstalledModel> = installed.collect();
    for (alias, name) in aliases {
        let found = models.iter().find(|model| model.name == name.as_str()).cloned();
        models.extend(found.map(|model| InstalledModel { name: alias.clone(), model: alias, ..model }));
    }
    Ok(Json(InstalledModels { models }))
}

/// Models of `/api/ps`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LoadedModels {
    models: Vec<LoadedModelEntry>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LoadedModelEntry {
    name: String,
    model: String,
    /// Bytes of the packages of the model and of its draft model, and of the KV cache in use.
    size: u64,
    digest: String,
    details: ModelDetails,
    /// Time at which the model is unloaded if no request uses it before.
    expires_at: String,
    /// Bytes in the memory of a GPU or NPU; 0 if the model runs on the CPU.
    size_vram: u64,
    context_length: usize,
    /// Device, as in `--providers`.
    device: Option<String>,
    /// Nodes and work on the device: `qnn 1470/1470 nodes, 100 % of MACs`.
    placement: Option<String>,
    /// Element type of the KV cache on the CPU, with the measured loss.
    kv_cache: Option<KvCacheStatus>,
}

impl LoadedModelEntry {
    fn new(status: &ModelStatus, models: &[ModelListing]) -> Self {
        let listing = models.iter().find(|model| model.name == status.name);
        let package =
            listing.and_then(|model| model.installed.iter().find(|package| package.scheme == status.scheme));
        let kv = status.engine.as_ref().map_or(0, |engine| engine.kv_used_bytes as u64);
        let draft = status.draft_model.as_ref().map_or(0, |draft| draft.bytes);
        let size = package.map_or(0, |package| package.bytes) + draft + kv;
        let device = status.placement.as_ref().map(|placement| placement.name());
        let is_on_cpu = device.as_deref().is_none_or(|device| device == "cpu");
        Self {
            name: status.name.to_string(),
            model: status.name.to_string(),
            size,
            digest: package.map_or_else(String::new, |package| package.digest.to_string()),
            details: ModelDetails::new(listing, None, status.scheme),
            expires_at: status
                .expires_in
                .map_or_else(|| NEVER.to_owned(), |time| rfc_3339(unix_now() + time.as_secs())),
            size_vram: if is_on_cpu { 0 } else { size },
            context_length: status.max_length.unwrap_or_default(),
            device,
            placement: status.placement.as_ref().map(|placement| placement.summary()),
            kv_cache: status.kv_cache,
        }
    }
}

/// Lists the models in memory.
pub(crate) async fn ps(app: App) -> Result<Json<LoadedModels>, ApiError> {
    let gateway = app.gateway.clone();
    let models = app.shared.jobs.run(move || gateway.models()).await?;
    let status = app.gateway.status();
    let ready = status.iter().filter(|status| status.state == ModelState::Ready);
    Ok(Json(LoadedModels { models: ready.map(|status| LoadedModelEntry::new(status, &models)).collect() }))
}

/// Body of `/api/show`.
#[derive(Debug, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["model"]}, {"required": ["name"]}]))]
pub(crate) struct ShowBody {
    #[schemars(flatten)]
    model: NamedModel,
}

impl FromBody for ShowBody {
    fn read(fields: &BodyFields<'_>, _: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let model: NamedModel = fields.read()?;
        fields.skip(&["verbose"]);
        fields.refuse_unread()?;
        model.check()?;
        Ok(Self { model })
    }
}

/// The model of a request. Ollama's own client sends its name in both fields, of which one is empty.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(super) struct NamedModel {
    #[serde(default)]
    model: String,
    /// The older field.
    #[serde(default)]
    name: String,
}

impl NamedModel {
    /// Fails if both fields are empty.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let is_named = !self.model.is_empty() || !self.name.is_empty();
        if is_named { Ok(()) } else { Err(ApiError::required("model")) }
    }

    /// Returns the name of the model.
    pub(super) fn into_name(self) -> String {
        if self.model.is_empty() { self.name } else { self.model }
    }
}

/// Answer of `/api/show`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ShownModel {
    license: String,
    modelfile: String,
    parameters: String,
    template: String,
    details: ModelDetails,
    /// Facts about the model, with GGUF's names.
    model_info: BTreeMap<String, Value>,
    /// `completion`, `tools`, `thinking`, `vision`, `audio`, `embedding`, `transcription`, `speech`.
    capabilities: Vec<&'static str>,
    modified_at: String,
}

/// Describes one model.
pub(crate) async fn show(app: App, body: Body<ShowBody>) -> Result<Json<ShownModel>, ApiError> {
    let Body { request: ShowBody { model }, reservation: _reservation, .. } = body;
    let gateway = app.gateway.clone();
    let model = model.into_name();
    let shown = app.shared.jobs.run(move || shown(&gateway, &model)).await?;
    Ok(Json(shown))
}

/// Body of `/api/copy`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CopyBody {
    /// The model.
    source: String,
    /// The additional name.
    destination: String,
}

impl FromBody for CopyBody {
    fn read(fields: &BodyFields<'_>, _: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: Self = fields.read()?;
        fields.refuse_unread()?;
        Ok(body)
    }
}

/// Gives a model an additional name.
pub(crate) async fn copy(app: App, body: Body<CopyBody>) -> Result<StatusCode, ApiError> {
    let Body { request: CopyBody { source, destination }, reservation: _reservation, .. } = body;
    app.check_admin("/api/copy")?;
    let jobs = app.shared.jobs.clone();
    let copied = jobs.run(move || {
        let model = app.gateway.model(&source)?.name.to_string();
        settings::check_name("destination", &destination, &app.gateway)?;
        let change = SettingsChange::AddName { name: destination, model };
        settings::apply(&app, &[change]).map(drop)
    });
    copied.await?;
    Ok(StatusCode::OK)
}

/// Removes an installed model, the one of its packages that `MODEL@SCHEME` names, or an additional name. Running answers
/// finish.
///
/// # Errors
/// 403 for a caller without admin rights. 404 for everything but the exact name of an installed model: a shorter name, or
/// the default model in place of an unknown one, would remove what nobody named.
pub(crate) async fn delete(app: App, body: Body<ShowBody>) -> Result<StatusCode, ApiError> {
    let Body { request: ShowBody { model }, reservation: _reservation, .. } = body;
    app.check_admin("/api/delete")?;
    let gateway = app.gateway.clone();
    let model = model.into_name();
    if gateway.is_alias(&model) {
        let change = SettingsChange::RemoveName { name: model };
        let jobs = app.shared.jobs.clone();
        jobs.run(move || settings::apply(&app, &[change]).map(drop)).await?;
        return Ok(StatusCode::OK);
    }

    let name = model.clone();
    let is_removed = app.shared.jobs.run(move || {
        let (text, scheme) = split_scheme(&name);
        let listed = gateway.models()?.into_iter().find(|listed| listed.name.as_str() == text);
        let is_installed = listed.is_some_and(|listed| {
            listed.installed.iter().any(|package| scheme.is_none_or(|scheme| scheme == package.scheme))
        });
        if is_installed { gateway.remove(&name).map(|_| true) } else { Ok(false) }
    });
    if is_removed.await? {
        return Ok(StatusCode::OK);
    }
    let message = format!("the model {model} is not installed; /api/tags lists the installed ones");
    Err(ApiError::plain(StatusCode::NOT_FOUND, message))
}

fn shown(gateway: &Gateway, model: &str) -> Result<ShownModel, narthex_gateway::Error> {
    let listing = gateway.model(model)?;
    let package = listing.usual_package();
    let name = package.map(|package| format!("{}@{}", listing.name, package.scheme));
    let manifest = name.as_deref().map(|name| gateway.manifest(name)).transpose()?;
    let template = name.as_deref().map(|name| gateway.chat_template(name)).transpose()?.flatten();
    let family = manifest.as_ref().and_then(|manifest| family(&manifest.architecture));
    let architecture = family.clone().unwrap_or_else(|| "onnx".to_owned());
    let mut info = BTreeMap::from([("general.architecture".to_owned(), json!(architecture))]);
    if let Some(parameters) = listing.parameters {
        info.insert("general.parameter_count".to_owned(), json!(parameters));
    }

    if let Some(package) = package {
        info.insert(format!("{architecture}.context_length"), json!(package.context_length));
    }
    let scheme = package.map_or(Scheme::W8, |package| package.scheme);
    Ok(ShownModel {
        license: listing.license.clone().unwrap_or_default(),
        modelfile: format!("FROM {}\n", listing.name),
        parameters: manifest.as_ref().map_or_else(String::new, |manifest| parameters(&manifest.sampling)),
        template: template.unwrap_or_default(),
        details: ModelDetails::new(Some(&listing), family, scheme),
        model_info: info,
        capabilities: capabilities(listing.kind, package),
        modified_at: package.map_or_else(timestamp::now, |package| rfc_3339(unix_seconds(package.created))),
    })
}

/// Returns the sampling of a publisher as the lines of a Modelfile, without their keyword.
fn parameters(sampling: &PublishedSampling) -> String {
    let lines = sampling.stated().map(|(name, value)| match name {
        "repetition_penalty" => format!("repeat_penalty {value}"),
        name => format!("{name} {value}"),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the family of an architecture; `None` for imports.
fn family(architecture: &Structure) -> Option<String> {
    let family = match architecture {
        Structure::Decoder(decoder) => decoder.family,
        Structure::Encoder(encoder) => encoder.family,
        Structure::Embedder(embedder) => embedder.decoder.family,
        Structure::Speech(speech) => speech.family,
        Structure::ImportedDecoder(_)
        | Structure::ImportedEncoder(_)
        | Structure::ImportedVoice(_)
        | Structure::ImportedTranscriber(_) => return None,
    };
    serde_json::to_value(family).ok()?.as_str().map(str::to_owned)
}

/// Returns the capabilities of a model of this kind, with those that only its package states.
fn capabilities(kind: ModelKind, package: Option<&InstalledPackage>) -> Vec<&'static str> {
    match kind {
        ModelKind::Chat => {
            let mut capabilities = vec!["completion", "tools"];
            capabilities.extend(package.is_some_and(|package| package.reasons).then_some("thinking"));
            let media = package.into_iter().flat_map(|package| &package.reads);
            capabilities.extend(media.map(|kind| kind.capability()));
            capabilities
        }
        ModelKind::Text | ModelKind::Answer => vec!["completion"],
        ModelKind::Embedding => vec!["embedding"],
        ModelKind::Transcription => vec!["transcription"],
        ModelKind::Speech => vec!["speech"],
        ModelKind::Rerank
        | ModelKind::Classification
        | ModelKind::TokenClassification
        | ModelKind::Masked
        | ModelKind::Other => Vec::new(),
    }
}

/// Answer of `/api/version`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Version {
    version: &'static str,
}

/// Version of Ollama whose API this server has. Clients refuse servers before the version that they need, such as 0.6.4 or
/// 0.13.4.
const OLLAMA: &str = "0.14.2";

/// Returns the version of Ollama's API.
pub(crate) async fn version() -> Json<Version> {
    Json(Version { version: OLLAMA })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sampling_of_a_publisher_is_written_as_in_a_modelfile() {
        let sampling = PublishedSampling {
            temperature: Some(0.6),
            repetition_penalty: Some(1.1),
            ..PublishedSampling::default()
        };
        assert_eq!(parameters(&sampling), "temperature 0.6\nrepeat_penalty 1.1");
        assert_eq!(parameters(&PublishedSampling::default()), "");
    }

    #[test]
    fn parameters_are_rounded() {
        let check = |parameters: u64, expect: &str| assert_eq!(parameter_size(parameters), expect);
        check(134_515_008, "135M");
        check(1_711_376_384, "1.7B");
        check(7_000, "1M");
    }
}
