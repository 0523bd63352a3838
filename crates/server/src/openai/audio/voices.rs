//! `GET /v1/audio/voices`: the voices of the models that speak.

use axum::Json;
use narthex_gateway::models::VoiceInfo;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{app::App, error::ApiError};

/// A list of voices.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct VoiceList {
    voices: Vec<VoiceObject>,
}

/// A voice.
#[derive(Debug, Serialize, JsonSchema)]
struct VoiceObject {
    /// Name in requests.
    id: String,
    /// The same name.
    name: String,
    model: String,
    /// Language as a tag of BCP 47, such as `en-US`.
    language: String,
    /// True for the voice of requests that name none.
    default: bool,
    /// True if the model is installed.
    installed: bool,
}

impl From<VoiceInfo> for VoiceObject {
    fn from(voice: VoiceInfo) -> Self {
        Self {
            name: voice.id.clone(),
            id: voice.id,
            model: voice.model.to_string(),
            language: voice.language,
            default: voice.is_default,
            installed: voice.is_installed,
        }
    }
}

/// Handles a request.
pub(crate) async fn list(app: App) -> Result<Json<VoiceList>, ApiError> {
    let gateway = app.gateway.clone();
    let voices = app.shared.jobs.run(move || gateway.voices()).await?;
    Ok(Json(VoiceList { voices: voices.into_iter().map(VoiceObject::from).collect() }))
}
