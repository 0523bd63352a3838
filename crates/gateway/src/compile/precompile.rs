//! Ahead-of-time compilation of a package's static graphs with an NPU vendor's compiler.

use std::{
    collections::BTreeMap,
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
};

use narthex_catalog::{runtimes, source::wheel::WheelOrigin};
use narthex_compile::package;
use narthex_device::{
    ep::{Device, QnnOptions},
    placement::Placement,
    precompile::{FallbackPolicy, Job, Weights, precompile},
    runtime::Runtime,
};
use narthex_graph::context::CONTEXT_OP;
use narthex_spec::{
    BlockSize, Calibration, Ep, OpenVinoDevice, ProgressSink, Recipe, RoundingMethod, ScalingMethod, Scheme,
    Target, Variant,
    manifest::{Context, GraphEntry, Manifest, Part, PlacementRecord},
    progress::{Progress, Stage, Unit},
    target::QnnChip,
};

use super::{
    context_files::{bad_package, decode, list_files},
    intel_blobs,
    request::CompileRequest,
};
use crate::{
    cancel::Cancel,
    error::Error,
    library::Library,
    load::{
        cache_key, fallback,
        runtime_choice::{cpu_runtime, register_verified},
    },
};

/// Suffix of a context's binary, which replaces `.onnx`.
const BINARY_SUFFIX: &str = "_qnn.bin";

/// Refuses a request that no vendor's compiler supports, before anything is fetched or built.
pub(crate) fn check_request(request: &CompileRequest) -> Result<(), Error> {
    if let Some(target) = &request.target {
        check_target(target, request)?;
    }

    let scheme = request.scheme;
    let default = Recipe::new(scheme);
    if let (Some(_), Some(block)) = (default.activations, request.block) {
        let for_intel = request.target.as_ref().is_some_and(Target::is_intel_npu);
        let expected = match (default.block, block) {
            (BlockSize::Channel, BlockSize::Elements(_)) => {
                Some("channel, as its weights have one scale per output")
            }
            // Qualcomm's compiler refuses unsigned integers of 4 bits with one zero point per row.
            (BlockSize::Elements(_), BlockSize::Channel) if !for_intel => {
                Some("a number of elements, or a target of Intel's")
            }
            _ => None,
        };
        if let Some(expected) = expected {
            let message = format!("expected {expected} in {scheme}, found {block}");
            return Err(Error::invalid("block", message));
        }
    }
    if request.rounding == Some(RoundingMethod::Gptq) && scheme.of_weights() != Scheme::W4 {
        let message = format!("GPTQ rounds weights of 4 bits; expected --scheme w4 or w4a16, found {scheme}");
        return Err(Error::invalid("rounding", message));
    }
    if request.rounding == Some(RoundingMethod::Gptq) && request.calibration == Calibration::None {
        let message =
            "GPTQ measures the inputs of layers on a text; expected --calibrate standard, found none";
        return Err(Error::invalid("rounding", message.to_owned()));
    }
    check_scaling(request)?;
    check_widths(request)?;
    if request.ranges.is_some() && default.activations.is_none() {
        let message = format!(
            "only integer activations have ranges; expected --scheme w8a16, w8a8 or w4a16, found {scheme}"
        );
        return Err(Error::invalid("ranges", message));
    }

    let passes = request.passes.as_ref().is_some_and(|passes| !passes.is_empty());
    let npu_options = [
        ("target", request.target.is_some()),
        ("context", !request.contexts.is_empty()),
        ("prefill", !request.prefill.is_empty()),
        ("pass", passes),
    ];
    match npu_options.into_iter().find(|(_, is_set)| *is_set && request.scheme == Scheme::F32) {
        Some((option, _)) => Err(Error::invalid(
            "scheme",
            format!(
                "--{option} builds graphs for NPUs, which compute in half precision; expected w8, w4, f16, w8a16, w8a8 \
                 or w4a16, found f32"
            ),
        )),
        None => Ok(()),
    }
}

