//! Upstreams of a server: their connections, failures and counts. Start at [`Upstreams::get`].

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_gateway::UpstreamSettings;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{breaker::Breaker, client::UpstreamClient, failure::UpstreamFailure, usage::TokenUsage};

/// The upstreams that requests have used. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Upstreams(Arc<Mutex<BTreeMap<String, Arc<UpstreamState>>>>);

impl Upstreams {
    /// Returns the state of an upstream. One whose settings have changed begins again, with its counts.
    pub(crate) fn get(&self, name: &str, settings: &UpstreamSettings) -> Arc<UpstreamState> {
        let mut states = self.0.lock();
        let before = states.get(name);
        if let Some(state) = before.filter(|state| state.settings == *settings) {
            return state.clone();
        }
        let counts = before.map(|state| state.counts.lock().clone()).unwrap_or_default();
        let state = Arc::new(UpstreamState::new(name, settings, counts));
        states.insert(name.to_owned(), state.clone());
        state
    }

    /// Returns the report about the upstreams of the settings.
    pub(crate) fn report(&self, settings: &BTreeMap<String, UpstreamSettings>) -> Vec<UpstreamHealth> {
        settings.iter().map(|(name, settings)| self.get(name, settings).health()).collect()
    }
}

/// Report about an upstream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct UpstreamHealth {
    name: String,
    /// `ok`, or `skipped` for some seconds after several failures.
    state: UpstreamAvailability,
    /// Requests that it answers now.
    running: usize,
    #[serde(flatten)]
    counts: UpstreamCounts,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum UpstreamAvailability {
    Ok,
    Skipped,
}

/// Counts since the start of the server.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
struct UpstreamCounts {
    requests: u64,
    errors: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
    /// Milliseconds until the beginning of the last answer.
    first_byte_ms: Option<f64>,
    /// Code of the last failure of the upstream itself.
    last_error: Option<&'static str>,
}

/// State of one upstream.
pub(crate) struct UpstreamState {
    pub(crate) name: String,
    pub(crate) settings: UpstreamSettings,
    pub(crate) client: UpstreamClient,
    slots: Arc<Semaphore>,
    breaker: Mutex<Breaker>,
    counts: Mutex<UpstreamCounts>,
}

impl UpstreamState {
    fn new(name: &str, settings: &UpstreamSettings, counts: UpstreamCounts) -> Self {
        Self {
            name: name.to_owned(),
            client: UpstreamClient::new(settings),
            slots: Arc::new(Semaphore::new(settings.max_concurrent.min(Semaphore::MAX_PERMITS))),
            settings: settings.clone(),
            breaker: Mutex::default(),
            counts: Mutex::new(counts),
        }
    }

    /// Lets a request pass, and returns its slot.
    pub(crate) fn enter(&self) -> Result<OwnedSemaphorePermit, UpstreamFailure> {
        let slot = self.slots.clone().try_acquire_owned();
        let slot = slot.map_err(|_| UpstreamFailure::Full(self.settings.max_concurrent))?;
        self.breaker.lock().enter(Instant::now()).map_err(UpstreamFailure::Skipped)?;
        self.counts.lock().requests += 1;
        Ok(slot)
    }

    /// Counts a failure.
    pub(crate) fn fail(&self, failure: &UpstreamFailure) {
        let mut counts = self.counts.lock();
        counts.errors += 1;
        if failure.is_of_upstream() {
            counts.last_error = Some(failure.code());
            self.breaker.lock().fail(Instant::now());
        }
    }

    /// Counts an upstream that works.
    pub(crate) fn succeed(&self) {
        self.breaker.lock().succeed();
    }

    /// Adds the time until the beginning of an answer.
    pub(crate) fn first_byte(&self, time: Duration) {
        self.counts.lock().first_byte_ms = Some((time.as_secs_f64() * 1e5).round() / 100.0);
    }

    /// Adds the tokens of an answer.
    pub(crate) fn add_tokens(&self, tokens: TokenUsage) {
        let mut counts = self.counts.lock();
        counts.prompt_tokens += tokens.prompt as u64;
        counts.generated_tokens += tokens.generated as u64;
    }

    fn health(&self) -> UpstreamHealth {
        let is_open = self.breaker.lock().is_open();
        UpstreamHealth {
            name: self.name.clone(),
            state: if is_open { UpstreamAvailability::Skipped } else { UpstreamAvailability::Ok },
            running: self.settings.max_concurrent.saturating_sub(self.slots.available_permits()),
            counts: self.counts.lock().clone(),
        }
    }
}
