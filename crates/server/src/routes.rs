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
use narthex_gateway::{Cancel, Gateway};
use serde_json::Value;

use crate::{
    connection,
    error::ApiError,
    guard::{self, Guard},
    health,
    metrics::Metrics,
    openai::{answer, chat, completions, embeddings, fill, models, rerank},
    serve::ServeOptions,
};

/// The most bytes of a request's body.
const MAX_BODY: usize = 32 << 20;

/// What every handler can reach.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) gateway: Gateway,
    pub(crate) metrics: Arc<Metrics>,
}

/// Every route with its handler.
pub(crate) fn router(gateway: Gateway, options: &ServeOptions) -> Router {
    let app = App { gateway, metrics: Metrics::new() };
    let guard = Arc::new(Guard { host: options.host.clone(), cors_origin: options.cors_origin.clone() });
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
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(app.clone(), count))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .layer(middleware::from_fn(connection::note))
        .with_state(app)
}

async fn health(State(app): State<App>) -> Result<Json<Value>, ApiError> {
    // Looking for devices reads files.
    blocking(move || Ok(Json(health::report(&app.gateway.status(), &app.gateway.npus())))).await
}

async fn metrics(State(app): State<App>) -> Response {
    let text = app.metrics.render(&app.gateway.status());
    ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response()
}

async fn unknown_path(request: Request) -> ApiError {
    let path = request.uri().path();
    let message = format!("there is no {path}; the API is under /v1, the health under /health");
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

/// Asks a job to stop when nobody waits for it any more.
struct Waited(Cancel);

impl Drop for Waited {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// As [`blocking`], for a call that ends early once the client has gone.
pub(crate) async fn wanted<T: Send + 'static>(
    call: impl FnOnce(&Cancel) -> Result<T, narthex_gateway::Error> + Send + 'static,
) -> Result<T, ApiError> {
    let cancel = Cancel::new();
    let _waited = Waited(cancel.clone());
    blocking(move || call(&cancel)).await
}

/// Runs a call of the gateway, which may wait for a model to load, away from the tasks that serve.
pub(crate) async fn blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, narthex_gateway::Error> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(call).await {
        Ok(outcome) => outcome.map_err(ApiError::from),
        Err(_) => Err(ApiError::plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the request's code panicked; please report this",
        )),
    }
}
