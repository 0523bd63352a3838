//! Changes of the settings by requests, with the rules for additional names of models.

use axum::http::StatusCode;
use narthex_gateway::Gateway;

use crate::{
    app::App,
    error::ApiError,
    settings_editor::{AppliedSettings, SettingsChange},
};

/// Maximum characters of an additional name.
const MAX_NAME: usize = 128;

/// Checks an additional name of a model.
///
/// # Errors
/// 400 for a name with spaces, for one that is too long, and for that of a model.
pub(crate) fn check_name(param: &'static str, name: &str, gateway: &Gateway) -> Result<(), ApiError> {
    let is_word = !name.is_empty() && name.chars().all(|char| !char.is_whitespace() && !char.is_control());
    if !is_word || name.chars().count() > MAX_NAME {
        let message = format!(
            "{param}: expected a name of at most {MAX_NAME} characters without spaces, found {name:?}"
        );
        return Err(ApiError::bad_request(param, message));
    }
    if gateway.models()?.iter().any(|listed| listed.name.as_str() == name) {
        let message = format!("{param}: expected a new name, found that of the model {name}; choose another");
        return Err(ApiError::bad_request(param, message));
    }
    Ok(())
}

/// Applies changes, and returns the settings with them.
///
/// # Errors
/// 501 for a server without a settings file, and 409 with the reason why the settings stay as they are.
pub(crate) fn apply(app: &App, changes: &[SettingsChange]) -> Result<AppliedSettings, ApiError> {
    let mut applied = AppliedSettings::from(app.gateway.clone());
    for change in changes {
        let Some(editor) = &app.shared.settings else {
            let message = "this server has no settings file; the program that runs it states the settings";
            return Err(ApiError::plain(StatusCode::NOT_IMPLEMENTED, message));
        };
        let AppliedSettings { gateway, notes } =
            editor.apply(change).map_err(|reason| ApiError::plain(StatusCode::CONFLICT, reason))?;
        applied.gateway = gateway;
        applied.notes.extend(notes);
    }
    Ok(applied)
}
