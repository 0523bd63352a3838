//! Models in memory: loaded on first use and shared by requests, which wait for a limited time.
//!
//! A model is absent, then loading (one thread loads, every request waits), then ready or failed. A failed load is
//! reported to requests for a while before another request tries again.
//!
//! The number of models in memory, the bytes of their packages and the bytes of their KV caches are bounded. A model beyond
//! a bound, or beyond the free memory, evicts the idle model that was used least recently. If none is idle, its load waits for one, for a limited time. A model that was
//! removed counts until the requests that use it have ended. Pinned models are not evicted. Models with a keep-alive time
//! are unloaded when no request has used them for so long.

mod forecast;
mod load_failure;
mod pending;
mod ready_model;
mod reservation;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use narthex_spec::ModelName;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::{
    cancel::Cancel,
    error::Error,
    library::package_key::PackageKey,
    load::loaded_model::LoadedModel,
    model_settings::{KeepAlive, ResidenceSettings},
    report::models::{ModelState, ModelStatus},
};

use load_failure::LoadFailure;
pub use pending::{LoadStart, LoadWaiter, PendingLoad};
pub use ready_model::ReadyModel;
pub(crate) use reservation::ModelMemory;
use reservation::{ModelReservation, ReservedMemory};

/// Time between two searches for models whose keep-alive time has passed.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(1);

/// Memory that a load may take, as a multiple of its weights: the file and the packed weights.
const LOAD_FACTOR: u64 = 2;

enum Residence {
    Loading {
        waiters: LoadWaiters,
        /// Set while models in use take the memory that the load needs.
        awaits_reservation: bool,
    },
    Ready {
        model: Arc<LoadedModel>,
        used: Instant,
        /// Time that it stays in memory.
        residence: ResidenceSettings,
        /// Requests that waited for the load and have not claimed the model yet.
        awaiting: BTreeSet<u64>,
    },
    Failed {
        at: Instant,
        failure: LoadFailure,
    },
}

type Residences = BTreeMap<PackageKey, Residence>;

/// Functions to call at the end of a load, by number.
type LoadWaiters = BTreeMap<u64, Box<dyn FnOnce() + Send>>;

/// Bounds of all models in memory together, and of the requests for one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResidencyLimits {
    /// Maximum number of models.
    pub(crate) models: usize,
    /// Maximum bytes of their KV caches.
    pub(crate) kv_bytes: usize,
    /// Maximum bytes of the packages of several models; `None` for no bound.
    pub(crate) package_bytes: Option<u64>,
    /// Returns the bytes of memory that a load can take without swapping, if they are known.
    pub(crate) free_memory: fn() -> Option<u64>,
    /// Maximum number of requests that wait for the load of a model.
    pub(crate) waiting: usize,
    /// Maximum time that a load waits for models in use.
    pub(crate) reservation_wait: Duration,
}

