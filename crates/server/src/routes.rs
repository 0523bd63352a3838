//! The route table.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderName, HeaderValue, StatusCode, header::CONTENT_TYPE},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::Value;

use crate::{
    access::{self, Access},
    anthropic::messages,
    app::App,
    error::ApiError,
    health, keys,
    metrics::Metrics,
    ollama,
    openai::{self, answer, chat, completions, embeddings, fill, models, rerank, responses, token_endpoints},
    paths,
};

/// Id of a request, for the logs of clients and proxies.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of an id that a client chose.
const MAX_ID: usize = 128;

/// Returns the router with every route, behind access control.
pub(crate) fn router(access: Access) -> Router {
    let metrics = access.metrics();
    let routes = Router::new()
        .route("/", get(async || "Narthex is running"))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/rerank", post(rerank::create))
        .route("/v1/answer", post(answer::create))
        .route("/v1/fill", post(fill::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/messages", post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .route("/api/chat", post(ollama::chat::create))
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/version", get(ollama::models::version))
        .route("/tokenize", post(token_endpoints::tokenize))
        .route("/detokenize", post(token_endpoints::detokenize))
        .route("/apply-template", post(token_endpoints::apply_template))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::retrieve))
        .route("/health", get(health))
        .route("/metrics", get(metrics_text))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(metrics, count))
        .layer(middleware::from_fn_with_state(Arc::new(access), access::check))
        .layer(middleware::from_fn(identify));
    // A path must be normal before it is matched with a route.
    Router::new().fallback_service(routes).layer(middleware::from_fn(paths::normalise))
}

async fn health(app: App) -> Json<Value> {
    if !app.meter.caller.is_known() {
        return Json(health::alive());
    }
    let npus = app.shared.npus.current(&app.gateway).await;
    Json(health::report(&app.gateway.status(), &npus))
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

/// Adds the id that the client chose to the answer, or a new one.
async fn identify(request: Request, next: Next) -> Response {
    let is_printable =
        |id: &&HeaderValue| id.len() <= MAX_ID && id.as_bytes().iter().all(u8::is_ascii_graphic);
    let chosen = request.headers().get(REQUEST_ID).filter(|id| !id.is_empty()).filter(is_printable).cloned();
    let mut response = next.run(request).await;
    let id = chosen.or_else(|| HeaderValue::try_from(openai::new_id("req")).ok());
    if let Some(id) = id {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}
