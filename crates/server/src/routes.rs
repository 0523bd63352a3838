//! The route table.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, MatchedPath, Request, State},
    http::{StatusCode, header::CONTENT_TYPE},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::Value;

use crate::{
    access::{self, Access},
    app::App,
    blocking::run_blocking,
    connection,
    error::ApiError,
    health, keys,
    metrics::Metrics,
    openai::{answer, chat, completions, embeddings, fill, models, rerank},
};

/// Maximum size of a request body.
const MAX_BODY_BYTES: usize = 32 << 20;

/// Returns the router with every route, behind access control.
pub(crate) fn router(access: Access) -> Router {
    let metrics = access.metrics();
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/rerank", post(rerank::create))
        .route("/v1/answer", post(answer::create))
        .route("/v1/fill", post(fill::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/health", get(health))
        .route("/metrics", get(metrics_text))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(metrics, count))
        .layer(middleware::from_fn_with_state(Arc::new(access), access::check))
        .layer(middleware::from_fn(connection::track))
}

async fn health(app: App) -> Result<Json<Value>, ApiError> {
    if !app.meter.caller.is_known() {
        return Ok(Json(health::alive()));
    }
    // Device detection reads files.
    run_blocking(move || Ok(Json(health::report(&app.gateway.status(), &app.gateway.npus())))).await
}

async fn metrics_text(app: App) -> Result<impl IntoResponse, ApiError> {
    if !app.meter.caller.is_admin() {
        return Err(keys::admins_only("/metrics"));
    }
    let text = app.meter.metrics.render(&app.gateway.status());
    Ok(([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text))
}

async fn unknown_path(request: Request) -> ApiError {
    let path = request.uri().path();
    let message = format!("unknown path {path}; the API is at /v1, the health report at /health");
    ApiError::plain(StatusCode::NOT_FOUND, message)
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} is not allowed on {}", request.method(), request.uri().path());
    ApiError::plain(StatusCode::METHOD_NOT_ALLOWED, message)
}

async fn count(
    State(metrics): State<Arc<Metrics>>,
    route: Option<MatchedPath>,
    request: Request,
    next: Next,
) -> Response {
    let route = route.map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    metrics.request(&route, response.status().as_u16());
    response
}
