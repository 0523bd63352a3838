//! State that every handler shares.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use axum::{
    extract::FromRequestParts,
    http::{StatusCode, request::Parts},
};
use narthex_gateway::{
    AnsweringDevice, Gateway, MemoryReport,
    request::{InputOverflow, Summary},
};
use narthex_spec::DeviceMap;

use crate::{
    error::ApiError,
    http::budget::{AnswerMemory, BodyBudget},
    jobs::Jobs,
    keys::{Caller, admins_only},
    live_sessions::LiveSessions,
    reports::{
        devices::DeviceList,
        history::History,
        memory_reports::MemoryReports,
        metrics::{Metrics, ModelMetrics},
        requests::{RecentRequests, WorkRecord},
    },
    settings_editor::SettingsEditor,
    upstream::state::Upstreams,
};

/// The gateway with the rights of a caller, and the caller's meter. Access control adds it to each request.
#[derive(Clone)]
pub(crate) struct App {
    pub(crate) gateway: Gateway,
    pub(crate) meter: Meter,
    pub(crate) shared: ServerResources,
    /// Memory of the answer to the request.
    pub(crate) answer: AnswerMemory,
    /// Devices that the body of the request requires, once it was read.
    pub(crate) device_map: Arc<OnceLock<DeviceMap>>,
}

/// Treatment of requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Refuse parameters without effect in Narthex instead of ignoring them.
    pub strict_parameters: bool,
    /// Truncate texts for encoders that are too long, unless the request has a setting for this.
    pub truncate: bool,
}

impl RequestOptions {
    /// Returns the treatment of texts that are too long; `truncate` is the request's own flag.
    pub(crate) fn overlong(self, truncate: Option<bool>) -> InputOverflow {
        if truncate.unwrap_or(self.truncate) { InputOverflow::Truncate } else { InputOverflow::Refuse }
    }
}

/// State that all requests of a server share.
#[derive(Clone)]
pub(crate) struct ServerResources {
    pub(crate) jobs: Jobs,
    pub(crate) bodies: BodyBudget,
    pub(crate) devices: DeviceList,
    pub(crate) memory: MemoryReports,
    pub(crate) history: History,
    pub(crate) requests: RecentRequests,
    pub(crate) options: RequestOptions,
    pub(crate) settings: Option<SettingsEditor>,
    /// Sessions of live transcripts.
    pub(crate) sessions: LiveSessions,
    /// Other servers that answer requests.
    pub(crate) upstreams: Upstreams,
}

impl ServerResources {
    /// Creates the state of a server whose requests wait for memory up to this time.
    pub(crate) fn new(gateway: &Gateway, options: RequestOptions, memory_wait: Duration) -> Self {
        let bodies = BodyBudget::new(memory_wait);
        let devices = DeviceList::new(gateway);
        Self {
            jobs: Jobs::new(),
            bodies,
            devices,
            memory: MemoryReports::default(),
            history: History::default(),
            requests: RecentRequests::default(),
            options,
            settings: None,
            sessions: LiveSessions::default(),
            upstreams: Upstreams::default(),
        }
    }
}

/// Counters for the work of one request: the server's metrics, the tokens that the caller's key is charged, and the record
/// of the request.
#[derive(Clone)]
pub(crate) struct Meter {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) caller: Caller,
    pub(crate) work: WorkRecord,
}

impl Meter {
    /// Counts a finished generation on this device. `model` has the metrics of the model.
    pub(crate) fn generation(&self, summary: &Summary, model: &ModelMetrics, device: &AnsweringDevice) {
        self.metrics.generation(summary);
        model.generation(summary, device.fallback.as_deref());
        self.work.add_generation(summary);
        self.caller.charge(summary.prompt_tokens + summary.completion_tokens);
    }

    /// Charges tokens of a request without generation, or of one whose client disconnected.
    pub(crate) fn tokens(&self, tokens: usize) {
        self.work.add_tokens(tokens);
        self.caller.charge(tokens);
    }
}

impl App {
    /// Fails unless the caller has the rights of an admin, which `what` needs.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn check_admin(&self, what: &str) -> Result<(), ApiError> {
        if self.meter.caller.is_admin() { Ok(()) } else { Err(admins_only(what)) }
    }

    /// Returns the memory of this process for a report.
    pub(crate) fn memory(&self) -> MemoryReport {
        self.shared.memory.at(Instant::now(), || self.gateway.memory())
    }
}

impl<S: Sync> FromRequestParts<S> for App {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        parts.extensions.get().cloned().ok_or_else(|| {
            let message = "the request passed no access control; please report this as a bug";
            ApiError::plain(StatusCode::INTERNAL_SERVER_ERROR, message)
        })
    }
}
