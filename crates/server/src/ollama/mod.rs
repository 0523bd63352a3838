//! Ollama's protocol: `/api/chat`, `/api/generate`, `/api/embed`, `/api/embeddings`, `/api/show`, `/api/pull`,
//! `/api/create`, `/api/copy`, `/api/delete`, `/api/ps`, `/api/tags` and `/api/version`.

pub(crate) mod chat;
pub(crate) mod create;
pub(crate) mod embed;
pub(crate) mod generate;
pub(crate) mod lines;
pub(crate) mod models;
pub(crate) mod options;
pub(crate) mod pull;

use std::time::Duration;

use axum::{
    Json,
    response::{IntoResponse, Response},
};

use self::{
    lines::{AnswerLines, LineContent},
    options::Retention,
};
use crate::{app::App, error::ApiError, protocol::loading};

/// Loads or unloads the model of a request without a prompt. Returns the answer to the request.
async fn change_memory<C: LineContent>(
    app: &App,
    form: AnswerLines<C>,
    retention: Retention,
) -> Result<Response, ApiError> {
    let done_reason = match retention {
        Retention::Settings | Retention::For(_) => {
            loading::wait(app, &form.model).await?;
            retain(app, &form.model, retention).await?;
            "load"
        }
        Retention::Unload => {
            unload(app, &form.model).await?;
            "unload"
        }
    };
    Ok(Json(form.without_text(done_reason)).into_response())
}

/// Applies the time that a request states to a model in memory.
async fn retain(app: &App, model: &str, retention: Retention) -> Result<(), ApiError> {
    match retention {
        Retention::Settings => Ok(()),
        Retention::Unload => unload(app, model).await,
        Retention::For(keep_alive) => {
            let gateway = app.gateway.clone();
            let model = model.to_owned();
            app.shared.jobs.run(move || gateway.set_keep_alive(&model, keep_alive)).await
        }
    }
}

/// Removes a model from memory. Running answers finish.
///
/// # Errors
/// 403 for a caller without admin rights, because other callers use the model too.
async fn unload(app: &App, model: &str) -> Result<(), ApiError> {
    app.check_admin("keep_alive: 0 without a prompt")?;
    let gateway = app.gateway.clone();
    let model = model.to_owned();
    app.shared.jobs.run(move || gateway.unload(&model)).await
}

/// Returns the next step for the clients of an endpoint of Ollama that this server lacks.
pub(crate) fn unsupported(path: &str) -> Option<&'static str> {
    match path.trim_end_matches('/') {
        "/api/push" => {
            Some("models are not uploaded anywhere; `narthex export MODEL` writes its files to a folder")
        }
        path if path.starts_with("/api/blobs/") => {
            Some("`narthex pull` and `narthex import` take files of this machine")
        }
        _ => None,
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
