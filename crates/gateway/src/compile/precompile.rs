//! Ahead-of-time compiles for NPUs: a package's fixed graphs go through a vendor's compiler.

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
    precompile::{Job, Rest, Weights, precompile},
    runtime::Runtime,
};
use narthex_graph::{Graph, context::CONTEXT_OP};
use narthex_spec::{
    Ep, ProgressSink, Scheme, Target, Variant,
    manifest::{Context, GraphEntry, Manifest, Part, PlacementRecord},
    progress::{Progress, Stage, Unit},
    target::QnnChip,
};

use crate::{
    cancel::Cancel,
    compile::request::CompileRequest,
    error::Error,
    gateway::Inner,
    load::{cache_key, fallback},
};

/// What the name of a context's binary has in the place of `.onnx`.
const BINARY: &str = "_qnn.bin";

/// Refuses what no vendor's compiler can be asked for, before anything is fetched or made.
pub(crate) fn refuse(request: &CompileRequest) -> Result<(), Error> {
    if let Some(target) = &request.target {
        chips(target)?;
    }
    let passes = request.passes.as_ref().is_some_and(|passes| !passes.is_empty());
    let asks = [
        ("target", request.target.is_some()),
        ("context", !request.contexts.is_empty()),
        ("prefill", !request.prefill.is_empty()),
        ("pass", passes),
    ];
    match asks.into_iter().find(|(_, asked)| *asked && request.scheme == Scheme::F32) {
        Some((option, _)) => Err(Error::invalid(
            "scheme",
            format!(
                "--{option} makes graphs for NPUs, which compute in half precision; expected w8, w4 or f16, found f32"
            ),
        )),
        None => Ok(()),
    }
}

/// What a target of several chips takes, whose graphs have no weights in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unshared {
    /// The target.
    pub target: Target,
    /// Bytes of its compiled files.
    pub bytes: u64,
    /// About what they would be if graphs of the same layers shared their weights, as those for one chip do.
    pub shared: u64,
}

/// Of the targets that a package is compiled for, those whose graphs could have shared weights and do not.
pub fn unshared(manifest: &Manifest) -> Vec<Unshared> {
    let several = |target: &&Target| matches!(target, Target::Qnn(chips) if chips.len() > 1);
    let cost = |target: &Target| {
        let (mut bytes, mut largest) = (0, BTreeMap::new());
        for context in manifest.contexts.iter().filter(|context| context.target == *target) {
            let binary = context.file.strip_suffix(".onnx").map(|stem| format!("{stem}{BINARY}"));
            let files = [Some(&context.file), binary.as_ref()].into_iter().flatten();
            let size = files.filter_map(|file| Some(manifest.files.get(file)?.bytes)).sum::<u64>();
            let entry = manifest.graphs.iter().find(|graph| graph.file == context.graph);
            let most = largest.entry(entry.and_then(first_layer)).or_insert(0);
            (bytes, *most) = (bytes + size, size.max(*most));
        }
        Unshared { target: target.clone(), bytes, shared: largest.into_values().sum() }
    };
    let targets = manifest.recipe.targets.iter().filter(several);
    targets.map(cost).filter(|cost| cost.shared < cost.bytes).collect()
}

/// The first of the layers that a graph has; `None` for a head.
fn first_layer(entry: &GraphEntry) -> Option<usize> {
    match entry.part {
        Part::Head { .. } => None,
        Part::Layers { range, .. } => Some(range.map_or(0, |range| range.first)),
        Part::Whole | Part::Chunk { .. } | Part::Bucket { .. } => Some(0),
    }
}

