//! Installed packages and catalogue entries, by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use narthex_catalog::{
    index::{Access, Entry},
    redact_reference,
    resolve::{CheckpointSource, Location, ModelId, ModelRef, excerpt},
    store::{PackageInfo, Store},
};
use narthex_engine::executor::KvLimits;
use narthex_spec::{
    ModelName, Scheme, Speculation, ToolFormat, Variant,
    arch::Structure,
    manifest::{Manifest, Speaker},
};

use crate::{
    config::{Config, KV_STEP},
    error::Error,
    library::{
        Library, package,
        package_key::{PackageKey, split_scheme},
        suitability,
    },
    model_settings::{AnswerSettings, ModelSettings},
    report::{
        kv_cache,
        models::{InstalledPackage, KvCacheStatus, MeasuredQuality, ModelKind, ModelListing, VoiceInfo},
    },
};

/// Scheme of a model that is named without one.
pub const DEFAULT_SCHEME: Scheme = Scheme::W8;

/// Returns every scheme, starting with `first`: the order in which installed packages are looked up.
pub(crate) fn schemes_from(first: Scheme) -> impl Iterator<Item = Scheme> {
    std::iter::once(first).chain(Scheme::ALL.into_iter().filter(move |&scheme| scheme != first))
}

/// A model that a client named.
pub(crate) struct RequestedModel {
    pub(crate) id: ModelId,
    pub(crate) key: PackageKey,
    /// Settings of its answers.
    pub(crate) answers: Arc<AnswerSettings>,
}

impl Library {
    /// Returns the key of the package that a user's text names, installed or not.
    ///
    /// A text without a scheme names the package in the default scheme if it is installed, else any installed one, else
    /// the one in the default scheme.
    pub(crate) fn key(&self, model: &str) -> Result<PackageKey, Error> {
        let (text, scheme) = split_scheme(self.config.alias(model).unwrap_or(model));
        let name = self.resolve_name(&self.reference(text)?)?;
        Ok(self.package_key(name, scheme))
    }

    /// Returns the model that a client's text names: an alias, else a model, else the default model. The tag `latest`
    /// is optional. The text is never treated as a path, so the result does not depend on which files exist.
    ///
    /// # Errors
    /// [`Error::PathAsModel`] and [`Error::UnknownModel`].
    pub(crate) fn requested(&self, model: &str) -> Result<RequestedModel, Error> {
        let config = &*self.config;
        let model = model.trim();
        let name = if config.alias(model).is_some() { model } else { self.without_latest(model) };
        let named = match (self.named(config.alias(name).unwrap_or(model)), &config.default_model) {
            (Err(Error::UnknownModel { .. }), Some(default)) => self.named(default)?,
            (named, _) => named?,
        };
        let answers = match config.models.get(name).filter(|settings| settings.from.is_some()) {
            Some(settings) => Arc::new(settings.answers.clone()),
            None => named.answers,
        };
        Ok(RequestedModel { answers, ..named })
    }

    /// Returns the settings of a model.
    pub(crate) fn settings(&self, name: &ModelName) -> Option<&ModelSettings> {
        let own = self.config.models.iter().filter(|(_, settings)| settings.from.is_none());
        let mut own = own.filter(|(model, _)| self.named_id(model).is_ok_and(|(_, known)| known == *name));
        own.next().map(|(_, settings)| settings)
    }

