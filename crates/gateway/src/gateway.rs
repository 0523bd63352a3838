//! The door: one [`Gateway`] per process holds the store, the catalogue and the models in memory.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Instant,
};

use narthex_catalog::{index::Catalog, store::Store};
use narthex_device::runtime::Runtime;
use narthex_engine::worker::Drain;
use narthex_spec::{ModelName, ProgressSink, manifest::Manifest, progress::Quiet};

use crate::{
    cancel::Cancel,
    compile::{
        job::{self, Graphs},
        precompile,
        request::CompileRequest,
    },
    config::Config,
    error::Error,
    library::{
        models,
        names::{PackageKey, split_scheme},
    },
    load::{
        device_selection,
        loaded_model::Loaded,
        residency::{Claim, Residents},
        runtime_choice::{self, Core},
    },
    report::models::{InstalledPackage, ModelListing, ModelStatus},
    serve::{
        answer, chat, date, embed, fill,
        generation::Turn,
        mask_predict,
        request::{
            AnswerRequest, Answers, ChatRequest, CompletionRequest, EmbedRequest, Embeddings, Fillings,
            MaskRequest, Ranking, RefineRequest, Refined, RerankRequest, TurnSink,
        },
        rerank,
    },
    server_record::{self, Announcement, RunningServer},
};

/// Models of one machine behind one door. Cloning gives another handle to the same models.
///
/// Every method is synchronous and may block; events of answers arrive on the engine's thread.
#[derive(Clone)]
pub struct Gateway {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) store: Store,
    pub(crate) catalog: Catalog,
    pub(crate) residents: Residents,
    announced: Arc<Mutex<Option<Announcement>>>,
    closed: RwLock<bool>,
    cancel: Cancel,
}

/// Keeps a server's record for `ps`; dropping it takes the record away.
pub struct Announced {
    record: Arc<Mutex<Option<Announcement>>>,
}

