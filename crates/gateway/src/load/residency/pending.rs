//! Requests that wait for a load.

use std::{
    sync::{Arc, atomic::Ordering, mpsc},
    time::{Duration, Instant},
};

use super::{ReadyModel, Residence, ResidentModels};
use crate::{
    cancel::Cancel, error::Error, library::package_key::PackageKey, model_settings::RequestSettings,
};

/// Delay before a client should retry while a model is loading.
const LOADING_RETRY: Duration = Duration::from_secs(5);

/// State of a model when a request names it.
///
/// ```
/// use narthex_gateway::{Cancel, Config, ErrorKind, Gateway, LoadStart, Network};
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// # let home = tempfile::tempdir().unwrap();
/// # let home = Some(home.path().to_owned());
/// // Without the network, a model that is not installed is not found.
/// let config = Config { home, network: Network::CacheOnly, ..Config::standard() };
/// let gateway = Gateway::open(config)?;
/// let model = match gateway.start_load("smollm2:135m")? {
///     LoadStart::Ready(model) => Ok(model),
///     LoadStart::Pending(load) => load.wait_for_end(&Cancel::new()),
/// };
/// assert_eq!(model.err().map(|error| error.kind()), Some(ErrorKind::NotFound));
/// # Ok(())
/// # }
/// ```
pub enum LoadStart {
    /// The model is in memory.
    Ready(ReadyModel),
    /// The model is being loaded.
    Pending(PendingLoad),
}

/// The load of a model that a request needs.
///
/// ```no_run
/// use std::sync::mpsc;
///
/// use narthex_gateway::{Cancel, Config, Gateway, LoadStart, request::TokenizeOptions};
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// let gateway = Gateway::open(Config::standard())?;
/// if let LoadStart::Pending(load) = gateway.start_load("smollm2:135m")? {
///     let (sender, ended) = mpsc::channel();
///     // Until it is dropped, the waiter keeps the loaded model in memory.
///     let waiter = load.on_end(move || drop(sender.send(())))?;
///     // An asynchronous program does other work here.
///     let _ = ended.recv();
///     let model = load.model()?;
///     drop(waiter);
///     assert!(!model.tokenize("Hello", TokenizeOptions::default(), &Cancel::new())?.is_empty());
/// }
/// # Ok(())
/// # }
/// ```
pub struct PendingLoad {
    models: Arc<ResidentModels>,
    key: PackageKey,
    settings: RequestSettings,
}

impl PendingLoad {
    pub(crate) fn new(models: Arc<ResidentModels>, key: PackageKey) -> Self {
        Self { models, key, settings: RequestSettings::default() }
    }

    /// Returns the load with settings of the model's requests.
    pub(crate) fn with_settings(self, settings: RequestSettings) -> Self {
        Self { settings, ..self }
    }

    /// Calls `wake` once when the load has ended, unless the returned waiter is dropped before. Fails if too many
    /// requests wait for the model.
    pub fn on_end(&self, wake: impl FnOnce() + Send + 'static) -> Result<LoadWaiter, Error> {
        let Self { models, key, .. } = self;
        let number = models.next_waiter.fetch_add(1, Ordering::Relaxed);
        let waiter = LoadWaiter { models: models.clone(), key: key.clone(), number };
        let mut residences = models.models.lock();
        let waiters = match residences.get_mut(key) {
            Some(Residence::Loading { waiters, .. }) => waiters,
            ended => {
                if let Some(Residence::Ready { awaiting, .. }) = ended {
                    awaiting.insert(number);
                }
                drop(residences);
                wake();
                return Ok(waiter);
            }
        };
        let queued = waiters.len();
        if queued >= models.limits.waiting {
            drop(residences);
            return Err(Error::Overloaded { queued, retry_after: LOADING_RETRY });
        }
        waiters.insert(number, Box::new(wake));
        drop(residences);
        Ok(waiter)
    }

    /// Waits until the load has ended, and returns the model.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once `cancel` is set, [`Error::Overloaded`] if too many requests wait for the model, and
    /// the error of a failed load.
    pub fn wait_for_end(&self, cancel: &Cancel) -> Result<ReadyModel, Error> {
        let (sender, woken) = mpsc::channel();
        // A failed send means that the wait has ended.
        let _waiter = self.on_end({
            let sender = sender.clone();
            move || sender.send(()).unwrap_or_default()
        })?;
        let _callback = cancel.on_cancel({
            let sender = sender.clone();
            move || sender.send(()).unwrap_or_default()
        });
        // Ends with the first call, since `sender` keeps the channel open.
        let _ = woken.recv();
        cancel.check()?;
        self.model()
    }