    /// Returns the text without the tag `latest`, which Ollama's clients add, unless it is part of a model's name.
    fn without_latest<'a>(&self, text: &'a str) -> &'a str {
        let is_name = text.parse().is_ok_and(|name| self.is_known(&name));
        text.strip_suffix(":latest").filter(|_| !is_name).unwrap_or(text)
    }

    /// Returns the model that a text names. The tag `latest` is optional.
    pub(super) fn named(&self, model: &str) -> Result<RequestedModel, Error> {
        let (text, scheme) = split_scheme(model);
        let (id, name) = self.named_id(text)?;
        let answers = self.settings(&name).map(|settings| settings.answers.clone());
        Ok(RequestedModel {
            id,
            key: self.package_key(name, scheme),
            answers: Arc::new(answers.unwrap_or_default()),
        })
    }

    /// Returns the model that a text without a scheme names, and the name of its packages.
    fn named_id(&self, text: &str) -> Result<(ModelId, ModelName), Error> {
        if matches!(ModelRef::parse(text), Ok(ModelRef::Local(_))) {
            return Err(Error::PathAsModel);
        }
        let text = self.without_latest(text);
        let size = self.size_of_family(text);
        let text = size.as_ref().map_or(text, |name| name.as_str());
        let id = ModelId::parse(text).map_err(|_| self.unknown(text))?;
        if matches!(&id, ModelId::Catalogue(name) if !self.is_known(name)) {
            return Err(self.unknown(text));
        }
        let name = self.resolve_name(&ModelRef::Id(id.clone()))?;
        Ok((id, name))
    }

    /// Returns the format of tool calls that the settings choose for a model.
    pub(crate) fn tool_format(&self, name: &ModelName) -> Option<ToolFormat> {
        let Config { tool_format, tool_formats, .. } = &*self.config;
        let of_model = tool_formats
            .iter()
            .find(|(model, _)| self.named_id(model).is_ok_and(|(_, known)| known == *name));
        of_model.map(|(_, format)| *format).or(*tool_format)
    }

    /// Returns the key of the draft model of the settings, installed or not, unless they disable speculation.
    pub(crate) fn draft_model(&self) -> Result<Option<PackageKey>, Error> {
        let Config { draft_model, speculation, .. } = &*self.config;
        let model = draft_model.as_ref().filter(|_| *speculation == Speculation::Auto);
        model.map(|model| Ok(self.named(model)?.key)).transpose()
    }

    /// Refuses aliases, a default model, a draft model, formats of tool calls and settings that name no model.
    pub(crate) fn check_names(&self) -> Result<(), Error> {
        let Config { aliases, models, default_model, draft_model, tool_formats, .. } = &*self.config;
        let named = aliases.values().map(|model| ("alias", model));
        let named = named.chain(default_model.iter().map(|model| ("default_model", model)));
        let named = named.filter(|(_, model)| self.config.upstream_route(model).is_none());
        let named = named.chain(draft_model.iter().map(|model| ("draft_model", model)));
        let named = named.chain(models.iter().map(|(name, settings)| match &settings.from {
            Some(from) => ("from", from),
            None => ("models", name),
        }));
        for (param, model) in named.chain(tool_formats.keys().map(|model| ("tool_format", model))) {
            self.named(model).map_err(|error| {
                let hint = error.hint().map_or(String::new(), |hint| format!(" ({hint})"));
                Error::invalid(param, format!("{error}{hint}"))
            })?;
        }
        self.check_rules()
    }

    fn package_key(&self, name: ModelName, scheme: Option<Scheme>) -> PackageKey {
        let scheme = scheme.or_else(|| self.settings(&name)?.load.scheme);
        if let Some(scheme) = scheme.or(self.config.scheme) {
            return PackageKey { name, scheme };
        }
        let installed =
            schemes_from(DEFAULT_SCHEME).find(|&scheme| self.store.package(&name, scheme).is_some());
        PackageKey { name, scheme: installed.unwrap_or(DEFAULT_SCHEME) }
    }

    /// Returns whether a name is in the catalogue or installed.
    fn is_known(&self, name: &ModelName) -> bool {
        self.catalog.get(name).is_some() || !self.installed_schemes(name).is_empty()
    }

    /// Returns the schemes in which a model is installed.
    pub(crate) fn installed_schemes(&self, name: &ModelName) -> Vec<Scheme> {
        Scheme::ALL.into_iter().filter(|&scheme| self.store.package(name, scheme).is_some()).collect()
    }

    /// Returns the size that the name of a family denotes, as `qwen3` does, unless a model has this name: the largest
    /// installed one, or else the best for this machine.
    fn size_of_family(&self, text: &str) -> Option<ModelName> {
        let family: ModelName = text.trim().parse().ok()?;
        if self.is_known(&family) {
            return None;
        }
        let sizes = self.catalog.sizes(family.as_str());
        let installed = sizes.iter().filter(|entry| {
            Scheme::ALL.iter().any(|&scheme| self.store.package(&entry.name, scheme).is_some())
        });
        if let Some(entry) = installed.max_by_key(|entry| entry.parameters) {
            return Some(entry.name.clone());
        }

        let sizes: Vec<_> = sizes
            .into_iter()
            .filter_map(|entry| Some((entry.name.clone(), entry.parameters, self.catalog.figures(entry)?.w8)))
            .collect();
        if sizes.is_empty() { None } else { suitability::best_size(sizes, self.machine_speed()) }
    }

    fn unknown(&self, text: &str) -> Error {
        Error::UnknownModel { name: excerpt(&redact_reference(text)), near: self.catalog.suggest(text) }
    }

    /// Returns the key as [`Self::key`] does, and fails if the package is not installed.
    pub(crate) fn installed_key(&self, model: &str) -> Result<PackageKey, Error> {
        let key = self.key(model)?;
        self.package_folder(&key)?;
        Ok(key)
    }

    /// Returns the folder of an installed package.
    pub(crate) fn package_folder(&self, key: &PackageKey) -> Result<PathBuf, Error> {
        self.store.package(&key.name, key.scheme).ok_or_else(|| self.not_installed(key))
    }

    /// Returns the error of a missing package. It names the scheme if that is not the default one, or if the model is
    /// installed in another.
    pub(crate) fn not_installed(&self, key: &PackageKey) -> Error {
        let installed = self.installed_schemes(&key.name);
        let is_named = key.scheme != DEFAULT_SCHEME || !installed.is_empty();
        Error::NotInstalled {
            name: key.name.clone(),
            scheme: is_named.then_some(key.scheme),
            installed,
            in_catalogue: self.catalog.get(&key.name).is_some(),
        }
    }

    fn resolve_name(&self, reference: &ModelRef) -> Result<ModelName, Error> {
        match reference {
            ModelRef::Id(ModelId::Catalogue(name)) => {
                Ok(self.catalog.get(name).map_or_else(|| name.clone(), |entry| entry.name.clone()))
            }
            other => {
                let resolved = other.resolve(&self.catalog)?;
                let is_other = resolved.exact_name.is_some() && self.is_taken(&resolved);
                Ok(resolved.exact_name.filter(|_| is_other).unwrap_or(resolved.name))
            }
        }
    }

    /// Returns whether a package with the name of a local checkpoint was made from another one.
    fn is_taken(&self, resolved: &CheckpointSource) -> bool {
        Scheme::ALL.into_iter().any(|scheme| {
            let key = PackageKey { name: resolved.name.clone(), scheme };
            match self.store.package(&key.name, scheme) {
                // Another spelling of the path is the same model.
                Some(_) => self.manifest(&key).map_or(true, |manifest| {
                    version_of(&manifest.provenance.source) != version_of(&resolved.provenance)
                }),
                None => false,
            }
        })
    }

    /// Returns the model to which a text without a scheme refers. Known names take precedence. Another name may be a
    /// path in the current folder, so this function is only for the users of this machine.
    pub(crate) fn reference(&self, text: &str) -> Result<ModelRef, Error> {
        if let Ok(name) = text.parse::<ModelName>()
            && self.is_known(&name)
        {
            return Ok(ModelRef::Id(ModelId::Catalogue(name)));
        }
        if let Some(size) = self.size_of_family(text).filter(|_| !Path::new(text).exists()) {
            return Ok(ModelRef::Id(ModelId::Catalogue(size)));
        }
        match ModelRef::parse(text) {
            Ok(ModelRef::Id(ModelId::Catalogue(_))) | Err(_) if Path::new(text).exists() => {
                Ok(ModelRef::Local(text.into()))
            }
            Ok(ModelRef::Id(ModelId::Catalogue(_))) | Err(_) => Err(self.unknown(text)),
            Ok(reference) => Ok(reference),
        }
    }

    /// Returns the catalogue entry of a model that was named by its catalogue name or its repository.
    pub(crate) fn entry(&self, resolved: &CheckpointSource) -> Option<&Entry> {
        self.catalog.get(&resolved.name).or_else(|| match &resolved.source {
            Location::Hub(hub) => self.catalog.by_repo(&hub.repo),
            Location::Wheel { .. } | Location::Local(_) => None,
        })
    }

    /// Reads the manifest of an installed package.
    pub(crate) fn manifest(&self, key: &PackageKey) -> Result<Manifest, Error> {
        package::read_manifest(&self.package_folder(key)?, key)
    }

    /// Returns the chat template of an installed package, if it has one.
    pub(crate) fn chat_template(&self, key: &PackageKey) -> Result<Option<String>, Error> {
        let folder = self.package_folder(key)?;
        let chat = package::read_manifest(&folder, key)?.chat;
        chat.map(|chat| package::read_text(&folder, &chat.template)).transpose()
    }

    /// Returns the kind of a model that is installed or in the catalogue.
    pub(crate) fn kind(&self, key: &PackageKey) -> Option<ModelKind> {
        let installed = self.manifest(key).ok().map(|manifest| ModelKind::of(&manifest));
        installed.or_else(|| Some(self.entry_listing(self.catalog.get(&key.name)?).kind))
    }

    /// Refuses an imported package, which has no checkpoint to compile.
    pub(crate) fn refuse_import(&self, key: &PackageKey) -> Result<(), Error> {
        if self.store.package(&key.name, key.scheme).is_none() {
            return Ok(());
        }
        match self.manifest(key)?.architecture {
            Structure::Decoder(_) | Structure::Encoder(_) | Structure::Embedder(_) | Structure::Speech(_) => {
                Ok(())
            }
            Structure::ImportedVoice(_) => {
                let message = format!("{} is a voice, which is imported and not compiled", key.name);
                Err(Error::invalid("model", message))
            }
            _ => Err(Error::invalid(
                "model",
                format!(
                    "{} is an import, whose graph cannot be compiled again; compile the checkpoint that it was exported \
                     from",
                    key.name
                ),
            )),
        }
    }

    pub(crate) fn installed(&self, key: &PackageKey) -> Result<InstalledPackage, Error> {
        let manifest = self.manifest(key)?;
        let mut packages = self.store.packages()?.into_iter();
        let info = packages.find(|info| info.name == key.name && info.scheme == key.scheme);
        self.installed_package(&info.ok_or_else(|| self.not_installed(key))?, manifest)
    }

    /// Returns one model that is installed or in the catalogue. A path is not a model's name.
    pub(crate) fn model(&self, text: &str) -> Result<ModelListing, Error> {
        let key = self.requested(text)?.key;
        if let Some(listing) = self.models()?.into_iter().find(|listing| listing.name == key.name) {
            return Ok(listing);
        }
        // Lists skip a broken package; a request for it by name reports its error.
        self.manifest(&key)?;
        Err(self.not_installed(&key))
    }

    /// Returns every installed model and every catalogue entry, by name.
    pub(crate) fn models(&self) -> Result<Vec<ModelListing>, Error> {
        let entries = self.catalog.entries().iter();
        let mut listings: BTreeMap<ModelName, ModelListing> =
            entries.map(|entry| (entry.name.clone(), self.entry_listing(entry))).collect();
        for info in self.store.packages()? {
            let key = PackageKey { name: info.name.clone(), scheme: info.scheme };
            let manifest = match package::read_manifest(&info.dir, &key) {
                Ok(manifest) => manifest,
                Err(error) => {
                    tracing::warn!(model = %key.name, %error, "skipping a package");
                    continue;
                }
            };
            let listing = listings.entry(info.name.clone()).or_insert_with(|| manifest_listing(&manifest));
            listing.installed.push(self.installed_package(&info, manifest)?);
        }
        for listing in listings.values_mut() {
            if let Some(reads) = listing.usual_package().map(|package| package.reads.clone()) {
                listing.reads = reads;
            }
        }
        Ok(listings.into_values().collect())
    }

    /// Returns the speakers of installed voices, then those of the catalogue's other voices.
    pub(crate) fn voices(&self) -> Result<Vec<VoiceInfo>, Error> {
        let mut voices: Vec<VoiceInfo> = Vec::new();
        for info in self.store.packages()? {
            let key = PackageKey { name: info.name, scheme: info.scheme };
            if let Ok(Manifest { voice: Some(entry), .. }) = package::read_manifest(&info.dir, &key) {
                let speakers = entry.speakers.iter().enumerate();
                voices.extend(speakers.map(|(index, Speaker { name, language, .. })| VoiceInfo {
                    is_installed: true,
                    ..voice_info(&key.name, index, name, language)
                }));
            }
        }

        let installed: BTreeSet<ModelName> = voices.iter().map(|voice| voice.model.clone()).collect();
        for entry in self.catalog.entries().iter().filter(|entry| !installed.contains(&entry.name)) {
            let speakers = entry.speakers.iter().enumerate();
            voices
                .extend(speakers.map(|(index, speaker)| {
                    voice_info(&entry.name, index, &speaker.name, &speaker.language)
                }));
        }
        Ok(voices)
    }

    fn installed_package(&self, info: &PackageInfo, manifest: Manifest) -> Result<InstalledPackage, Error> {
        let kv_cache = manifest
            .architecture
            .is_decoder()
            .then(|| kv_cache::status(self.config.kv_cache_dtype, &self.store, &info.dir))
            .flatten();
        Ok(InstalledPackage {
            scheme: info.scheme,
            bytes: info.bytes,
            machine_bytes: self.store.machine_bytes(&info.dir)?,
            max_length: manifest.max_length,
            context_length: context_length(&self.config, &manifest, kv_cache),
            kv_cache,
            reads: manifest.reads(),
            reasons: manifest.chat.as_ref().is_some_and(|chat| chat.reasoning.is_some()),
            bound: manifest.bound,
            sampling: manifest.sampling,
            created: info.created,
            digest: Store::package_digest(&info.dir)?,
        })
    }

    fn entry_listing(&self, entry: &Entry) -> ModelListing {
        ModelListing {
            name: entry.name.clone(),
            kind: entry.kind,
            reads: entry.reads.clone(),
            title: entry.title.clone(),
            parameters: Some(entry.parameters),
            download_bytes: entry.checkpoint_bytes(),
            figures: self.catalog.figures(entry).copied(),
            license: entry.license.clone(),
            quality: MeasuredQuality::of(entry),
            access: entry.access,
            pick: entry.pick,
            notes: entry.notes.clone(),
            source: entry.source.to_string(),
            installed: Vec::new(),
            auto_pull: entry.pinned_bytes().is_some_and(|bytes| bytes <= self.config.auto_pull_limit),
        }
    }
}