/// Refuses scales of channels that the scheme does not use, and scales without measurements.
fn check_scaling(request: &CompileRequest) -> Result<(), Error> {
    let scheme = request.scheme;
    let Some(scaling) = request.scaling.filter(|scaling| scaling.is_measured()) else { return Ok(()) };
    let weights = scheme.of_weights();
    if scaling == ScalingMethod::Awq && weights != Scheme::W4 {
        let message = format!("AWQ scales weights of 4 bits; expected --scheme w4 or w4a16, found {scheme}");
        return Err(Error::invalid("scaling", message));
    }
    if !matches!(weights, Scheme::W4 | Scheme::W8) {
        let message = format!(
            "only weights of integers are scaled; expected --scheme w8, w4, w8a16, w8a8 or w4a16, found {scheme}"
        );
        return Err(Error::invalid("scaling", message));
    }
    if request.calibration == Calibration::None {
        let message = format!(
            "{scaling} measures the inputs of layers on a text; expected --calibrate standard, found none"
        );
        return Err(Error::invalid("scaling", message));
    }
    Ok(())
}

/// Refuses widths of layers for schemes that have one width only, and a budget whose losses are not measured.
fn check_widths(request: &CompileRequest) -> Result<(), Error> {
    let options = [
        ("budget", request.budget.is_some()),
        ("plan", request.plan.is_some()),
        ("write_plan", request.layer_losses),
    ];
    let Some((option, _)) = options.into_iter().find(|(_, is_set)| *is_set) else { return Ok(()) };
    let scheme = request.scheme;
    if scheme.of_weights() != Scheme::W4 {
        let message =
            format!("layers keep 8 bits in schemes of 4; expected --scheme w4 or w4a16, found {scheme}");
        return Err(Error::invalid(option, message));
    }
    if request.budget.is_some() && request.plan.is_some() {
        let message = "a plan states all widths; expected a budget or a plan, found both".to_owned();
        return Err(Error::invalid("budget", message));
    }
    if request.budget.is_some() && request.calibration == Calibration::None {
        let message =
            "the layers that lose most are measured on a text; expected --calibrate standard, found none";
        return Err(Error::invalid("budget", message.to_owned()));
    }
    Ok(())
}

/// Refuses a target for which graphs have no form of their own, and blocks that its compiler does not support.
fn check_target(target: &Target, request: &CompileRequest) -> Result<(), Error> {
    match target {
        Target::OpenVino(OpenVinoDevice::Npu) | Target::IntelNpu(_) => Ok(()),
        Target::OpenVino(_) => Err(Error::invalid(
            "target",
            format!(
                "{target} compiles its graphs during the load, not ahead of time; expected qnn:CHIP, or --context N for the \
                 graphs that it loads"
            ),
        )),
        Target::Qnn(_)
            if request.block == Some(BlockSize::Channel) && request.scheme.activation_bits().is_none() =>
        {
            let message = format!(
                "{target} computes with one scale per channel only if activations are integers; expected a number of \
                 elements, as in 32, or --scheme w8a16"
            );
            Err(Error::invalid("block", message))
        }
        Target::Qnn(_) => Ok(()),
    }
}

/// Returns the targets of a package with an ahead-of-time compiler.
pub(crate) fn ahead_of_time(targets: &[Target]) -> impl Iterator<Item = &Target> {
    targets.iter().filter(|target| matches!(target, Target::Qnn(_) | Target::IntelNpu(_)))
}

/// Size of the contexts for a target of several chips, whose graphs cannot share weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsharedWeights {
    /// Target.
    pub target: Target,
    /// Bytes of the compiled files.
    pub bytes: u64,
    /// Approximate size if graphs of the same layers shared their weights, as those for one chip do.
    pub shared: u64,
}

/// Returns the targets of a package whose contexts would be smaller if their graphs shared weights.
pub fn unshared_weights(manifest: &Manifest) -> Vec<UnsharedWeights> {
    manifest
        .recipe
        .targets
        .iter()
        .filter(|target| matches!(target, Target::Qnn(chips) if chips.len() > 1))
        .map(|target| weights_for(manifest, target))
        .filter(|weights| weights.shared < weights.bytes)
        .collect()
}

