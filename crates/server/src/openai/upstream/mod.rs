//! Requests that other servers with OpenAI's API answer. Start at [`answer`].
//!
//! The operator names the upstreams in the settings; a request names a model, never an address. `routed` decides while the
//! body is read, and `relay` passes the answer on.

mod relay;
mod routed;

use std::sync::Arc;

use axum::{http::HeaderValue, response::Response};
use narthex_gateway::{Network, UpstreamCondition};

use self::routed::{Alternative, PassedBody};
pub(crate) use self::routed::{RequestRoute, UpstreamEndpoint, UpstreamRequest};
use crate::{
    app::App,
    error::ApiError,
    protocol::{body::Body, device_headers::FALLBACK},
    upstream::{failure::UpstreamFailure, state::UpstreamState},
};

/// Answers a request, with `local` or at an upstream. An upstream that a rule names answers in place of this machine if a
/// condition of the rule holds, and this machine in place of that upstream if the upstream fails before its first byte.
pub(crate) async fn answer<T, F: Future<Output = Result<Response, ApiError>>>(
    app: &App,
    body: Body<RequestRoute<T>>,
    local: impl FnOnce(Body<T>) -> F,
) -> Result<Response, ApiError> {
    let Body { request, ignored, reservation } = body;
    let (request, alternative) = match request {
        RequestRoute::Upstream(passed) => {
            let answered = forward(app, &passed).await;
            drop(reservation);
            return answered;
        }
        RequestRoute::Local { request, alternative } => (request, alternative),
    };
    let local_body = Body { request, ignored, reservation };
    let Some(alternative) = alternative else { return local(local_body).await };

    if let Some(condition) = condition_before(app, &alternative).await
        && let Some(response) = instead(app, &alternative, condition).await
    {
        return Ok(response);
    }
    let error = match local(local_body).await {
        Ok(response) => return Ok(response),
        Err(error) => error,
    };
    let condition = error.condition().filter(|condition| alternative.rule.rule.when.contains(condition));
    let Some(condition) = condition else { return Err(error) };
    instead(app, &alternative, condition).await.ok_or(error)
}

/// Returns the condition of a rule that holds before this machine has begun.
async fn condition_before(app: &App, alternative: &Alternative) -> Option<UpstreamCondition> {
    let when = &alternative.rule.rule.when;
    if alternative.body.has_tools && when.contains(&UpstreamCondition::Tools) {
        return Some(UpstreamCondition::Tools);
    }
    if !when.contains(&UpstreamCondition::Busy) {
        return None;
    }
    let gateway = app.gateway.clone();
    let model = alternative.body.model.clone();
    let busy = app.shared.jobs.run(move || Ok::<_, ApiError>(gateway.is_busy(&model))).await;
    busy.unwrap_or(false).then_some(UpstreamCondition::Busy)
}

/// Returns the answer of the upstream of a rule; `None` if it cannot answer.
async fn instead(app: &App, alternative: &Alternative, condition: UpstreamCondition) -> Option<Response> {
    let upstream = &alternative.body.route.upstream;
    let mut response = match forward(app, &alternative.body).await {
        Ok(response) => response,
        Err(error) => {
            tracing::warn!(upstream, %condition, "the rule of a model has no effect: {}", error.message());
            return None;
        }
    };
    if response.status().is_client_error() {
        let status = response.status().as_u16();
        tracing::warn!(upstream, %condition, status, "the upstream refused the request of a rule");
        return None;
    }
    if let Ok(reason) = HeaderValue::try_from(format!("local: {condition}")) {
        response.headers_mut().insert(FALLBACK, reason);
    }
    Some(response)
}

/// Lets an upstream answer.
async fn forward(app: &App, body: &PassedBody) -> Result<Response, ApiError> {
    let name = body.route.upstream.as_str();
    let upstream = state(app, name).map_err(|failure| failure.into_error(name))?;
    let more_answers = app.meter.caller.add_answers(body.n.saturating_sub(1))?;
    let memory = if body.is_streamed { relay::STREAM_BYTES } else { relay::WHOLE_BYTES };
    app.answer.reserve(memory).await?;
    relay::forward(app, upstream, body, more_answers).await.map_err(|failure| failure.into_error(name))
}

/// Returns the state of an upstream that this server may connect to.
fn state(app: &App, name: &str) -> Result<Arc<UpstreamState>, UpstreamFailure> {
    let config = app.gateway.config();
    let settings = config.upstreams.get(name);
    let settings = settings.ok_or_else(|| UpstreamFailure::Unreachable("it has no settings".to_owned()))?;
    if config.network == Network::CacheOnly && !settings.url.is_loopback() {
        return Err(UpstreamFailure::Offline);
    }
    Ok(app.shared.upstreams.get(name, settings))
}
