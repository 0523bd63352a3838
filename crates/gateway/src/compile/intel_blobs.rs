//! Blobs of a package's static graphs for the NPU of one Intel chip.

use std::{collections::BTreeMap, fs, path::Path, time::Instant};

use narthex_check::CompilerResult;
use narthex_compile::package;
use narthex_graph::Graph;
use narthex_spec::{
    Ep, IntelChip, ProgressSink, Target, Variant,
    manifest::{Context, Manifest, PlacementRecord},
    progress::{Progress, Stage, Unit},
};

use super::context_files::{decode, list_files};
use crate::{
    cancel::Cancel,
    error::Error,
    intel::{INSTALL, IntelCompiler},
    library::Library,
};

/// Compiles every static graph of the package in `folder` for a chip, and enters the blobs into its manifest. Without the
/// compiler, the package has only the graphs.
pub(super) fn compile_for(
    library: &Library,
    chip: IntelChip,
    folder: &Path,
    manifest: &mut Manifest,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<(), Error> {
    let target = Target::IntelNpu(chip);
    let Some(compiler) = IntelCompiler::locate(library, cancel)? else {
        let note = format!(
            "The graphs for {target} are not compiled, because Intel's compiler is not installed. To compile them, run `{INSTALL}` \
             and this command again."
        );
        progress.event(Progress::Note(note));
        return Ok(());
    };

    let stem = format!("contexts/{}", target.file_stem());
    let contexts = folder.join(&stem);
    fs::create_dir_all(&contexts).map_err(Error::io("create", &contexts))?;
    let graphs = manifest.every_graph().filter(|graph| graph.variant == Variant::Static);
    let graphs: Vec<String> = graphs.map(|graph| graph.file.clone()).collect();
    let stage =
        Stage::start(progress, format!("Compiling for {target}"), Unit::Items, Some(graphs.len() as u64));
    for (index, graph) in graphs.into_iter().enumerate() {
        let start = Instant::now();
        let nodes = decode(&folder.join(&graph), manifest)?;
        let file = format!("{stem}/{}.blob", graph.trim_end_matches(".onnx"));
        let blob = folder.join(&file);
        let answer = compiler.compile(chip, &folder.join(&graph), &blob, cancel)?;
        check_answer(&graph, answer.result(nodes.nodes.len()), manifest, &target)?;
        let bytes = fs::metadata(&blob).map_err(Error::io("read", &blob))?.len();
        progress.event(Progress::Note(format!(
            "{graph}: {bytes} bytes for NPU {} in {:.1} s",
            chip.spec().platform,
            start.elapsed().as_secs_f64()
        )));
        let compiler = format!("openvino {}", compiler.version());
        let placement = placement(&nodes);
        manifest.contexts.push(Context { target: target.clone(), graph, file, compiler, placement });
        stage.advance(index as u64 + 1);
    }
    Ok(package::add_files(folder, manifest, &list_files(&contexts, &stem)?)?)
}

/// Refuses the package of a graph that is not compiled. Then there is no package for `narthex check`, so the next step first
/// builds one without blobs.
fn check_answer(
    graph: &str,
    result: CompilerResult,
    manifest: &Manifest,
    target: &Target,
) -> Result<(), Error> {
    let reason = match result {
        CompilerResult::Whole { .. } | CompilerResult::Partly { .. } => return Ok(()),
        CompilerResult::Failed { message, .. } => message,
        CompilerResult::Ended { how, .. } => format!("Intel's compiler {how}"),
    };
    let Manifest { name, recipe, .. } = manifest;
    Err(Error::IntelCompiler {
        message: format!("{graph}: {reason}"),
        hint: format!(
            "compile with `--target openvino:npu`, which needs no compiler; then `narthex check {name}@{} --target {target}` bisects \
             the graph to the failing nodes",
            recipe.scheme
        ),
    })
}

/// Returns the placement of a graph that the compiler takes as a whole.
fn placement(graph: &Graph) -> PlacementRecord {
    let mut operators = BTreeMap::new();
    for node in &graph.nodes {
        *operators.entry(node.op.as_str().to_owned()).or_insert(0) += 1;
    }
    let ep = Ep::OpenVino;
    PlacementRecord { subgraphs: BTreeMap::from([(ep, 1)]), nodes: BTreeMap::from([(ep, operators)]) }
}
