//! Access control: one middleware that decides which callers may send requests. Start at [`check`].
//!
//! A server on a loopback address is for programs of this machine. A web page can send requests there too, but the
//! browser marks them: `Origin` names the page, and after DNS rebinding `Host` names the page's domain. Both must be
//! allowed.

mod host;
mod origin;

use std::{collections::HashMap, sync::Arc, time::Instant};

use axum::{
    extract::{Request, State},
    http::Method,
    middleware::Next,
    response::{IntoResponse, Response},
};
use narthex_gateway::{
    AutoPull, Error,
    keys::{ApiKey, KeyRole},
};

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::host::host_of;
pub(crate) use self::host::is_loopback;
use self::{host::HostList, origin::OriginList};
pub use self::{
    host::{AllowedHost, BadHost},
    origin::{AllowedOrigin, BadOrigin},
};
use crate::{
    app::{App, Meter, ServerResources},
    current_gateway::CurrentGateway,
    error::ApiError,
    http::{budget::AnswerMemory, held_body::hold},
    keys::{self, Caller, KeyPolicy, KeyRing},
    protocol::{device_headers::DEVICE, id::RequestId},
    reports::{metrics::Metrics, requests::WorkRecord},
};

/// Access to a server.
#[derive(Debug, Clone, Default)]
pub struct AccessOptions {
    /// Hosts that are allowed in requests in addition to this machine's own.
    pub allowed_hosts: Vec<AllowedHost>,
    /// Origins whose web pages may send requests.
    pub cors_origins: Vec<AllowedOrigin>,
    /// Requests that need a key.
    pub authentication: Authentication,
    /// Keys in addition to those of the store.
    pub keys: Vec<ApiKey>,
    /// Downloads and compiles that requests of callers without admin rights may start. `None` allows those of the
    /// catalogue on a server for this machine, and forbids all on a server for other machines.
    pub auto_pull: Option<AutoPull>,
}

impl AccessOptions {
    /// Returns the downloads that requests may start by default.
    pub(crate) fn default_auto_pull(is_local: bool) -> AutoPull {
        if is_local { AutoPull::Catalogue } else { AutoPull::Never }
    }
}

/// Requests that need a key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Authentication {
    /// All requests on a server for other machines; on a server for this machine, all as soon as there is a key. Once
    /// there was a key, requests need one until the server ends.
    #[default]
    Standard,
    /// No request. Requests with a key have its rights. On a server for other machines, requests without a key have no
    /// admin rights.
    Off,
}

/// Machines that can connect to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exposure {
    /// Only this machine.
    Local,
    /// Other machines too, at this host.
    Open {
        /// Host of the options.
        host: String,
    },
}

/// Access to the requests of a path, which the route table states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PathAccess {
    /// Callers without a required key get an answer too.
    pub(crate) is_public: bool,
    /// Requests do not count against the limits of a key.
    pub(crate) is_unmetered: bool,
}

/// The access rules of a server.
pub(crate) struct Access {
    metrics: Arc<Metrics>,
    shared: ServerResources,
    hosts: HostList,
    origins: OriginList,
    keys: KeyRing,
    /// Paths whose access differs from that of others.
    paths: HashMap<&'static str, PathAccess>,
}

impl Access {
    /// Reads the keys of the gateway's store.
    pub(crate) fn new(
        gateway: CurrentGateway,
        options: AccessOptions,
        exposure: &Exposure,
        shared: ServerResources,
    ) -> Result<Self, Error> {
        let is_local = *exposure == Exposure::Local;
        let policy = match options.authentication {
            Authentication::Off => KeyPolicy::Never,
            Authentication::Standard if is_local => KeyPolicy::IfConfigured,
            Authentication::Standard => KeyPolicy::Always,
        };

        // Other machines are never administrators without a key.
        let keyless = if is_local { KeyRole::Admin } else { KeyRole::User };
        let auto_pull = options.auto_pull.unwrap_or_else(|| AccessOptions::default_auto_pull(is_local));
        Ok(Self {
            metrics: Metrics::new(),
            shared,
            hosts: match exposure {
                Exposure::Local => HostList::local(options.allowed_hosts),
                Exposure::Open { host } => HostList::open(options.allowed_hosts, host),
            },
            origins: OriginList { allowed: options.cors_origins, with_loopback: is_local },
            keys: KeyRing::open(gateway, options.keys, policy, keyless, auto_pull)?,
            paths: HashMap::new(),
        })
    }

    /// Adds the access to paths of the route table. Other paths need a key if one is required, and are metered.
    pub(crate) fn with_paths(self, paths: HashMap<&'static str, PathAccess>) -> Self {
        Self { paths, ..self }
    }

    /// Returns the counters of the server.
    pub(crate) fn metrics(&self) -> Arc<Metrics> {
        self.metrics.clone()
    }

    /// Forwards a request with the rights of its caller, within the limits of the caller's key.
    async fn admit(&self, mut request: Request, next: Next) -> Result<Response, ApiError> {
        let caller = self.keys.caller(request.headers())?;
        let path = self.paths.get(request.uri().path()).copied().unwrap_or_default();
        if !caller.is_known() && !path.is_public {
            return Err(keys::key_missing());
        }
        let key = match &caller {
            Caller::Key(key) if !path.is_unmetered => Some(key.clone()),
            _ => None,
        };
        let gateway = self.keys.gateway(&caller);
        let work = WorkRecord::default();
        let running = (!path.is_unmetered).then(|| {
            let id = request.extensions().get().map(|RequestId(id)| id);
            Arc::new(self.shared.requests.start(&request, id, work.clone()))
        });
        if let Some(running) = &running {
            // A session that takes over the connection holds its request.
            request.extensions_mut().insert(running.clone());
        }
        let meter = Meter { metrics: self.metrics(), caller, work };
        let answer = AnswerMemory::new(&self.shared.bodies);
        let shared = self.shared.clone();
        request.extensions_mut().insert(App { gateway, meter, shared, answer, device_map: Arc::default() });

        let mut response = match key.as_ref().map(|key| key.start(Instant::now())).transpose() {
            Ok(permit) => {
                let permit = permit.map(Arc::new);
                if let Some(permit) = &permit {
                    // A session that takes over the connection holds the permit too.
                    request.extensions_mut().insert(permit.clone());
                }
                hold(permit, next.run(request).await)
            }
            Err(error) => error.into_response(),
        };
        if let Some(key) = key {
            key.write_headers(Instant::now(), response.headers_mut());
        }

        let Some(running) = running else { return Ok(response) };
        running.respond(response.status(), response.headers().get(DEVICE));
        Ok(hold(running, response))
    }
}

/// Refuses callers that may not send requests, answers preflight requests, and adds CORS headers for allowed origins.
pub(crate) async fn check(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let checked = access.hosts.check(&request);
    let origin = match checked.and_then(|()| access.origins.check(&request, &access.hosts)) {
        Ok(origin) => origin,
        Err(error) => return error.into_response(),
    };
    match origin {
        None => access.admit(request, next).await.into_response(),
        Some(origin) if request.method() == Method::OPTIONS => origin::preflight(origin, request.headers()),
        Some(origin) => {
            let mut response = access.admit(request, next).await.into_response();
            origin::expose(origin, &mut response);
            response
        }
    }
}