/// Returns the sizes of a target's contexts.
fn weights_for(manifest: &Manifest, target: &Target) -> UnsharedWeights {
    let mut bytes = 0;
    let mut largest = BTreeMap::new();
    for context in manifest.contexts.iter().filter(|context| context.target == *target) {
        let binary = context.file.strip_suffix(".onnx").map(|stem| format!("{stem}{BINARY_SUFFIX}"));
        let files = [Some(&context.file), binary.as_ref()].into_iter().flatten();
        let size = files.filter_map(|file| Some(manifest.files.get(file)?.bytes)).sum::<u64>();
        let entry = manifest.every_graph().find(|graph| graph.file == context.graph);
        let shared = largest.entry(entry.map(ContextGroup::of)).or_insert(0);
        bytes += size;
        *shared = size.max(*shared);
    }
    UnsharedWeights { target: target.clone(), bytes, shared: largest.into_values().sum() }
}

/// Graphs that share weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ContextGroup {
    /// The encoder of a model that transcribes speech.
    Encoder,
    /// Layers from this one on.
    Layers(usize),
    Head,
    Vision,
    Audio,
}

impl ContextGroup {
    fn of(entry: &GraphEntry) -> Self {
        match entry.part {
            Part::Head { .. } => Self::Head,
            Part::Layers { range, .. } => Self::Layers(range.map_or(0, |range| range.first)),
            Part::Encoder => Self::Encoder,
            Part::Vision => Self::Vision,
            Part::Audio => Self::Audio,
            Part::Whole | Part::Chunk { .. } | Part::Bucket { .. } | Part::Decoder => Self::Layers(0),
        }
    }
}