/// Compiles every fixed graph of the package in `folder` for a target, and enters the contexts into its manifest.
pub(crate) fn compile_for(
    inner: &Inner,
    target: &Target,
    (folder, manifest): (&Path, &mut Manifest),
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    let (device, compiler) = device(inner, target, progress, cancel)?;
    let runtime = inner.runtime(progress, cancel)?;
    let groups = groups(folder, manifest)?;
    let stem = format!("contexts/{}", target.file_stem());
    let place = folder.join(&stem);
    fs::create_dir_all(&place)
        .map_err(|source| Error::Io { what: format!("cannot create {}", place.display()), source })?;
    let all = groups.iter().map(Vec::len).sum::<usize>() as u64;
    let stage = Stage::start(progress, format!("Compiling for {target}"), Unit::Items, Some(all));
    // The package ends with the compile, so there would be nothing to check.
    let (name, scheme) = (manifest.name.clone(), manifest.recipe.scheme);
    let next = |target: &Target| {
        format!(
            "compile it with `--context` in the place of `--target`, which asks no vendor's compiler; then `narthex check \
             {name}@{scheme} --target {target}` takes the graph apart down to the nodes at fault"
        )
    };
    let mut compiled = 0;
    for graphs in groups {
        let paths: Vec<(PathBuf, PathBuf)> =
            graphs.iter().map(|graph| (folder.join(graph), place.join(graph))).collect();
        let jobs: Vec<Job<'_>> = paths.iter().map(|(graph, context)| Job { graph, context }).collect();
        let mut done = |count: usize| {
            stage.advance((compiled + count) as u64);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let placements =
            precompile(runtime, &device, &jobs, weights(target, &jobs), Rest::Refused, &mut done)
                .map_err(|error| fallback::explained(folder, &device, error.into(), next))?;
        compiled += graphs.len();
        for (graph, placement) in graphs.into_iter().zip(&placements) {
            let file = format!("{stem}/{graph}");
            one_context(&folder.join(&file), manifest)?;
            let (target, compiler) = (target.clone(), compiler.clone());
            let placement = record(placement);
            manifest.contexts.push(Context { target, graph, file, compiler, placement });
        }
    }
    Ok(package::adopt(folder, manifest, &files(&place, &stem)?)?)
}

/// The graphs of each context: those of one part of the layers, or an encoder's, which read the same weights. A head joins
/// them where there is one part, and room for it.
fn groups(folder: &Path, manifest: &Manifest) -> Result<Vec<Vec<String>>, Error> {
    let (mut parts, mut head) = (BTreeMap::<usize, Vec<String>>::new(), None);
    for entry in manifest.graphs.iter().filter(|graph| graph.variant == Variant::Static) {
        match first_layer(entry) {
            Some(first) => parts.entry(first).or_default().push(entry.file.clone()),
            None => head = Some(entry.file.clone()),
        }
    }
    let mut groups: Vec<Vec<String>> = parts.into_values().collect();
    if let Some(head) = head {
        let room = match groups.as_slice() {
            [only] => {
                let bytes =
                    only.iter().take(1).chain([&head]).map(|graph| weight_bytes(folder, graph, manifest));
                bytes.sum::<Result<u64, Error>>()? <= manifest.recipe.part_bytes
            }
            _ => false,
        };
        match groups.last_mut().filter(|_| room) {
            Some(only) => only.push(head),
            None => groups.push(vec![head]),
        }
    }
    Ok(groups)
}

/// Bytes of a graph's weights.
fn weight_bytes(folder: &Path, file: &str, manifest: &Manifest) -> Result<u64, Error> {
    let graph = decode(&folder.join(file), manifest)?;
    Ok(graph.weight_bytes())
}

/// One chip's graphs share their weights. Qualcomm's compiler cannot share them among several chips.
fn weights(target: &Target, jobs: &[Job<'_>]) -> Weights {
    match target {
        Target::Qnn(chips) if chips.len() == 1 && jobs.len() > 1 => Weights::Shared,
        Target::Qnn(_) | Target::OpenVino(_) => Weights::Apart,
    }
}

/// The device that compiles for a target, its provider loaded, and the compiler's name and version.
fn device(
    inner: &Inner,
    target: &Target,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(Device, String), Error> {
    let chips = chips(target)?;
    let (runtime, library) = plugin(inner, Ep::Qnn, progress, cancel)?;
    runtime.register(target.ep(), &library)?;
    let compiler = cache_key::provider(target.ep());
    Ok((Device::Qnn(QnnOptions::new(&library, chips)), compiler))
}

/// The chips of a target that is compiled for ahead of time.
fn chips(target: &Target) -> Result<&[QnnChip], Error> {
    match target {
        Target::Qnn(chips) => Ok(chips),
        Target::OpenVino(_) => Err(Error::invalid(
            "target",
            format!(
                "{target} compiles its graphs when it loads them, so there is nothing to do ahead of time; expected \
                 qnn:CHIP, or --context N for the graphs that it loads"
            ),
        )),
    }
}

/// ONNX Runtime and a provider's library, which is installed on first need.
fn plugin(
    inner: &Inner,
    kind: Ep,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(&'static Runtime, PathBuf), Error> {
    let library = match runtimes::locate(&inner.store, kind) {
        Some(info) => info.library,
        None => {
            progress
                .event(Progress::Note(format!("The {kind} runtime is not installed yet; installing it.")));
            runtimes::install(&inner.store, kind, &WheelOrigin::Pip, progress, cancel.flag())?.library
        }
    };
    Ok((inner.runtime(progress, cancel)?, library))
}

fn record(placement: &Placement) -> PlacementRecord {
    let count = |ops: BTreeMap<&str, usize>| ops.into_iter().map(|(op, n)| (op.to_owned(), n)).collect();
    let nodes = placement.ops_per_ep().into_iter().map(|(ep, ops)| (ep, count(ops))).collect();
    PlacementRecord { subgraphs: placement.subgraphs.clone(), nodes }
}

/// Makes sure that nothing of the graph was left outside of its context.
fn one_context(path: &Path, manifest: &Manifest) -> Result<(), Error> {
    let graph = decode(path, manifest)?;
    let ops: Vec<&str> = graph.nodes.iter().map(|node| node.op.as_str()).collect();
    if ops == [CONTEXT_OP] {
        return Ok(());
    }
    let reason = format!("{}: expected one {CONTEXT_OP} node, found {ops:?}", path.display());
    Err(bad(manifest, reason))
}

fn decode(path: &Path, manifest: &Manifest) -> Result<Graph, Error> {
    let bytes = fs::read(path)
        .map_err(|source| Error::Io { what: format!("cannot read {}", path.display()), source })?;
    Graph::decode(&bytes).map_err(|error| bad(manifest, format!("{}: {error}", path.display())))
}

fn bad(manifest: &Manifest, reason: String) -> Error {
    Error::BadPackage { name: manifest.name.clone(), scheme: manifest.recipe.scheme, reason }
}

/// Every file in a folder, relative to the package.
fn files(place: &Path, stem: &str) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Io { what: format!("cannot list {}", place.display()), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(place).map_err(failed)? {
        names.push(format!("{stem}/{}", entry.map_err(failed)?.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names)
}