impl Drop for Announced {
    fn drop(&mut self) {
        *self.record.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Gateway {
    /// Opens the store and reads the catalogue; loads nothing yet.
    pub fn open(config: Config) -> Result<Self, Error> {
        let store = Store::open(config.home.clone())?;
        let catalog = Catalog::builtin()?;
        let inner = Inner {
            residents: Residents::new(config.retry_failed_after),
            config,
            store,
            catalog,
            announced: Arc::new(Mutex::new(None)),
            closed: RwLock::new(false),
            cancel: Cancel::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The settings it was opened with.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Starts a chat answer; returns once it is queued.
    pub fn chat(&self, model: &str, request: ChatRequest, sink: Box<dyn TurnSink>) -> Result<Turn, Error> {
        let loaded = self.ready(model)?;
        chat::chat(&loaded, request, date::today(), sink)
    }

    /// Starts a text completion; returns once it is queued.
    pub fn complete(
        &self,
        model: &str,
        request: CompletionRequest,
        sink: Box<dyn TurnSink>,
    ) -> Result<Turn, Error> {
        let loaded = self.ready(model)?;
        chat::complete(&loaded, request, sink)
    }

    /// Embeds texts. This and what follows ends early with [`Error::Cancelled`] once `cancel` is set.
    pub fn embed(&self, model: &str, request: &EmbedRequest, cancel: &Cancel) -> Result<Embeddings, Error> {
        embed::embed(self.ready(model)?.as_ref(), request, cancel)
    }

    /// Sorts documents by how well they answer a query.
    pub fn rerank(&self, model: &str, request: &RerankRequest, cancel: &Cancel) -> Result<Ranking, Error> {
        rerank::rerank(self.ready(model)?.as_ref(), request, cancel)
    }

    /// Finds the parts of a text that answer a question.
    pub fn answer(&self, model: &str, request: &AnswerRequest, cancel: &Cancel) -> Result<Answers, Error> {
        answer::answer(self.ready(model)?.as_ref(), request, cancel)
    }

    /// Says what fits in a text's masks.
    pub fn fill(&self, model: &str, request: &MaskRequest, cancel: &Cancel) -> Result<Fillings, Error> {
        fill::fill(self.ready(model)?.as_ref(), request, cancel)
    }

    /// Adds tokens to a text with a masked language model, in rounds (mask-predict, arXiv:1904.09324).
    pub fn refine(&self, model: &str, request: &RefineRequest, cancel: &Cancel) -> Result<Refined, Error> {
        mask_predict::refine(self.ready(model)?.as_ref(), request, cancel)
    }

    /// Fetches, compiles and loads a model in the foreground, whatever its size.
    pub fn load(
        &self,
        model: &str,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<ModelStatus, Error> {
        let key = self.key_of(model)?;
        loop {
            match self.inner.residents.claim(&key)? {
                Claim::Ready(loaded) => return Ok(loaded.status()),
                Claim::Load => self.inner.load(&key, job::named(model), progress, cancel)?,
                Claim::Wait => {
                    self.inner.residents.wait(&key, Instant::now() + self.inner.config.load_wait)?;
                }
            }
        }
    }

    /// Every installed model and every catalogue entry.
    pub fn models(&self) -> Result<Vec<ModelListing>, Error> {
        models::models(&self.inner)
    }

    /// One model that is installed or in the catalogue.
    pub fn model(&self, model: &str) -> Result<ModelListing, Error> {
        models::model(&self.inner, model)
    }

    /// The models that were asked for since the gateway was opened.
    pub fn status(&self) -> Vec<ModelStatus> {
        self.inner.residents.status()
    }

    /// The manifest of an installed package.
    pub fn manifest(&self, model: &str) -> Result<Manifest, Error> {
        models::manifest(&self.inner, &self.installed_key(model)?)
    }

    /// Fetches a model and compiles it, unless that was done before.
    pub fn pull(
        &self,
        model: &str,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<InstalledPackage, Error> {
        let key = self.key_of(model)?;
        let request = CompileRequest::new(key.scheme);
        job::ensure_package(&self.inner, &job::Wanted::new(&key, model, &request), progress, cancel)?;
        models::installed(&self.inner, &key)
    }

    /// Compiles a model; gives the package's folder and manifest. A smaller model is called after the one that it is cut
    /// out of, as in `gemma3n:e4b-e2b`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a target that nothing can be compiled for ahead of time, or a scheme that no NPU computes in,
    /// before anything is fetched.
    pub fn compile(
        &self,
        model: &str,
        request: &CompileRequest,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(PathBuf, Manifest), Error> {
        precompile::refuse(request)?;
        let (text, _) = split_scheme(model);
        let key = self.key_of(text)?;
        models::refuse_import(&self.inner, &key)?;
        let key = PackageKey { scheme: request.scheme, ..key }.cut(request)?;
        let folder =
            job::ensure_package(&self.inner, &job::Wanted::new(&key, text, request), progress, cancel)?;
        self.inner.residents.evict(&key);
        Ok((folder, models::manifest(&self.inner, &key)?))
    }

    /// Removes a model's packages, or with `model@scheme` one of them; gives the bytes freed.
    pub fn remove(&self, model: &str) -> Result<u64, Error> {
        models::remove(&self.inner, model)
    }

    /// Writes this server's record for `ps`.
    pub fn announce(&self, address: &str) -> Result<Announced, Error> {
        let mut record = Announcement::start(&self.inner.run_folder(), address)?;
        record.update(self.inner.residents.status());
        let slot = self.inner.announced.clone();
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        let (weak, watched) = (Arc::downgrade(&self.inner), slot.clone());
        self.inner.residents.watch(Some(Box::new(move || {
            let Some(inner) = weak.upgrade() else { return };
            if let Some(record) = &mut *watched.lock().unwrap_or_else(PoisonError::into_inner) {
                record.update(inner.residents.status());
            }
        })));
        Ok(Announced { record: slot })
    }

    /// The servers that run on this store.
    pub fn running(&self) -> Vec<RunningServer> {
        server_record::running(&self.inner.run_folder())
    }

    /// Refuses new requests; running answers finish or end, as `drain` says.
    pub fn shutdown(&self, drain: Drain) {
        *self.inner.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        self.inner.cancel.cancel();
        for loaded in self.inner.residents.drain() {
            loaded.shutdown(drain);
        }
    }

    /// The model in memory; loads it first where need be, within the configured wait.
    pub(crate) fn ready(&self, model: &str) -> Result<Arc<Loaded>, Error> {
        if *self.inner.closed.read().unwrap_or_else(PoisonError::into_inner) {
            return Err(Error::ShuttingDown);
        }
        let key = self.key_of(model)?;
        let deadline = Instant::now() + self.inner.config.load_wait;
        if !self.inner.residents.knows(&key) {
            // A name that nothing can be loaded for is the request's mistake; it must leave no trace here.
            job::check_obtainable(&self.inner, &key, self.inner.pull_limit())?;
        }
        match self.inner.residents.claim(&key)? {
            Claim::Ready(loaded) => return Ok(loaded),
            Claim::Load => self.load_in_background(&key),
            Claim::Wait => {}
        }
        self.inner.residents.wait(&key, deadline)
    }

    fn load_in_background(&self, key: &PackageKey) {
        let (inner, wanted) = (self.inner.clone(), key.clone());
        let thread = std::thread::Builder::new().name("load".to_owned()).spawn(move || {
            // The outcome is settled inside; requests read it from there.
            let from = (wanted.name.as_str(), inner.pull_limit());
            let _ = inner.load(&wanted, from, &Quiet, &inner.cancel);
        });
        if let Err(source) = thread {
            let error = Error::Io { what: "cannot start the loading thread".to_owned(), source };
            self.inner.residents.settle(key, Err(&error));
        }
    }

    /// The package that a user's text names, whether installed or in the catalogue.
    pub(crate) fn key_of(&self, model: &str) -> Result<PackageKey, Error> {
        models::key(&self.inner, model)
    }

    /// As [`Self::key_of`], but without a scheme any installed one will do.
    fn installed_key(&self, model: &str) -> Result<PackageKey, Error> {
        models::installed_key(&self.inner, model)
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }
}

impl Inner {
    /// What a request may have fetched.
    fn pull_limit(&self) -> job::Pull {
        job::Pull::UpTo(self.config.auto_pull_limit)
    }

    /// Does the work of [`Claim::Load`] and settles it. A package that is missing comes `from` what a user's text names,
    /// where the policy allows.
    fn load(
        &self,
        key: &PackageKey,
        from: (&str, job::Pull),
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.open_model(key, from, progress, cancel)
        }));
        let outcome = outcome.unwrap_or_else(|_| {
            Err(Error::BadPackage {
                name: key.name.clone(),
                scheme: key.scheme,
                reason: "loading it panicked; please report this".into(),
            })
        });
        match outcome {
            Ok(loaded) => {
                self.residents.settle(key, Ok(loaded));
                Ok(())
            }
            Err(error) => {
                self.residents.settle(key, Err(&error));
                Err(error)
            }
        }
    }

    fn open_model(
        &self,
        key: &PackageKey,
        from: (&str, job::Pull),
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Loaded, Error> {
        let core = Core::of(self);
        let facts = &core.facts;
        device_selection::check_possible(&self.config, key, facts)?;
        let fixed = device_selection::wants_fixed(&self.config, key.scheme, facts);
        let graphs = if fixed { Graphs::Both } else { Graphs::Any };
        core.claim(self)?;
        let folder = job::package_for_load(self, (key, graphs), from, progress, cancel)?;
        let runtime = core.load(self, progress, cancel)?;
        Loaded::open(key, &folder, runtime, (&self.config, &self.store, facts), (progress, cancel))
    }

    /// ONNX Runtime, for what any core does: the one that is loaded, else the CPU one, installed on first need.
    pub(crate) fn runtime(
        &self,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<&'static Runtime, Error> {
        if let (None, Some(runtime)) = (runtime_choice::named(self), Runtime::loaded()) {
            return Ok(runtime);
        }
        Ok(Runtime::load(&job::core_library(self, progress, cancel)?)?)
    }

    fn run_folder(&self) -> PathBuf {
        self.store.root().join("run")
    }

    /// The names closest to one that is unknown.
    pub(crate) fn unknown(&self, name: &str) -> Error {
        let near: Vec<ModelName> = self.catalog.suggest(name);
        Error::UnknownModel { name: name.to_owned(), near }
    }
}