    /// Waits until `deadline` for a load by another thread.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<ReadyModel, Error> {
        let _waiter = self.on_end(|| ())?;
        let mut models = self.models.models.lock();
        while matches!(models.get(&self.key), Some(Residence::Loading { .. })) && Instant::now() < deadline {
            self.models.changed.wait_until(&mut models, deadline);
        }
        drop(models);
        self.model()
    }

    /// Returns the model. Fails if it is still loading, if its load waits for memory, or if its load failed.
    pub fn model(&self) -> Result<ReadyModel, Error> {
        match self.models.models.lock().get(&self.key) {
            Some(Residence::Ready { model, .. }) => {
                ReadyModel::new(model, &self.models).with_settings(self.settings.clone())
            }
            Some(Residence::Loading { awaits_reservation: true, .. }) => {
                Err(self.models.residency_full(&self.key))
            }
            Some(Residence::Loading { .. }) => Err(still_loading(&self.key)),
            Some(Residence::Failed { failure, .. }) => Err(failure.error(&self.key.name)),
            None => Err(Error::ShuttingDown),
        }
    }
}

/// A request that waits for a load. The model stays in memory until all its waiters are dropped.
#[must_use = "if it is dropped, the model may be unloaded before the request uses it"]
pub struct LoadWaiter {
    models: Arc<ResidentModels>,
    key: PackageKey,
    number: u64,
}

impl Drop for LoadWaiter {
    fn drop(&mut self) {
        let mut residences = self.models.models.lock();
        let wake = match residences.get_mut(&self.key) {
            Some(Residence::Loading { waiters, .. }) => waiters.remove(&self.number),
            Some(Residence::Ready { awaiting, .. }) => {
                awaiting.remove(&self.number);
                self.models.changed.notify_all();
                None
            }
            Some(Residence::Failed { .. }) | None => None,
        };
        drop(residences);
        drop(wake);
    }
}

