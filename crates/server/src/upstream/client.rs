//! The HTTP client of one upstream. It follows no redirects, so that the upstream's key goes only to the upstream.

use std::time::{Duration, Instant};

use axum::{
    body::Body,
    http::{
        HeaderValue, Request, Response,
        header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT},
        request::Builder,
    },
};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use narthex_gateway::UpstreamSettings;
use parking_lot::Mutex;
use tokio::{task::JoinHandle, time::timeout};

use super::{connect::UpstreamConnector, failure::UpstreamFailure};

/// Name of this program in requests.
const AGENT: &str = concat!("narthex/", env!("CARGO_PKG_VERSION"));

/// Maximum bytes of the head of an answer, and of the parts in which its body arrives.
const BUFFER: usize = 64 << 10;

/// Maximum number of connections that are kept for later requests.
const MAX_IDLE: usize = 8;

/// Time for which a connection without a request is kept.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// Sends requests to one upstream.
pub(crate) struct UpstreamClient {
    connector: UpstreamConnector,
    host: String,
    /// Value of the header `Authorization`.
    authorization: Option<HeaderValue>,
    connect_timeout: Duration,
    timeout: Duration,
    idle: Mutex<Vec<IdleLink>>,
}

/// A connection without a request.
struct IdleLink {
    link: Link,
    since: Instant,
}

/// A connection. Dropping it closes the connection, which cancels its request.
pub(crate) struct Link {
    sender: SendRequest<Body>,
    task: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer whose body is on its way.
pub(crate) struct UpstreamAnswer {
    pub(crate) response: Response<Incoming>,
    pub(crate) link: Link,
}

impl UpstreamClient {
    pub(crate) fn new(settings: &UpstreamSettings) -> Self {
        let authorization = settings.key.as_ref().and_then(|key| {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.secret())).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Self {
            connector: UpstreamConnector::new(settings.url.clone()),
            host: settings.url.authority(),
            authorization,
            connect_timeout: settings.connect_timeout,
            timeout: settings.timeout,
            idle: Mutex::default(),
        }
    }

    /// Sends a body of JSON, and waits for the head of the answer.
    pub(crate) async fn post(&self, path: &str, body: &Bytes) -> Result<UpstreamAnswer, UpstreamFailure> {
        while let Some(mut link) = self.take_idle() {
            // The upstream may close a connection that nothing uses. A request that was not sent goes to the next one.
            if !matches!(timeout(self.connect_timeout, link.sender.ready()).await, Ok(Ok(()))) {
                continue;
            }
            let sent = timeout(self.timeout, link.sender.try_send_request(self.request(path, body)?)).await;
            match sent.map_err(|_| UpstreamFailure::Timeout(self.timeout))? {
                Ok(response) => return Ok(UpstreamAnswer { response, link }),
                Err(error) if error.message().is_some() => {}
                Err(error) => return Err(failure_of(error.error())),
            }
        }
        let mut link = self.open().await?;
        let sent = timeout(self.timeout, link.sender.send_request(self.request(path, body)?)).await;
        let sent = sent.map_err(|_| UpstreamFailure::Timeout(self.timeout))?;
        let response = sent.map_err(|error| failure_of(&error))?;
        Ok(UpstreamAnswer { response, link })
    }

    /// Keeps the connection of an answer that has ended for later requests.
    pub(crate) fn give_back(&self, link: Link) {
        let mut idle = self.idle.lock();
        if !link.sender.is_closed() && idle.len() < MAX_IDLE {
            idle.push(IdleLink { link, since: Instant::now() });
        }
    }

    fn take_idle(&self) -> Option<Link> {
        let mut idle = self.idle.lock();
        idle.retain(|one| one.since.elapsed() < IDLE_TIME && !one.link.sender.is_closed());
        Some(idle.pop()?.link)
    }

    async fn open(&self) -> Result<Link, UpstreamFailure> {
        let unreachable = |reason: String| UpstreamFailure::Unreachable(reason);
        let opened = timeout(self.connect_timeout, self.connector.connect()).await;
        let opened = opened.map_err(|_| UpstreamFailure::Timeout(self.connect_timeout))?;
        let stream = TokioIo::new(opened.map_err(unreachable)?);
        let handshake = http1::Builder::new().max_buf_size(BUFFER).handshake(stream).await;
        let (sender, connection) = handshake.map_err(|error| unreachable(error.to_string()))?;
        let task = tokio::spawn(async move {
            // Its errors arrive at the request.
            let _ = connection.await;
        });
        Ok(Link { sender, task })
    }

    fn request(&self, path: &str, body: &Bytes) -> Result<Request<Body>, UpstreamFailure> {
        let request: Builder = Request::post(path)
            .header(HOST, &self.host)
            .header(USER_AGENT, AGENT)
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json, text/event-stream")
            // The bytes are passed on and read as they are.
            .header(ACCEPT_ENCODING, "identity");
        let request = match &self.authorization {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let request = request.body(Body::from(body.clone()));
        request.map_err(|_| UpstreamFailure::Unreachable("its address cannot be sent".to_owned()))
    }
}

fn failure_of(error: &hyper::Error) -> UpstreamFailure {
    if error.is_parse() {
        return UpstreamFailure::Malformed("expected an answer of HTTP/1.1, found other bytes");
    }
    UpstreamFailure::Cut
}
