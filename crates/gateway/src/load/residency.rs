//! Models in memory: loaded on first use and shared by requests, which wait for a limited time.
//!
//! A model is absent, then loading (one thread loads, every request waits), then ready or failed. A failed load is reported
//! to requests for a while before another request tries again.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use narthex_spec::ModelName;
use parking_lot::{Condvar, Mutex};

use crate::{
    error::{Error, ErrorKind},
    library::package_key::PackageKey,
    load::loaded_model::LoadedModel,
    report::models::{ModelState, ModelStatus, PassedOver},
};

/// Delay before a client should retry while a model is loading.
const LOADING_RETRY: Duration = Duration::from_secs(5);

enum Residence {
    Loading,
    Ready(Arc<LoadedModel>),
    Failed { at: Instant, failure: LoadFailure },
}

/// Report of a failed load.
struct LoadFailure {
    reason: String,
    hint: Option<String>,
    retry_after: Option<Duration>,
    /// Every device with its reason, if no device took the model.
    passed_over: Vec<PassedOver>,
}

impl LoadFailure {
    fn new(error: &Error, retry: Duration) -> Self {
        let passed_over = match error {
            Error::NoDevice { passed_over, .. } => passed_over.clone(),
            _ => Vec::new(),
        };
        let retry_after = is_transient(error.kind()).then_some(retry);
        Self { reason: error.to_string(), hint: error.hint(), retry_after, passed_over }
    }

    fn error(&self, name: &ModelName) -> Error {
        let Self { reason, hint, retry_after, .. } = self;
        let (name, reason, hint) = (name.clone(), reason.clone(), hint.clone());
        Error::LoadFailed { name, reason, hint, retry_after: *retry_after }
    }
}

/// Returns whether a failure may pass without a change by the user.
fn is_transient(kind: ErrorKind) -> bool {
    use ErrorKind as Kind;
    match kind {
        Kind::Overloaded | Kind::Loading | Kind::Fetch | Kind::Cancelled => true,
        Kind::BadRequest
        | Kind::NotFound
        | Kind::Forbidden
        | Kind::Unavailable
        | Kind::Storage
        | Kind::Internal => false,
    }
}

/// The models in memory.
pub(crate) struct ResidentModels {
    models: Mutex<BTreeMap<PackageKey, Residence>>,
    changed: Condvar,
    /// Time during which requests receive a failed load's error before one of them loads again.
    retry_failed_after: Duration,
    on_change: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// Result of a request for a model.
pub(crate) enum Claim {
    /// The model is ready.
    Ready(Arc<LoadedModel>),
    /// The caller must load the model and then call [`ResidentModels::finish`].
    Load,
    /// Another thread loads the model.
    Wait,
}

impl ResidentModels {
    pub(crate) fn new(retry_failed_after: Duration) -> Self {
        Self {
            models: Mutex::new(BTreeMap::new()),
            changed: Condvar::new(),
            retry_failed_after,
            on_change: Mutex::new(None),
        }
    }

    /// Sets a function that is called after every change of a model's state.
    pub(crate) fn set_on_change(&self, on_change: Box<dyn Fn() + Send>) {
        *self.on_change.lock() = Some(on_change);
    }

    fn notify(&self) {
        self.changed.notify_all();
        if let Some(on_change) = &*self.on_change.lock() {
            on_change();
        }
    }

    /// Returns whether a request for the model came before.
    pub(crate) fn contains(&self, key: &PackageKey) -> bool {
        self.models.lock().contains_key(key)
    }

    /// Returns the model, or makes the caller its loader.
    pub(crate) fn claim(&self, key: &PackageKey) -> Result<Claim, Error> {
        let mut models = self.models.lock();
        match models.get(key) {
            Some(Residence::Ready(model)) if !model.is_broken() => return Ok(Claim::Ready(model.clone())),
            Some(Residence::Loading) => return Ok(Claim::Wait),
            Some(Residence::Failed { at, failure }) if at.elapsed() < self.retry_failed_after => {
                return Err(failure.error(&key.name));
            }
            Some(Residence::Failed { .. } | Residence::Ready(_)) | None => {}
        }
        models.insert(key.clone(), Residence::Loading);
        drop(models);
        self.notify();
        Ok(Claim::Load)
    }

    /// Ends the load of [`Claim::Load`].
    pub(crate) fn finish(&self, key: &PackageKey, outcome: Result<LoadedModel, &Error>) {
        let residence = match outcome {
            Ok(model) => Residence::Ready(Arc::new(model)),
            Err(error) => {
                let failure = LoadFailure::new(error, self.retry_failed_after);
                Residence::Failed { at: Instant::now(), failure }
            }
        };
        self.models.lock().insert(key.clone(), residence);
        self.notify();
    }

    /// Waits until `deadline` for a load by another thread.
    pub(crate) fn wait(&self, key: &PackageKey, deadline: Instant) -> Result<Arc<LoadedModel>, Error> {
        let mut models = self.models.lock();
        loop {
            match models.get(key) {
                Some(Residence::Ready(model)) => return Ok(model.clone()),
                Some(Residence::Failed { failure, .. }) => return Err(failure.error(&key.name)),
                Some(Residence::Loading) => {}
                None => return Err(Error::ShuttingDown),
            }
            if Instant::now() >= deadline {
                return Err(Error::Loading { name: key.name.clone(), retry_after: LOADING_RETRY });
            }
            self.changed.wait_until(&mut models, deadline);
        }
    }

    /// Removes a model. Requests that hold it finish on it.
    pub(crate) fn evict(&self, key: &PackageKey) {
        let evicted = {
            let mut models = self.models.lock();
            match models.get(key) {
                Some(Residence::Loading) | None => None,
                Some(_) => models.remove(key),
            }
        };
        if evicted.is_some() {
            self.notify();
        }
    }

    /// Removes and returns every model.
    pub(crate) fn drain(&self) -> Vec<Arc<LoadedModel>> {
        let models = std::mem::take(&mut *self.models.lock());
        self.changed.notify_all();
        models
            .into_values()
            .filter_map(|residence| match residence {
                Residence::Ready(model) => Some(model),
                Residence::Loading | Residence::Failed { .. } => None,
            })
            .collect()
    }

    /// Returns the status of every model.
    pub(crate) fn status(&self) -> Vec<ModelStatus> {
        self.models
            .lock()
            .iter()
            .map(|(key, residence)| match residence {
                Residence::Ready(model) => model.status(),
                Residence::Loading => status_without_model(key, ModelState::Loading),
                Residence::Failed { failure: LoadFailure { reason, hint, passed_over, .. }, .. } => {
                    let state = ModelState::Failed { reason: reason.clone(), hint: hint.clone() };
                    ModelStatus { passed_over: passed_over.clone(), ..status_without_model(key, state) }
                }
            })
            .collect()
    }
}

fn status_without_model(key: &PackageKey, state: ModelState) -> ModelStatus {
    ModelStatus {
        name: key.name.clone(),
        kind: None,
        scheme: key.scheme,
        state,
        placement: None,
        passed_over: Vec::new(),
        engine: None,
        max_length: None,
    }
}
