//! The entry point of the library: a [`Gateway`] holds the store, the catalogue and the models in memory.

mod library;
mod models_in_memory;
mod requests;
mod running_servers;
mod upstreams;

use std::{panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Instant};

use narthex_catalog::{
    network::Network,
    resolve::{ModelId, ModelRef},
};
use narthex_device::{inventory, memory};
use narthex_engine::worker::Drain;
use narthex_spec::{
    DeviceMap, Ep, ProgressSink,
    progress::{JobSteps, Quiet},
};
use parking_lot::Mutex;

use crate::{
    cancel::Cancel,
    compile::{
        build_permits::{BuildPermits, BuildRight},
        package_build::{self, ModelSource, PullLimit, RequiredGraphs},
    },
    config::Config,
    error::{Error, ErrorKind},
    library::{
        Library, RequestedModel,
        package::{Package, bad_package},
        package_key::{PackageKey, split_scheme},
    },
    load::{
        device_selection,
        draft_model::DraftPackage,
        eligibility,
        loaded_model::LoadedModel,
        request::LoadRequest,
        residency::{
            Claim, LoadStart, ModelMemory, PendingLoad, ReadyModel, ResidencyLimits, ResidentModels,
        },
        runtime_choice::RuntimeChoice,
        tokenizer_reader::TokenizerReader,
    },
    model_settings::RequestSettings,
    report::models::ModelStatus,
    rights::{AutoPull, Rights},
    server_record::ServerRecord,
    threads::{self, ComputingThreads},
};

pub use library::RequestedPull;
pub use running_servers::ServerRegistration;
pub use upstreams::UpstreamAlternative;

/// The models of one machine. Clones share the same models.
///
/// Every method is synchronous and may block. Events of generations arrive on the engine's thread.
///
/// ```
/// use narthex_gateway::{Cancel, Config, Gateway, request::EmbedRequest};
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// let gateway = Gateway::open(Config::standard())?;
/// # // A test must not download the model.
/// # let network = narthex_gateway::Network::CacheOnly;
/// # let gateway = Gateway::open(Config { network, ..Config::standard() })?;
/// let request = EmbedRequest::new(["a ferry at dawn", "the quarterly report"]);
/// let embeddings = gateway.embed("all-minilm-l6-v2", &request, &Cancel::new())?;
/// assert_eq!(embeddings.vectors.len(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Gateway {
    library: Arc<Library>,
    models: Arc<ResidentModels>,
    server_record: Arc<Mutex<Option<ServerRecord>>>,
    rights: Arc<Rights>,
    /// Permits for the builds of all requests.
    builds: BuildPermits,
    /// Set by [`Self::shutdown`].
    closing: Cancel,
}

/// Requests. They refer to models by name and never by file: a client must neither find out which files exist nor make
/// the gateway read them. The exception is [`Self::load`], which is for the users of this machine.
impl Gateway {
    /// Opens the store and the catalogue. Loads no model.
    ///
    /// Sets the environment variable `ORT_DISABLE_TELEMETRY` of this process, unless it is set: ONNX Runtime would send
    /// usage data. If other threads read the environment with functions of C at that moment, call
    /// [`disable_telemetry`](crate::disable_telemetry) at the beginning of `main` instead.
    ///
    /// ```
    /// use narthex_gateway::{Config, Gateway};
    ///
    /// # fn main() -> Result<(), narthex_gateway::Error> {
    /// let home = std::env::temp_dir().join(format!("narthex-doc-{}", std::process::id()));
    /// let gateway = Gateway::open(Config { home: Some(home.clone()), ..Config::standard() })?;
    /// let model = gateway.model("smollm2:135m")?;
    /// assert!(model.installed.is_empty());
    /// # let _ = std::fs::remove_dir_all(home);
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(config: Config) -> Result<Self, Error> {
        narthex_device::runtime::ensure_telemetry_disabled();
        let library = Library::open(config)?;
        library.check_names()?;
        let Config { retry_failed_after, max_models, slots, max_queue, load_wait, .. } = *library.config;
        let kv_bytes = library.config.kv_memory().total;
        // While a model loads, as many requests may wait for it as the loaded model admits.
        let waiting = slots.max(1).saturating_add(max_queue);
        let limits = ResidencyLimits {
            models: max_models,
            kv_bytes,
            package_bytes: library.config.weights_total(),
            free_memory: inventory::available_memory,
            waiting,
            reservation_wait: load_wait,
        };

        let models = Arc::new(ResidentModels::new(retry_failed_after, limits));
        if library.config.has_keep_alive() {
            models.unload_expired_in_background()?;
        }
        Ok(Self {
            library: Arc::new(library),
            models,
            server_record: Arc::new(Mutex::new(None)),
            rights: Arc::default(),
            builds: BuildPermits::default(),
            closing: Cancel::new(),
        })
    }

