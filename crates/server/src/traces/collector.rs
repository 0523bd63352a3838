//! The HTTP client of exports. Its connections use the proxy and the certificates of downloads, and follow no redirects.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    body::{Body, to_bytes},
    http::{HeaderValue, Request, Response, Uri, header::HOST},
};
use hyper::{body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use narthex_gateway::UpstreamUrl;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::{runtime::Handle, time::timeout};

use crate::upstream::connect::UpstreamConnector;

/// Maximum time of an export.
const EXPORT: Duration = Duration::from_secs(10);

/// Maximum bytes of an answer.
const MAX_ANSWER: usize = 64 << 10;

/// A collector of OpenTelemetry.
pub(super) struct Collector {
    connector: Arc<UpstreamConnector>,
    host: String,
    /// The runtime that sends. Exports begin in a thread without one.
    runtime: Handle,
    /// Set while exports fail, so that each period of failures has one warning.
    fails: AtomicBool,
}

impl Collector {
    /// Creates the client in the current runtime.
    pub(super) fn new(url: UpstreamUrl) -> Self {
        Self {
            host: url.authority(),
            connector: Arc::new(UpstreamConnector::new(url)),
            runtime: Handle::current(),
            fails: AtomicBool::new(false),
        }
    }
}

impl fmt::Debug for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").field("host", &self.host).finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (connector, host) = (self.connector.clone(), HeaderValue::try_from(&self.host)?);
        let sent = self.runtime.spawn(async move {
            timeout(EXPORT, send(&connector, host, request))
                .await
                .unwrap_or_else(|_| Err(format!("no answer within {EXPORT:?}").into()))
        });
        let outcome = sent.await.unwrap_or_else(|error| Err(error.into()));
        let reason = match &outcome {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answered {}", response.status())),
            Err(error) => Some(error.to_string()),
        };
        let failed_before = self.fails.swap(reason.is_some(), Ordering::Relaxed);
        if let Some(reason) = reason.filter(|_| !failed_before) {
            tracing::warn!("traces cannot be exported to the collector at {}: {reason}", self.host);
        }
        outcome
    }
}

/// Sends a request over a connection of its own.
async fn send(
    connector: &UpstreamConnector,
    host: HeaderValue,
    request: Request<Bytes>,
) -> Result<Response<Bytes>, HttpError> {
    let stream = connector.connect().await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let (mut head, body) = request.into_parts();
    // A server expects its own path, without its address.
    let path = head.uri.path_and_query().cloned();
    head.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    head.headers.insert(HOST, host);
    let response = sender.send_request(Request::from_parts(head, Body::from(body))).await?;
    let (head, body) = response.into_parts();
    let bytes = to_bytes(Body::new(body), MAX_ANSWER).await?;
    connection.abort();
    Ok(Response::from_parts(head, bytes))
}