/// Compiles every static graph of the package in `folder` for a target, and enters the contexts into its manifest.
pub(crate) fn compile_for(
    library: &Library,
    target: &Target,
    folder: &Path,
    manifest: &mut Manifest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    if let Target::IntelNpu(chip) = target {
        return intel_blobs::compile_for(library, *chip, folder, manifest, progress, cancel);
    }

    let runtime = cpu_runtime(library, progress, cancel)?;
    let device = load_compiler(library, runtime, target, progress, cancel)?;
    let compiler = cache_key::provider(target.ep());
    let groups = groups(folder, manifest)?;
    let stem = format!("contexts/{}", target.file_stem());
    let contexts = folder.join(&stem);
    fs::create_dir_all(&contexts).map_err(Error::io("create", &contexts))?;

    let all = groups.iter().map(Vec::len).sum::<usize>() as u64;
    let stage = Stage::start(progress, format!("Compiling for {target}"), Unit::Items, Some(all));
    // After a failed compile there is no package for `narthex check`, so the next step first builds one without a
    // target.
    let name = manifest.name.clone();
    let scheme = manifest.recipe.scheme;

    let mut compiled = 0;
    for graphs in groups {
        let paths: Vec<(PathBuf, PathBuf)> =
            graphs.iter().map(|graph| (folder.join(graph), contexts.join(graph))).collect();
        let jobs: Vec<Job<'_>> = paths.iter().map(|(graph, context)| Job { graph, context }).collect();
        let weights = weights(target, &jobs);
        let placements =
            precompile(runtime, &device, &jobs, weights, FallbackPolicy::Refused, &mut |count| {
                stage.advance((compiled + count) as u64);
                if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
        let placements = placements.map_err(|error| {
            fallback::explain(folder, &device, error.into(), |target: &Target| {
                format!(
                    "compile with `--context` instead of `--target`, which needs no vendor's compiler; then \
                     `narthex check {name}@{scheme} --target {target}` bisects the graph to the failing nodes"
                )
            })
        })?;
        compiled += graphs.len();
        for (graph, placement) in graphs.into_iter().zip(&placements) {
            let file = format!("{stem}/{graph}");
            check_context(&folder.join(&file), manifest)?;
            let target = target.clone();
            let compiler = compiler.clone();
            let placement = record(placement);
            manifest.contexts.push(Context { target, graph, file, compiler, placement });
        }
    }
    Ok(package::add_files(folder, manifest, &list_files(&contexts, &stem)?)?)
}

/// Groups the graphs that share weights: those of one part of the layers, or an encoder's. A head joins the only part of
/// the layers if there is room for it. The encoder of speech and the towers are groups of their own.
fn groups(folder: &Path, manifest: &Manifest) -> Result<Vec<Vec<String>>, Error> {
    let mut groups = BTreeMap::<ContextGroup, Vec<String>>::new();
    for entry in manifest.every_graph().filter(|graph| graph.variant == Variant::Static) {
        groups.entry(ContextGroup::of(entry)).or_default().push(entry.file.clone());
    }

    let mut layers = groups.iter().filter(|(group, _)| matches!(group, ContextGroup::Layers(_)));
    if let (Some((&only, graphs)), None, Some([head])) =
        (layers.next(), layers.next(), groups.get(&ContextGroup::Head).map(Vec::as_slice))
    {
        let joined = graphs.iter().take(1).chain([head]);
        let bytes = joined.map(|graph| weight_bytes(folder, graph, manifest)).sum::<Result<u64, Error>>()?;
        if bytes <= manifest.recipe.part_bytes {
            let head = groups.remove(&ContextGroup::Head).unwrap_or_default();
            groups.entry(only).or_default().extend(head);
        }
    }
    Ok(groups.into_values().collect())
}

/// Returns the bytes of a graph's weights.
fn weight_bytes(folder: &Path, file: &str, manifest: &Manifest) -> Result<u64, Error> {
    let graph = decode(&folder.join(file), manifest)?;
    Ok(graph.weight_bytes())
}

/// Graphs for one chip share their weights. Qualcomm's compiler cannot share weights among several chips.
fn weights(target: &Target, jobs: &[Job<'_>]) -> Weights {
    match target {
        Target::Qnn(chips) if chips.len() == 1 && jobs.len() > 1 => Weights::Shared,
        Target::Qnn(_) | Target::OpenVino(_) | Target::IntelNpu(_) => Weights::Separate,
    }
}

/// Loads the compiler of a target into ONNX Runtime, and installs it on first need.
fn load_compiler(
    library: &Library,
    runtime: &Runtime,
    target: &Target,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<Device, Error> {
    let chips = chips(target)?;
    let kind = Ep::Qnn;
    let plugin = match runtimes::locate(&library.store, kind) {
        Some(info) => info,
        None => {
            let note = format!("Installing the {kind} runtime, which is not installed yet.");
            progress.event(Progress::Note(note));
            runtimes::install(&library.store, kind, &WheelOrigin::Index, progress, cancel.flag())?
        }
    };
    register_verified(library, runtime, &plugin, progress, cancel)?;
    Ok(Device::Qnn(QnnOptions::new(&plugin.library, chips)))
}

/// Returns the chips of a target with an ahead-of-time compiler.
fn chips(target: &Target) -> Result<&[QnnChip], Error> {
    match target {
        Target::Qnn(chips) => Ok(chips),
        Target::OpenVino(_) | Target::IntelNpu(_) => Err(Error::invalid(
            "target",
            format!("{target} has no ahead-of-time compiler; expected qnn:CHIP"),
        )),
    }
}

fn record(placement: &Placement) -> PlacementRecord {
    let nodes = placement
        .ops_per_ep()
        .into_iter()
        .map(|(ep, ops)| (ep, ops.into_iter().map(|(op, count)| (op.to_owned(), count)).collect()))
        .collect();
    PlacementRecord { subgraphs: placement.subgraphs.clone(), nodes }
}

/// Checks that the whole graph is inside its context.
fn check_context(path: &Path, manifest: &Manifest) -> Result<(), Error> {
    let graph = decode(path, manifest)?;
    let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.as_str()).collect();
    if ops == [CONTEXT_OP] {
        return Ok(());
    }
    let reason = format!("{}: expected one {CONTEXT_OP} node, found {ops:?}", path.display());
    Err(bad_package(manifest, reason))
}
