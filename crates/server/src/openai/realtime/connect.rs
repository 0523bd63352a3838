//! The request that opens a session.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{
        Query,
        rejection::QueryRejection,
        ws::{WebSocketUpgrade, rejection::WebSocketUpgradeRejection},
    },
    http::{
        HeaderValue, StatusCode,
        header::{CONNECTION, SEC_WEBSOCKET_VERSION, UPGRADE},
    },
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use super::{
    MAX_MESSAGE_BYTES,
    session::Session,
    settings::SessionSettings,
    socket::{SessionEnd, SessionTimes, serve},
    speech::GatewaySpeech,
};
use crate::{
    app::App,
    error::ApiError,
    http::connection::{ConnectionEnd, RequestConnection},
    keys::Permit,
    reports::{metrics::OpenStream, requests::RunningRequest},
};

/// Bytes of the buffers of a connection for reading and for writing.
const BUFFER_BYTES: usize = 16 << 10;

/// Name of the protocol that browsers send beside their key.
const PROTOCOL: &str = "realtime";

/// Query of the request.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct SessionQuery {
    /// Model of the transcripts.
    model: Option<String>,
    intent: Option<String>,
    call_id: Option<String>,
}

impl SessionQuery {
    /// Returns the settings of the session that the query asks for.
    fn settings(self) -> Result<SessionSettings, ApiError> {
        if self.call_id.is_some() {
            return Err(ApiError::unsupported("call_id"));
        }
        match self.intent.as_deref() {
            None | Some("transcription") => Ok(SessionSettings::new(self.model.as_deref())),
            Some(other) => {
                let message = format!("intent: expected transcription, found {other:?}");
                Err(ApiError::bad_request("intent", message))
            }
        }
    }
}

/// Opens a session for live transcripts.
pub(crate) async fn connect(
    app: App,
    query: Result<Query<SessionQuery>, QueryRejection>,
    permit: Option<Extension<Arc<Permit>>>,
    running: Option<Extension<Arc<RunningRequest>>>,
    connection: Option<Extension<RequestConnection>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return no_upgrade(&rejection),
    };
    let settings = query
        .map_err(|error| ApiError::plain(StatusCode::BAD_REQUEST, error.body_text()))
        .and_then(|Query(query)| query.settings());
    let place = app.shared.sessions.take(app.meter.caller.key_hash());
    let (settings, place) = match settings.and_then(|settings| Ok((settings, place?))) {
        Ok(both) => both,
        Err(error) => return error.into_response(),
    };

    let connection = connection.map(|Extension(connection)| connection.upgraded());
    upgrade
        .protocols([PROTOCOL])
        .max_message_size(MAX_MESSAGE_BYTES)
        .max_frame_size(MAX_MESSAGE_BYTES)
        .read_buffer_size(BUFFER_BYTES)
        .write_buffer_size(BUFFER_BYTES)
        .max_write_buffer_size(MAX_MESSAGE_BYTES)
        .on_upgrade(async move |socket| {
            // The permit of the key, the place and the connection are free after the session, and its request is listed.
            let _held = (permit, place, running, OpenStream::new(app.meter.metrics.clone()));
            let closing = async {
                match &connection {
                    None => std::future::pending().await,
                    Some(connection) => match connection.ended().await {
                        ConnectionEnd::Stopped => SessionEnd::shutdown(),
                        ConnectionEnd::Expired => SessionEnd::evicted(),
                    },
                }
            };
            let jobs = app.shared.jobs.clone();
            let session = Session::new(settings);
            let speech = GatewaySpeech(app);
            let end = serve(socket, session, speech, jobs, SessionTimes::STANDARD, closing).await;
            tracing::debug!(?end, "a live session has ended");
        })
}

/// Returns the answer to a request that opens no WebSocket.
fn no_upgrade(rejection: &WebSocketUpgradeRejection) -> Response {
    use WebSocketUpgradeRejection as Rejection;
    let (status, message) = match rejection {
        Rejection::WebSocketKeyHeaderMissing(_) => {
            (StatusCode::BAD_REQUEST, "the request to open a WebSocket has no header Sec-WebSocket-Key")
        }
        Rejection::InvalidWebSocketVersionHeader(_) => {
            (StatusCode::UPGRADE_REQUIRED, "expected version 13 of the WebSocket protocol")
        }
        _ => (
            StatusCode::UPGRADE_REQUIRED,
            "this path opens a WebSocket over HTTP/1.1; connect to it with a WebSocket client, as ws:// or wss://",
        ),
    };
    let mut response = ApiError::plain(status, message).into_response();
    if status == StatusCode::UPGRADE_REQUIRED {
        let headers = response.headers_mut();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
    }
    response
}
