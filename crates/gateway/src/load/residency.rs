//! Which models are in memory: loaded on first use, shared by requests, waited for with a bound.
//!
//! A model's life: absent → loading (one thread, every request waits on it) → ready or failed. A failed load is
//! reported to requests for a while, then tried again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use narthex_spec::ModelName;

use crate::{
    error::{Error, ErrorKind},
    library::names::PackageKey,
    load::loaded_model::Loaded,
    report::models::{ModelState, ModelStatus, PassedOver},
};

/// How soon a client should ask again for a model that is still loading.
const LOADING_RETRY: Duration = Duration::from_secs(5);

enum Residence {
    Loading,
    Ready(Arc<Loaded>),
    Failed { at: Instant, failure: Failure },
}

/// What is told of a load that failed.
struct Failure {
    reason: String,
    hint: Option<String>,
    retry_after: Option<Duration>,
    /// The devices that were tried, where none took the model.
    passed_over: Vec<PassedOver>,
}

impl Failure {
    /// Of a failed load that is tried again after `retry`.
    fn new(error: &Error, retry: Duration) -> Self {
        let passed_over = match error {
            Error::NoDevice { passed_over, .. } => passed_over.clone(),
            _ => Vec::new(),
        };
        let retry_after = passes(error.kind()).then_some(retry);
        Self { reason: error.to_string(), hint: error.hint(), retry_after, passed_over }
    }

    fn error(&self, name: &ModelName) -> Error {
        let Self { reason, hint, retry_after, .. } = self;
        let (name, reason, hint) = (name.clone(), reason.clone(), hint.clone());
        Error::LoadFailed { name, reason, hint, retry_after: *retry_after }
    }
}

/// Whether a failure may be over after a while, though nobody mends anything.
fn passes(kind: ErrorKind) -> bool {
    use ErrorKind as Kind;
    match kind {
        Kind::Overloaded | Kind::Loading | Kind::Fetch | Kind::Cancelled => true,
        Kind::BadRequest | Kind::NotFound | Kind::Unavailable | Kind::Storage | Kind::Internal => false,
    }
}

/// The models in memory.
pub(crate) struct Residents {
    models: Mutex<BTreeMap<PackageKey, Residence>>,
    changed: Condvar,
    /// How long a failed load is reported before another request tries again.
    retry_failed_after: Duration,
    on_change: Mutex<Option<Box<dyn Fn() + Send>>>,
}

/// What a request finds when it asks for a model.
pub(crate) enum Claim {
    /// The model answers.
    Ready(Arc<Loaded>),
    /// The caller must load it and then call [`Residents::settle`].
    Load,
    /// Another thread is loading it.
    Wait,
}

impl Residents {
    pub(crate) fn new(retry_failed_after: Duration) -> Self {
        Self {
            models: Mutex::new(BTreeMap::new()),
            changed: Condvar::new(),
            retry_failed_after,
            on_change: Mutex::new(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<PackageKey, Residence>> {
        // Every change of the map is one insertion or removal, so a panic elsewhere leaves it whole.
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `watch` after every change of a model's state.
    pub(crate) fn watch(&self, watch: Option<Box<dyn Fn() + Send>>) {
        *self.on_change.lock().unwrap_or_else(PoisonError::into_inner) = watch;
    }

    fn report_change(&self) {
        self.changed.notify_all();
        if let Some(watch) = &*self.on_change.lock().unwrap_or_else(PoisonError::into_inner) {
            watch();
        }
    }

    /// Whether the model is in memory, on its way there, or has failed to get there.
    pub(crate) fn knows(&self, key: &PackageKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Finds the model, or makes the caller its loader.
    pub(crate) fn claim(&self, key: &PackageKey) -> Result<Claim, Error> {
        let mut models = self.lock();
        match models.get(key) {
            Some(Residence::Ready(loaded)) if !loaded.is_broken() => return Ok(Claim::Ready(loaded.clone())),
            Some(Residence::Loading) => return Ok(Claim::Wait),
            Some(Residence::Failed { at, failure }) if at.elapsed() < self.retry_failed_after => {
                return Err(failure.error(&key.name));
            }
            Some(Residence::Failed { .. } | Residence::Ready(_)) | None => {}
        }
        models.insert(key.clone(), Residence::Loading);
        drop(models);
        self.report_change();
        Ok(Claim::Load)
    }

    /// Ends the loading that [`Claim::Load`] began.
    pub(crate) fn settle(&self, key: &PackageKey, outcome: Result<Loaded, &Error>) {
        let residence = match outcome {
            Ok(loaded) => Residence::Ready(Arc::new(loaded)),
            Err(error) => {
                let failure = Failure::new(error, self.retry_failed_after);
                Residence::Failed { at: Instant::now(), failure }
            }
        };
        self.lock().insert(key.clone(), residence);
        self.report_change();
    }

    /// Waits for a load that another thread does, until `deadline`.
    pub(crate) fn wait(&self, key: &PackageKey, deadline: Instant) -> Result<Arc<Loaded>, Error> {
        let mut models = self.lock();
        loop {
            match models.get(key) {
                Some(Residence::Ready(loaded)) => return Ok(loaded.clone()),
                Some(Residence::Failed { failure, .. }) => return Err(failure.error(&key.name)),
                Some(Residence::Loading) => {}
                None => return Err(Error::ShuttingDown),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Loading { name: key.name.clone(), retry_after: LOADING_RETRY });
            }
            models = self.changed.wait_timeout(models, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Forgets a model; requests that hold it finish on it.
    pub(crate) fn evict(&self, key: &PackageKey) {
        let evicted = {
            let mut models = self.lock();
            match models.get(key) {
                Some(Residence::Loading) | None => None,
                Some(_) => models.remove(key),
            }
        };
        if evicted.is_some() {
            self.report_change();
        }
    }

    /// Takes every model out; new requests load anew.
    pub(crate) fn drain(&self) -> Vec<Arc<Loaded>> {
        let models = std::mem::take(&mut *self.lock());
        self.changed.notify_all();
        models
            .into_values()
            .filter_map(|residence| match residence {
                Residence::Ready(loaded) => Some(loaded),
                Residence::Loading | Residence::Failed { .. } => None,
            })
            .collect()
    }

    /// Every model's state.
    pub(crate) fn status(&self) -> Vec<ModelStatus> {
        self.lock()
            .iter()
            .map(|(key, residence)| match residence {
                Residence::Ready(loaded) => loaded.status(),
                Residence::Loading => blank_status(key, ModelState::Loading),
                Residence::Failed { failure: Failure { reason, hint, passed_over, .. }, .. } => {
                    let state = ModelState::Failed { reason: reason.clone(), hint: hint.clone() };
                    ModelStatus { passed_over: passed_over.clone(), ..blank_status(key, state) }
                }
            })
            .collect()
    }
}

fn blank_status(key: &PackageKey, state: ModelState) -> ModelStatus {
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