fn still_loading(key: &PackageKey) -> Error {
    Error::Loading { name: key.name.clone(), retry_after: LOADING_RETRY }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use narthex_spec::Scheme;

    use super::{
        super::{Claim, ModelMemory, ResidencyLimits},
        *,
    };
    use crate::report::load_forecast::LoadRoom;

    fn key(name: &str) -> PackageKey {
        PackageKey { name: name.parse().unwrap(), scheme: Scheme::W8 }
    }

    /// Limits for one model, with bytes for its KV cache and a number of requests that wait for it.
    fn limits(kv_bytes: usize, waiting: usize) -> ResidencyLimits {
        ResidencyLimits {
            models: 1,
            kv_bytes,
            package_bytes: None,
            free_memory: || None,
            waiting,
            reservation_wait: Duration::ZERO,
        }
    }

    /// Memory of a model with these bytes of KV cache.
    fn kv(kv_bytes: usize) -> ModelMemory {
        ModelMemory { package_bytes: 0, kv_bytes }
    }

    #[test]
    fn a_limited_number_of_requests_waits_for_a_load() {
        let models = Arc::new(ResidentModels::new(Duration::ZERO, limits(0, 2)));
        let key = key("tiny");
        assert!(matches!(models.claim(&key), Ok(Claim::Load)));
        let load = PendingLoad::new(models.clone(), key.clone());
        let woken = Arc::new(AtomicU64::new(0));
        let wait = || {
            let woken = woken.clone();
            load.on_end(move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        let (first, second) = (wait().unwrap(), wait().unwrap());
        assert!(matches!(wait(), Err(Error::Overloaded { queued: 2, .. })));
        drop(first);
        let third = wait().unwrap();
        assert!(matches!(load.model(), Err(Error::Loading { .. })));
        models.finish(&key, Err(&Error::Cancelled));
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        assert!(matches!(load.model(), Err(Error::LoadFailed { .. })));
        drop((second, third, wait().unwrap()));
        assert_eq!(woken.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_wait_ends_with_its_request_or_its_load() {
        let models = Arc::new(ResidentModels::new(Duration::ZERO, limits(0, 1)));
        let key = key("tiny");
        assert!(matches!(models.claim(&key), Ok(Claim::Load)));
        let load = PendingLoad::new(models.clone(), key.clone());
        let waiting = || match models.models.lock().get(&key) {
            Some(Residence::Loading { waiters, .. }) => waiters.len(),
            _ => 0,
        };
        // Ends the wait of a request by `end` after the wait has begun.
        let wait = |cancel: &Cancel, end: &dyn Fn()| {
            std::thread::scope(|scope| {
                let request = scope.spawn(|| load.wait_for_end(cancel));
                while waiting() == 0 {
                    std::thread::yield_now();
                }
                end();
                request.join().unwrap()
            })
        };
        let cancel = Cancel::new();
        assert!(matches!(wait(&cancel, &|| cancel.cancel()), Err(Error::Cancelled)));
        assert_eq!(waiting(), 0);
        assert!(matches!(load.wait_for_end(&cancel), Err(Error::Cancelled)));
        let failed = wait(&Cancel::new(), &|| models.finish(&key, Err(&Error::ShuttingDown)));
        assert!(matches!(failed, Err(Error::LoadFailed { .. })));
        assert!(matches!(load.wait_for_end(&Cancel::new()), Err(Error::LoadFailed { .. })));
    }

    #[test]
    fn a_load_waits_for_the_memory_of_another() {
        let limits = ResidencyLimits { reservation_wait: Duration::from_secs(3600), ..limits(0, 2) };
        let models = Arc::new(ResidentModels::new(Duration::ZERO, limits));
        let (first, second, cancel) = (key("first"), key("second"), Cancel::new());
        for model in [&first, &second] {
            assert!(matches!(models.claim(model), Ok(Claim::Load)));
        }
        let first_reservation = models.reserve(&first, kv(0), &cancel).unwrap();
        let load = PendingLoad::new(models.clone(), second.clone());
        assert!(matches!(load.model(), Err(Error::Loading { .. })));
        std::thread::scope(|scope| {
            let wait = scope.spawn(|| models.reserve(&second, kv(0), &cancel));
            while !wait.is_finished() && !matches!(load.model(), Err(Error::ResidencyFull { .. })) {
                std::thread::yield_now();
            }
            drop(first_reservation);
            models.finish(&first, Err(&Error::Cancelled));
            let _second_reservation = wait.join().unwrap().unwrap();
            assert!(matches!(load.model(), Err(Error::Loading { .. })));
            // The second load has the memory now.
            assert!(matches!(models.claim(&first), Ok(Claim::Load)));
            let wait = scope.spawn(|| models.reserve(&first, kv(0), &cancel));
            cancel.cancel();
            assert!(matches!(wait.join().unwrap(), Err(Error::Cancelled)));
        });
    }

    #[test]
    fn a_load_without_memory_is_tried_again_at_once() {
        let limits = limits(9, 2);
        let models = Arc::new(ResidentModels::new(Duration::from_secs(3600), limits));
        let (first, second, cancel) = (key("first"), key("second"), Cancel::new());
        for model in [&first, &second] {
            assert!(matches!(models.claim(model), Ok(Claim::Load)));
        }
        assert!(matches!(models.reserve(&first, kv(10), &cancel), Err(Error::ResidencyFull { .. })));
        let _reservation = models.reserve(&first, kv(9), &cancel).unwrap();
        let error = models.reserve(&second, kv(0), &cancel).unwrap_err();
        assert!(matches!(error, Error::ResidencyFull { .. }) && error.retry_after().is_some(), "{error}");
        models.finish(&second, Err(&error));
        assert!(matches!(models.claim(&second), Ok(Claim::Load)));
        models.finish(&second, Err(&Error::Cancelled));
        assert!(matches!(models.claim(&second), Err(Error::LoadFailed { .. })));
    }

    #[test]
    fn a_load_without_free_memory_goes_on_if_no_model_can_leave() {
        let limits = ResidencyLimits { free_memory: || Some(9), ..limits(0, 1) };
        let models = Arc::new(ResidentModels::new(Duration::ZERO, limits));
        let key = key("tiny");
        let forecast = |package_bytes| {
            let forecast = models.forecast(&key, ModelMemory { package_bytes, kv_bytes: 0 });
            (forecast.room, forecast.free_bytes)
        };
        assert_eq!(forecast(9), (LoadRoom::Enough, Some(9)));
        assert_eq!(forecast(10), (LoadRoom::Short, Some(9)));
        assert!(matches!(models.claim(&key), Ok(Claim::Load)));
        let memory = ModelMemory { package_bytes: 10, kv_bytes: 0 };
        let reservation = models.reserve(&key, memory, &Cancel::new()).unwrap();
        assert_eq!(forecast(9), (LoadRoom::Full, Some(9)));
        drop(reservation);
        assert_eq!(forecast(9), (LoadRoom::Enough, Some(9)));
    }
}
