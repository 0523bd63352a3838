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
use narthex_gateway::Gateway;
use serde_json::Value;

use crate::{
    app::App,
    blocking::run_blocking,
    connection,
    error::ApiError,
    guard::{self, Guard},
    health,
    metrics::Metrics,
    openai::{answer, chat, completions, embeddings, fill, models, rerank},
};

/// Maximum size of a request body.
const MAX_BODY_BYTES: usize = 32 << 20;

/// Returns the router with every route.
pub(crate) fn router(gateway: Gateway, guard: Guard) -> Router {
    let app = App { gateway, metrics: Metrics::new() };
    let guard = Arc::new(guard);
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
        .route("/metrics", get(metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(app.clone(), count))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .layer(middleware::from_fn(connection::track))
        .with_state(app)
}

async fn health(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    // Device detection reads files.
    run_blocking(move || Ok(Json(health::report(&app.gateway.status(), &app.gateway.npus())))).await
}

async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics.render(&app.gateway.status());
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
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

async fn count(State(app): State<App>, route: Option<MatchedPath>, request: Request, next: Next) -> Response {
    let route = route.map_or_else(|| "unknown".to_owned(), |path| path.as_str().to_owned());
    let response = next.run(request).await;
    app.metrics.request(&route, response.status().as_u16());
    response
}
