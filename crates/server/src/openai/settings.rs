//! `GET` and `POST /v1/settings`: additional names of models, pins and the default model, for admins.

use std::collections::BTreeMap;

use axum::Json;
use narthex_gateway::Gateway;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    app::App,
    error::ApiError,
    protocol::{
        body::{Body, FromBody},
        fields::BodyFields,
        ignored::IgnoredParameters,
        settings::{apply, check_name},
    },
    settings_editor::{AppliedSettings, SettingsChange},
};

const PATH: &str = "/v1/settings";

/// Settings of the models of a server.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SettingsObject {
    /// True if requests may change the settings.
    editable: bool,
    /// Model of requests that name an unknown one.
    default_model: Option<String>,
    /// Models that are not unloaded to make room for another.
    pinned: Vec<String>,
    /// Additional names, each with its model.
    names: BTreeMap<String, String>,
    /// Remarks on the changes, such as settings that apply after a restart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

impl SettingsObject {
    fn new(gateway: &Gateway, editable: bool) -> Self {
        let config = gateway.config();
        let listed = |name: &str| gateway.model(name).ok().map(|model| model.name.to_string());
        let pinned = config.models.iter().filter(|(_, own)| own.from.is_none() && own.residence.pinned);
        Self {
            editable,
            default_model: config.default_model.as_deref().and_then(listed),
            pinned: pinned.filter_map(|(name, _)| listed(name)).collect(),
            names: gateway.aliases().into_iter().map(|(name, model)| (name, model.to_string())).collect(),
            notes: Vec::new(),
        }
    }
}

/// Body of the request: a model, and what changes about it, or a switch to read the settings again.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [{"required": ["model"]}, {"required": ["reload"]}]))]
pub(crate) struct SettingsBody {
    model: Option<String>,
    /// True to read the settings file again, as at SIGHUP.
    reload: Option<bool>,
    /// True if the model may not be unloaded to make room for another.
    pin: Option<bool>,
    /// True if the model is to answer requests that name an unknown one; false if it is not to do so any more.
    default: Option<bool>,
    /// An additional name for the model.
    add_name: Option<String>,
    /// An additional name that is removed.
    remove_name: Option<String>,
}

impl FromBody for SettingsBody {
    fn read(fields: &BodyFields<'_>, _: &mut IgnoredParameters) -> Result<Self, ApiError> {
        let body: Self = fields.read()?;
        fields.refuse_unread()?;
        if body.model.is_none() && body.reload != Some(true) {
            return Err(ApiError::required("model"));
        }
        Ok(body)
    }
}

/// Returns the settings.
pub(crate) async fn show(app: App) -> Result<Json<SettingsObject>, ApiError> {
    app.check_admin(PATH)?;
    let editable = app.shared.settings.is_some();
    let jobs = app.shared.jobs.clone();
    let read = jobs.run(move || Ok::<_, ApiError>(SettingsObject::new(&app.gateway, editable)));
    Ok(Json(read.await?))
}

/// Changes the settings of a model, and returns all settings.
pub(crate) async fn change(app: App, body: Body<SettingsBody>) -> Result<Json<SettingsObject>, ApiError> {
    let Body { request, reservation: _reservation, .. } = body;
    app.check_admin(PATH)?;
    let jobs = app.shared.jobs.clone();
    let changed = jobs.run(move || {
        let changes = changes(&request, &app.gateway)?;
        let AppliedSettings { gateway, notes } = apply(&app, &changes)?;
        let settings = SettingsObject::new(&gateway, app.shared.settings.is_some());
        Ok::<_, ApiError>(SettingsObject { notes, ..settings })
    });
    Ok(Json(changed.await?))
}

/// Returns the changes that a request asks for.
fn changes(request: &SettingsBody, gateway: &Gateway) -> Result<Vec<SettingsChange>, ApiError> {
    let mut changes = Vec::new();
    if request.reload == Some(true) {
        changes.push(SettingsChange::Reload);
    }
    let Some(model) = &request.model else { return Ok(changes) };
    let model = gateway.model(model)?.name.to_string();
    if let Some(pinned) = request.pin {
        changes.push(SettingsChange::Pin { model: model.clone(), pinned });
    }
    if let Some(is_default) = request.default {
        changes.push(SettingsChange::DefaultModel { model: is_default.then(|| model.clone()) });
    }
    if let Some(name) = &request.add_name {
        check_name("add_name", name, gateway)?;
        changes.push(SettingsChange::AddName { name: name.clone(), model });
    }
    if let Some(name) = request.remove_name.clone() {
        if !gateway.is_alias(&name) {
            let message = format!("remove_name: expected an additional name of a model, found {name:?}");
            return Err(ApiError::bad_request("remove_name", message));
        }
        changes.push(SettingsChange::RemoveName { name });
    }
    Ok(changes)
}