/// The models in memory.
pub(crate) struct ResidentModels {
    models: Mutex<Residences>,
    reserved: Mutex<ReservedMemory>,
    /// Notified after changes of `models` and after the end of each use of a model.
    changed: Condvar,
    /// Time during which requests receive a failed load's error before one of them loads again. A load that found no
    /// memory is tried again at once.
    retry_failed_after: Duration,
    limits: ResidencyLimits,
    next_waiter: AtomicU64,
    /// Set once a thread unloads models whose keep-alive time has passed.
    unloads_expired: AtomicBool,
    on_change: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Residence {
    /// Calls the functions that wait for the end of a load.
    fn wake(self) {
        if let Self::Loading { waiters, .. } = self {
            waiters.into_values().for_each(|wake| wake());
        }
    }

    /// Returns whether no request has used the model during its keep-alive time. A model in use counts as used now.
    fn is_expired(&mut self, now: Instant) -> bool {
        let is_idle = self.idle_since().is_some();
        match self {
            Self::Ready { used, residence, .. } => {
                if !is_idle {
                    *used = now;
                }
                match residence.keep_alive {
                    Some(KeepAlive::For(time)) => is_idle && now.saturating_duration_since(*used) >= time,
                    Some(KeepAlive::Forever) | None => false,
                }
            }
            Self::Loading { .. } | Self::Failed { .. } => false,
        }
    }

    fn is_pinned(&self) -> bool {
        matches!(self, Self::Ready { residence, .. } if residence.pinned)
    }

    /// Returns the time of the last request of a model that no request uses or is about to use.
    fn idle_since(&self) -> Option<Instant> {
        match self {
            Self::Ready { model, used, awaiting, .. }
                if awaiting.is_empty() && Arc::strong_count(model) == 1 =>
            {
                Some(*used)
            }
            Self::Ready { .. } | Self::Loading { .. } | Self::Failed { .. } => None,
        }
    }
}

/// Result of a request for a model.
pub(crate) enum Claim {
    /// The model is ready.
    Ready(ReadyModel),
    /// The caller must load the model and then call [`ResidentModels::finish`].
    Load,
    /// Another thread loads the model.
    Wait,
}

impl ResidentModels {
    pub(crate) fn new(retry_failed_after: Duration, limits: ResidencyLimits) -> Self {
        Self {
            models: Mutex::new(BTreeMap::new()),
            reserved: Mutex::default(),
            changed: Condvar::new(),
            retry_failed_after,
            limits,
            next_waiter: AtomicU64::new(0),
            unloads_expired: AtomicBool::new(false),
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

    /// Wakes the threads that wait for a change.
    fn wake(&self) {
        // A thread that has just looked at the models and does not wait yet would miss the notification.
        drop(self.models.lock());
        self.changed.notify_all();
    }

    /// Returns whether an earlier request used the model.
    pub(crate) fn contains(&self, key: &PackageKey) -> bool {
        self.models.lock().contains_key(key)
    }

    /// Returns the model, or makes the caller load it.
    pub(crate) fn claim(self: &Arc<Self>, key: &PackageKey) -> Result<Claim, Error> {
        self.claim_if(key, || Ok(()))
    }

    /// Returns the model, or makes the caller load it if `admit` allows a load. A load that is not allowed leaves no
    /// state.
    pub(crate) fn claim_if(
        self: &Arc<Self>,
        key: &PackageKey,
        admit: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Claim, Error> {
        let mut models = self.models.lock();
        match models.get_mut(key) {
            Some(Residence::Ready { model, used, .. }) if !model.is_broken() => {
                *used = Instant::now();
                return Ok(Claim::Ready(ReadyModel::new(model, self)));
            }
            Some(Residence::Loading { .. }) => return Ok(Claim::Wait),
            Some(Residence::Failed { at, failure }) if at.elapsed() < failure.lasts => {
                return Err(failure.error(&key.name));
            }
            Some(Residence::Failed { .. } | Residence::Ready { .. }) | None => admit()?,
        }
        let loading = Residence::Loading { waiters: LoadWaiters::default(), awaits_reservation: false };
        let before = models.insert(key.clone(), loading);
        drop(models);
        // Dropped without the lock: a broken model's thread may need it to end.
        drop(before);
        self.notify();
        Ok(Claim::Load)
    }

    /// Reserves memory for a model that is being loaded. Evicts idle models if necessary, starting with the one
    /// that was used least recently, and waits while the others are in use.
    ///
    /// # Errors
    /// [`Error::ResidencyFull`] if the models stay in use for too long, or if no wait can help; [`Error::Cancelled`].
    pub(crate) fn reserve(
        self: &Arc<Self>,
        key: &PackageKey,
        memory: ModelMemory,
        cancel: &Cancel,
    ) -> Result<ModelReservation, Error> {
        let ResidencyLimits { models, kv_bytes: kv_total, free_memory, reservation_wait, .. } = self.limits;
        if models == 0 || memory.kv_bytes > kv_total {
            return Err(self.residency_full(key));
        }

        let deadline = Instant::now() + reservation_wait;
        let waiting = self.clone();
        let _callback = cancel.on_cancel(move || waiting.wake());
        let mut models = self.models.lock();

        loop {
            cancel.check()?;
            let is_short = free_memory().is_some_and(|free| free < memory.package_bytes);
            let reservation = if is_short && oldest_idle(&models).is_some() {
                None
            } else {
                ModelReservation::take(self, key, memory)
            };
            if let Some(Residence::Loading { awaits_reservation, .. }) = models.get_mut(key) {
                *awaits_reservation = reservation.is_none();
            }
            if let Some(reservation) = reservation {
                drop(models);
                if is_short {
                    tracing::warn!(
                        "{} has {} MB of weights, and less memory is free; it will be slow",
                        key.name,
                        memory.package_bytes / 1_000_000
                    );
                }
                self.notify();
                return Ok(reservation);
            }
            if let Some((idle, evicted)) = take_idle(&mut models) {
                tracing::info!("{} is unloaded to make room for {}", idle.name, key.name);
                // Dropped without the lock: the drop ends the model's threads while other requests go on.
                MutexGuard::unlocked(&mut models, || {
                    drop(evicted);
                    self.notify();
                });
            } else if self.changed.wait_until(&mut models, deadline).timed_out() {
                return Err(self.residency_full(key));
            }
        }
    }

    /// Releases the prefixes of earlier prompts in every model if `free` bytes of memory do not suffice for a load of
    /// `bytes` bytes of weights.
    pub(crate) fn release_prefixes(&self, bytes: u64, free: Option<u64>) {
        if free.is_none_or(|free| free >= bytes.saturating_mul(LOAD_FACTOR)) {
            return;
        }
        let residences = self.models.lock();
        let ready = residences.values().filter_map(|residence| match residence {
            Residence::Ready { model, .. } => Some(model.clone()),
            Residence::Loading { .. } | Residence::Failed { .. } => None,
        });
        let ready: Vec<Arc<LoadedModel>> = ready.collect();
        drop(residences);
        ready.iter().for_each(|model| model.release_prefixes());
    }

    fn residency_full(&self, key: &PackageKey) -> Error {
        let ResidencyLimits { models, kv_bytes: kv_total, package_bytes, .. } = self.limits;
        Error::ResidencyFull { name: key.name.clone(), models, kv_total, weights_total: package_bytes }
    }

    /// Ends the load of [`Claim::Load`].
    pub(crate) fn finish(&self, key: &PackageKey, outcome: Result<LoadedModel, &Error>) {
        let mut models = self.models.lock();
        let residence = match outcome {
            Ok(model) => {
                let awaiting = match models.get(key) {
                    Some(Residence::Loading { waiters, .. }) => waiters.keys().copied().collect(),
                    _ => BTreeSet::new(),
                };
                let residence = model.residence;
                Residence::Ready { model: Arc::new(model), used: Instant::now(), residence, awaiting }
            }
            Err(error) => {
                let failure = LoadFailure::new(error, self.retry_failed_after);
                Residence::Failed { at: Instant::now(), failure }
            }
        };
        let before = models.insert(key.clone(), residence);
        drop(models);
        before.into_iter().for_each(Residence::wake);
        self.notify();
    }

    /// Removes the models whose packages were removed or replaced. Requests that already use a model continue with it.
    pub(crate) fn drop_stale(&self) {
        let stale: Vec<_> = self
            .models
            .lock()
            .extract_if(
                ..,
                |_, residence| matches!(residence, Residence::Ready { model, .. } if !model.is_current()),
            )
            .collect();
        if !stale.is_empty() {
            self.notify();
            // The end of their threads takes up to seconds, for which a report must not wait. Without a new thread, they
            // end here.
            let unload = thread::Builder::new().name("unload".to_owned());
            let _ = unload.spawn(move || drop(stale));
        }
    }

    /// Changes the times that the models in memory stay there.
    pub(crate) fn set_residence(&self, of: impl Fn(&ModelName) -> ResidenceSettings) {
        for (key, model) in &mut *self.models.lock() {
            if let Residence::Ready { residence, .. } = model {
                *residence = of(&key.name);
            }
        }
    }

    /// Changes the time that a model in memory stays there.
    pub(crate) fn set_keep_alive(&self, key: &PackageKey, keep_alive: KeepAlive) {
        if let Some(Residence::Ready { residence, .. }) = self.models.lock().get_mut(key) {
            residence.keep_alive = Some(keep_alive);
        }
    }

    /// Unloads models whose keep-alive time has passed, on a thread that ends with the models. Later calls do nothing.
    pub(crate) fn unload_expired_in_background(self: &Arc<Self>) -> Result<(), Error> {
        if self.unloads_expired.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let models = Arc::downgrade(self);
        let unload = move || {
            while let Some(models) = models.upgrade() {
                models.unload_expired(Instant::now());
                drop(models);
                thread::sleep(EXPIRY_INTERVAL);
            }
        };
        let thread = thread::Builder::new().name("keep-alive".to_owned()).spawn(unload);
        thread
            .map(drop)
            .map_err(|source| Error::Io { what: "cannot start the keep-alive thread".to_owned(), source })
    }

    fn unload_expired(&self, now: Instant) {
        let expired: Vec<_> =
            self.models.lock().extract_if(.., |_, residence| residence.is_expired(now)).collect();
        if !expired.is_empty() {
            for (key, _) in &expired {
                tracing::info!("{} is unloaded, because its keep-alive time has passed", key.name);
            }
            drop(expired);
            self.notify();
        }
    }

    /// Removes a model. Requests that already use it continue with it.
    pub(crate) fn evict(&self, key: &PackageKey) {
        let evicted = {
            let mut models = self.models.lock();
            match models.get(key) {
                Some(Residence::Loading { .. }) | None => None,
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
                Residence::Ready { model, .. } => Some(model),
                other => {
                    other.wake();
                    None
                }
            })
            .collect()
    }

    /// Returns the status of every model.
    pub(crate) fn status(&self) -> Vec<ModelStatus> {
        self.models
            .lock()
            .iter()
            .map(|(key, residence)| match residence {
                Residence::Ready { model, used, residence, .. } => {
                    let expires_in = match residence.keep_alive {
                        Some(KeepAlive::For(time)) => Some(time.saturating_sub(used.elapsed())),
                        Some(KeepAlive::Forever) | None => None,
                    };
                    ModelStatus { expires_in, ..model.status() }
                }
                Residence::Loading { .. } => {
                    ModelStatus::unloaded(&key.name, key.scheme, ModelState::Loading)
                }
                Residence::Failed { failure: LoadFailure { reason, hint, passed_over, .. }, .. } => {
                    let state = ModelState::Failed { reason: reason.clone(), hint: hint.clone() };
                    let passed_over = passed_over.clone();
                    ModelStatus { passed_over, ..ModelStatus::unloaded(&key.name, key.scheme, state) }
                }
            })
            .collect()
    }
}

/// Returns the idle models that are not pinned, with the times of their last requests.
fn evictable(models: &Residences) -> impl Iterator<Item = (Instant, &PackageKey)> {
    let evictable = models.iter().filter(|(_, residence)| !residence.is_pinned());
    evictable.filter_map(|(key, residence)| Some((residence.idle_since()?, key)))
}

/// Returns the model that leaves first.
fn oldest_idle(models: &Residences) -> Option<&PackageKey> {
    evictable(models).min().map(|(_, key)| key)
}

/// Removes and returns the model that leaves first.
fn take_idle(models: &mut Residences) -> Option<(PackageKey, Residence)> {
    let oldest = oldest_idle(models)?.clone();
    models.remove_entry(&oldest)
}