impl ModelListing {
    /// Returns the package that answers requests without a scheme: that in the default scheme, else any installed one.
    pub fn usual_package(&self) -> Option<&InstalledPackage> {
        schemes_from(DEFAULT_SCHEME)
            .find_map(|scheme| self.installed.iter().find(|package| package.scheme == scheme))
    }
}

/// Returns the maximum number of tokens of a conversation with a model that is not in memory. Without a known element
/// type on the CPU, its KV cache is assumed to have that of the graphs.
fn context_length(config: &Config, manifest: &Manifest, kv_cache: Option<KvCacheStatus>) -> usize {
    let context = manifest.max_length.min(config.context.unwrap_or(usize::MAX));
    let graph = manifest.graphs.iter().find(|graph| graph.variant == Variant::Dynamic);
    let layers = graph.into_iter().flat_map(|graph| &graph.kv);
    let bytes_per_token = layers
        .map(|layer| {
            let dtype = kv_cache.map_or(layer.dtype, |kv_cache| kv_cache.dtype.dtype());
            layer.with_dtype(dtype).bytes_per_token()
        })
        .fold(0, usize::saturating_add);
    let bytes_per_slot = graph.map_or(0, |graph| narthex_device::bytes_per_slot(&graph.kv));
    KvLimits { bytes_per_token, bytes_per_slot, step: KV_STEP, budget: config.kv_memory().budget }
        .longest(context)
}

/// Returns the description of a speaker of a voice that is not installed. The first speaker is the default.
fn voice_info(model: &ModelName, index: usize, speaker: &str, language: &str) -> VoiceInfo {
    VoiceInfo {
        id: speaker.to_owned(),
        model: model.clone(),
        language: language.to_owned(),
        is_default: index == 0,
        is_installed: false,
    }
}

/// Returns the version of a checkpoint's files, in which its source ends.
fn version_of(source: &str) -> Option<&str> {
    source.rsplit_once(", ").map(|(_, version)| version)
}

fn manifest_listing(manifest: &Manifest) -> ModelListing {
    ModelListing {
        name: manifest.name.clone(),
        kind: ModelKind::of(manifest),
        reads: manifest.reads(),
        title: manifest.name.to_string(),
        parameters: None,
        download_bytes: None,
        figures: None,
        license: manifest.provenance.license.clone(),
        quality: None,
        access: Access::Open,
        pick: None,
        notes: None,
        source: manifest.provenance.source.clone(),
        installed: Vec::new(),
        auto_pull: false,
    }
}