    /// Returns a gateway over the same models for a caller with these rights. The rights apply to requests to models,
    /// and to the lists of models and their status; all other methods are for the operator.
    pub fn with_rights(&self, rights: Arc<Rights>) -> Self {
        Self { rights, ..self.clone() }
    }

    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.library.config
    }

    /// Returns whether the folder of the store exists. The first write creates it.
    pub fn has_store(&self) -> bool {
        self.library.store.root().is_dir()
    }

    /// Returns the file for the lines that a user types in conversations; it may not exist.
    pub fn chat_history(&self) -> PathBuf {
        self.library.store.chat_history()
    }

    /// Fetches, compiles and loads a model of any size. Requests then use the name in its status.
    pub fn load(
        &self,
        model: &str,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<ModelStatus, Error> {
        let key = self.library.key(model)?;
        self.models.drop_stale();
        loop {
            match self.models.claim(&key)? {
                Claim::Ready(model) => return Ok(model.loaded.status()),
                Claim::Load => {
                    let model = self.library.config.alias(model).unwrap_or(model);
                    let reference = self.library.reference(split_scheme(model).0)?;
                    self.load_claimed(&key, ModelSource::operator(&reference), progress, cancel)?;
                }
                Claim::Wait => {
                    let model = PendingLoad::new(self.models.clone(), key).wait_for_end(cancel)?;
                    return Ok(model.loaded.status());
                }
            }
        }
    }

    /// Refuses new requests. Running generations finish or end, depending on `drain`.
    pub fn shutdown(&self, drain: Drain) {
        self.closing.cancel();
        for loaded in self.models.drain() {
            loaded.shutdown(drain);
        }
    }

    /// Returns the model that a request names, or its load. An asynchronous caller can then wait without occupying a
    /// thread.
    ///
    /// # Errors
    /// [`Error::TooManyBuilds`] for a model that must be built while other requests take all permits for builds.
    pub fn start_load(&self, model: &str) -> Result<LoadStart, Error> {
        self.start_load_on(model, None)
    }

    /// Returns the model that a request names, or its load, as [`Self::start_load`] does. A model that is not in memory is
    /// loaded on the devices of the map.
    ///
    /// # Errors
    /// [`Error::DeviceMap`] for a model that is in memory on other devices.
    pub fn start_load_on(&self, model: &str, device_map: Option<&DeviceMap>) -> Result<LoadStart, Error> {
        let RequestedModel { id, key, answers } = self.resolve(model)?;
        let device_map = device_map.cloned();
        let media_urls = self.library.config.media_urls();
        let settings = RequestSettings { answers, media_urls, device_map: device_map.clone() };
        let mut right = BuildRight::Request(self.builds.clone());
        match self.models.claim_if(&key, || {
            if self.library.store.package(&key.name, key.scheme).is_none() {
                right = BuildRight::Permit(self.builds.take()?);
            }
            Ok(())
        })? {
            Claim::Ready(model) => return Ok(LoadStart::Ready(model.with_settings(settings)?)),
            Claim::Load => self.load_in_background(&key, id, right, device_map),
            Claim::Wait => {}
        }
        Ok(LoadStart::Pending(PendingLoad::new(self.models.clone(), key).with_settings(settings)))
    }

    pub(crate) fn library(&self) -> &Library {
        &self.library
    }

    /// Returns the model in memory, and loads it first within the configured wait.
    pub(crate) fn load_and_wait(&self, model: &str) -> Result<ReadyModel, Error> {
        let deadline = Instant::now() + self.library.config.load_wait;
        match self.start_load(model)? {
            LoadStart::Ready(model) => Ok(model),
            LoadStart::Pending(load) => load.wait(deadline),
        }
    }

    /// Returns the model that a request names and may use.
    fn resolve(&self, model: &str) -> Result<RequestedModel, Error> {
        if self.closing.is_cancelled() {
            return Err(Error::ShuttingDown);
        }
        let requested = self.library.requested(model)?;
        self.models.drop_stale();
        self.rights.check(&requested.key.name)?;
        if !self.models.contains(&requested.key) {
            // A name without a loadable model is an error of the request and leaves no state.
            package_build::check_obtainable(&self.library, &requested.key, self.request_limit())?;
        }
        Ok(requested)
    }

    /// Returns a model that the caller may use and that is installed or may be fetched.
    fn resolve_obtainable(&self, model: &str) -> Result<RequestedModel, Error> {
        let requested = self.library.requested(model)?;
        self.rights.check(&requested.key.name)?;
        package_build::check_obtainable(&self.library, &requested.key, self.request_limit())?;
        Ok(requested)
    }

    fn load_in_background(
        &self,
        key: &PackageKey,
        id: ModelId,
        right: BuildRight,
        device_map: Option<DeviceMap>,
    ) {
        let gateway = self.clone();
        let load_key = key.clone();
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
            let limit = gateway.request_limit();
            let source = ModelSource { reference: &ModelRef::Id(id), limit, right, device_map };
            // Requests read the outcome from the resident models.
            let _ = gateway.load_claimed(&load_key, source, &Quiet, &gateway.closing);
        });
        if let Err(source) = thread {
            let error = Error::Io { what: "cannot start the loading thread".to_owned(), source };
            self.models.finish(key, Err(&error));
        }
    }

    /// Returns the limit for downloads by requests.
    fn request_limit(&self) -> PullLimit {
        match self.rights.auto_pull {
            AutoPull::Never => PullLimit::Installed,
            AutoPull::Catalogue => PullLimit::Bytes(self.library.config.auto_pull_limit),
            AutoPull::Always => PullLimit::None,
        }
    }

    /// Loads a model after [`Claim::Load`], and ends the claim. Builds a missing package from `source`.
    fn load_claimed(
        &self,
        key: &PackageKey,
        source: ModelSource<'_>,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let was_installed = self.library.store.package(&key.name, key.scheme).is_some();
        let device_map = source.device_map.clone();
        let outcome =
            std::panic::catch_unwind(AssertUnwindSafe(|| self.load_model(key, source, progress, cancel)))
                .unwrap_or_else(|_| Err(bad_package(key, "loading it panicked; please report this")));
        let outcome = outcome.map_err(|error| error.of_device_map(&key.name, device_map));

        match outcome {
            Ok(loaded) => {
                self.models.finish(key, Ok(loaded));
                memory::release_freed_memory();
                self.memory().warn_if_low();
                Ok(())
            }
            Err(error) => {
                let is_missing = self.library.store.package(&key.name, key.scheme).is_none();
                let is_offline = self.library.store.network() == Network::CacheOnly;
                if is_missing && was_installed {
                    // The package was removed during the load, which failed at one of its files.
                    let error = self.library.not_installed(key);
                    self.models.finish(key, Err(&error));
                    return Err(error);
                }
                if is_missing && is_offline && error.kind() == ErrorKind::Fetch {
                    // For requests, a model that cannot be fetched does not exist. The operator learns the reason.
                    self.models.finish(key, Err(&self.library.not_installed(key)));
                    return Err(error);
                }
                self.models.finish(key, Err(&error));
                Err(error)
            }
        }
    }

    fn load_model(
        &self,
        key: &PackageKey,
        source: ModelSource<'_>,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<LoadedModel, Error> {
        let library = &*self.library;
        let mut config = library.config_of(&key.name);
        if source.device_map.is_some() {
            config = Arc::new(Config { device_map: source.device_map.clone(), ..(*config).clone() });
        }
        let mut choice = RuntimeChoice::of(library);
        if source.limit == PullLimit::Installed && choice.file(library)?.is_none() {
            return Err(narthex_catalog::Error::RuntimeNotInstalled { kind: Ep::Cpu.into() }.into());
        }

        threads::check(ComputingThreads::Configured(library.config.threads))?;
        choice.verify(library, progress, cancel)?;
        eligibility::check_required_npu(&config, key, &choice.facts)?;
        let needs_static = eligibility::needs_static_graphs(&config, key.scheme, &choice.facts);
        let graphs = RequiredGraphs::of(needs_static, &choice.facts);
        choice.load_early(library)?;
        let steps = JobSteps::new(progress);
        steps.plan(1);
        let folder = package_build::package_for_load(library, key, graphs, source, &steps, cancel)?;
        steps.begin(format!("Loading {}", key.name));
        let package = Arc::new(Package::open_verified(&library.store, key, &folder, progress, cancel)?);
        let manifest = &package.manifest;
        let has_engine = manifest.voice.is_none() && manifest.transcriber.is_none();
        let tokenizer = has_engine.then(|| TokenizerReader::start(&package)).transpose()?;
        let runtime = choice.load(library, progress, cancel)?;
        let draft = if has_engine { DraftPackage::of(library, &package, progress, cancel)? } else { None };
        let mut memory = ModelMemory::of(&config, &package.manifest);
        if let Some(draft) = &draft {
            memory.package_bytes += draft.bytes();
            memory.kv_bytes = memory.kv_bytes.saturating_add(draft.kv_budget);
        }
        self.models.release_prefixes(memory.package_bytes, inventory::available_memory());
        let reservation = self.models.reserve(key, memory, cancel)?;
        let request = LoadRequest {
            package,
            runtime,
            facts: Arc::new(choice.facts),
            config,
            store: library.store.clone(),
            reservation: Some(Arc::new(reservation)),
            progress,
            cancel: cancel.clone(),
        };

        let mut loaded = match tokenizer {
            None => LoadedModel::load_without_engine(&request)?,
            Some(tokenizer) => {
                let draft = draft.map(|draft| draft.open(&request, device_selection::select)).transpose()?;
                let format = library.tool_format(&key.name);
                LoadedModel::load(&request, tokenizer, draft, format, device_selection::select)?
            }
        };
        loaded.residence = library.residence_of(&key.name);
        // The graphs would be those of another package than the tokenizer, and unverified.
        if !loaded.is_current() {
            return Err(Error::PackageReplaced(key.name.clone()));
        }
        Ok(loaded)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use narthex_spec::{Calibration, Scheme, manifest::Manifest};

    use super::*;
    use crate::compile::{build_permits::MAX_BUILDS, request::CompileRequest};

    /// Opens a gateway whose builds fail, because they may not use the network.
    fn offline(home: &std::path::Path) -> Gateway {
        let config = Config {
            home: Some(home.to_owned()),
            network: Network::CacheOnly,
            retry_failed_after: Duration::ZERO,
            ..Config::standard()
        };
        Gateway::open(config).unwrap()
    }

    /// Moves a package in `f32` to the place of a model of the catalogue, and returns its key there.
    fn placed_in_catalogue(
        home: &std::path::Path,
        folder: &std::path::Path,
        manifest: Manifest,
    ) -> PackageKey {
        let key = PackageKey { name: "smollm2:135m".parse().unwrap(), scheme: Scheme::F32 };
        let model = home.join("packages").join(key.name.file_stem());
        std::fs::create_dir_all(&model).unwrap();
        std::fs::rename(folder, model.join("f32")).unwrap();
        let manifest = Manifest { name: key.name.clone(), ..manifest };
        std::fs::write(model.join("f32/manifest.json"), serde_json::to_vec(&manifest).unwrap()).unwrap();
        key
    }

    #[test]
    fn builds_of_requests_beyond_the_limit_are_refused_until_others_end() {
        let home = tempfile::tempdir().unwrap();
        let gateway = offline(home.path());
        let taken: Vec<_> = (0..MAX_BUILDS).map(|_| gateway.builds.take().unwrap()).collect();
        let start = || gateway.start_load("smollm2:135m").map(drop);
        for error in [start().unwrap_err(), gateway.request_pull("smollm2:135m").map(drop).unwrap_err()] {
            assert!(matches!(error, Error::TooManyBuilds(MAX_BUILDS)), "{error}");
        }
        assert!(gateway.status().is_empty(), "a refused load leaves a state");
        drop(taken);
        let LoadStart::Pending(load) = gateway.start_load("smollm2:135m").unwrap() else { panic!("loaded") };
        // While one model is built, requests for it wait and take no further permit.
        let second = gateway.builds.take();
        let error = load.wait_for_end(&Cancel::new()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        drop(second);
        // The thread returns its permit after it has reported the end of the load.
        while gateway.builds.take().and_then(|_first| gateway.builds.take()).is_err() {
            std::thread::yield_now();
        }
        assert!(gateway.request_pull("smollm2:135m").is_ok());
    }

    #[test]
    fn an_installed_model_is_built_again_only_within_the_limits() {
        let (home, checkpoint) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (gateway, cancel) = (offline(home.path()), Cancel::new());
        narthex_testkit::checkpoint::tiny_llama_safetensors(checkpoint.path(), 7).unwrap();
        let request = CompileRequest { calibration: Calibration::None, ..CompileRequest::new(Scheme::F32) };
        let path = checkpoint.path().to_str().unwrap();
        let (folder, manifest) = gateway.compile(path, &request, &Quiet, &cancel).unwrap();
        let key = placed_in_catalogue(home.path(), &folder, manifest);

        let reference = ModelRef::parse("smollm2:135m").unwrap();
        let load = |limit| {
            let right = BuildRight::Request(gateway.builds.clone());
            let source = ModelSource { reference: &reference, limit, right, device_map: None };
            let (steps, graphs) = (JobSteps::new(&Quiet), RequiredGraphs::Static { target: None });
            package_build::package_for_load(&gateway.library, &key, graphs, source, &steps, &cancel)
        };
        let _taken: Vec<_> = (0..MAX_BUILDS).map(|_| gateway.builds.take().unwrap()).collect();
        for limit in [PullLimit::Installed, PullLimit::Bytes(0)] {
            assert!(load(limit).unwrap().ends_with("f32"), "{limit:?}");
        }
        let error = load(PullLimit::None).unwrap_err();
        assert!(matches!(error, Error::TooManyBuilds(MAX_BUILDS)), "{error}");
    }

    #[test]
    fn a_model_without_static_graphs_is_built_for_the_cpu_on_a_machine_with_an_npu() {
        let (home, checkpoint) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (gateway, cancel) = (offline(home.path()), Cancel::new());
        let goldens =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/goldens/families");
        for name in ["qwen3.5/config.json", "qwen3.5/model.safetensors", "tokenizer.json"] {
            let file = goldens.join(name);
            std::fs::copy(&file, checkpoint.path().join(file.file_name().unwrap())).unwrap();
        }
        let load = |reference: &ModelRef, key: &PackageKey| {
            let right = BuildRight::Request(gateway.builds.clone());
            let source = ModelSource { reference, limit: PullLimit::None, right, device_map: None };
            let (steps, graphs) = (JobSteps::new(&Quiet), RequiredGraphs::Static { target: None });
            package_build::package_for_load(&gateway.library, key, graphs, source, &steps, &cancel)
        };
        let reference = ModelRef::parse(checkpoint.path().to_str().unwrap()).unwrap();
        let local = PackageKey { name: "local/tiny".parse().unwrap(), scheme: Scheme::F32 };
        let folder = load(&reference, &local).unwrap();
        let manifest = crate::library::package::read_manifest(&folder, &local).unwrap();
        assert_eq!(manifest.recipe.fixed, None);

        // In the place of a model of the catalogue, it is not built again.
        let key = placed_in_catalogue(home.path(), &folder, manifest);
        let _taken: Vec<_> = (0..MAX_BUILDS).map(|_| gateway.builds.take().unwrap()).collect();
        assert!(load(&ModelRef::parse("smollm2:135m").unwrap(), &key).unwrap().ends_with("f32"));
    }
}
