//! `cargo xtask npu --target openvino`: compiles models for Intel's NPUs with Intel's own compiler, which needs no NPU.
//!
//! `narthex compile` runs the compiler; on Linux, under wine. A graph that compiles has not run anywhere, so the record
//! states bytes and seconds, and nothing about results or speed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail, ensure};
use xtask_tools::{
    process,
    record::{self, RecordArgs},
    session::Session,
    terminal,
    workspace::Workspace,
};

use crate::{
    platforms::{tools, wine},
    test,
};

/// Chips by their names in `--target`, one of each platform.
const CHIPS: [&str; 4] = ["meteor-lake", "lunar-lake", "panther-lake", "npu-5020"];

/// Folders of tiny checkpoints, relative to the root.
const CHECKPOINTS: [&str; 2] =
    ["crates/checkpoint/tests/goldens/families", "crates/device/tests/goldens/encoders"];

/// Tokenizer of the checkpoints that have none, relative to the root.
const TOKENIZER: &str = "crates/checkpoint/tests/goldens/families/tokenizer.json";

/// Models with published weights.
const PUBLISHED: [&str; 3] = ["smollm2:135m", "gemma3:270m", "minilm"];

/// Exit code of `narthex` for a model that has no graphs for NPUs.
const UNSUPPORTED: i32 = 10;

/// A model to compile.
struct SourceModel {
    name: String,
    /// The model for `narthex compile`: a name or a path.
    source: PathBuf,
    /// Length of the context and of a prefill step; `None` for those of the program.
    shapes: Option<[&'static str; 2]>,
}

/// Blob of a graph, as the program reports it.
#[derive(Debug, PartialEq, Eq)]
struct Blob {
    graph: String,
    bytes: String,
    platform: String,
    seconds: String,
}

/// Compiles models for chips; `models` and `chips` restrict both to some names.
pub(super) fn run(
    workspace: &Workspace,
    models: &[String],
    chips: &[String],
    record: RecordArgs,
) -> anyhow::Result<()> {
    if let Some(unknown) = chips.iter().find(|chip| !CHIPS.contains(&chip.as_str())) {
        bail!("chip {unknown}: expected one of {}", CHIPS.join(", "));
    }
    let (commit, session) = test::prepare(workspace)?;
    let narthex = session.build_narthex()?;
    if cfg!(unix) {
        tools::install(&session, &wine::NEEDS)?;
    }
    process::run(session.command(&narthex).args(["runtime", "install", "openvino-compiler"]))?;

    let folder = workspace.target.join("npu-models");
    let all = all_models(workspace, &folder)?;
    if let Some(unknown) = models.iter().find(|name| all.iter().all(|model| model.name != **name)) {
        let names: Vec<&str> = all.iter().map(|model| model.name.as_str()).collect();
        bail!("model {unknown}: expected one of {}", names.join(", "));
    }
    let is_selected =
        |names: &[String], name: &str| names.is_empty() || names.iter().any(|other| other == name);
    let mut rows = Vec::new();
    let mut failed = 0;
    for model in all.iter().filter(|model| is_selected(models, &model.name)) {
        for chip in CHIPS.iter().filter(|chip| is_selected(chips, chip)) {
            let (result, failure) = compile(&session, &narthex, model, chip)?;
            failed += usize::from(failure);
            result.iter().for_each(terminal::line);
            rows.extend(result);
        }
    }
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;

    if record.record {
        record::write(workspace, record::CONFORMANCE, "openvino-npu", &report(&commit, &rows))?;
    }
    ensure!(failed == 0, "{failed} models could not be compiled for a chip");
    terminal::line("npu: Intel's compiler took every graph");
    Ok(())
}

/// Returns every model. Copies the tiny checkpoints to a new folder, with a tokenizer each.
fn all_models(workspace: &Workspace, folder: &Path) -> anyhow::Result<Vec<SourceModel>> {
    let _ = fs::remove_dir_all(folder);
    let tokenizer = workspace.root.join(TOKENIZER);
    let mut models = Vec::new();
    for checkpoints in CHECKPOINTS {
        let mut sources: Vec<PathBuf> = fs::read_dir(workspace.root.join(checkpoints))
            .with_context(|| checkpoints.to_owned())?
            .map(|entry| Ok(entry?.path()))
            .collect::<anyhow::Result<_>>()?;
        sources.retain(|source| source.join("config.json").is_file());
        sources.sort();
        for source in sources {
            let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let copy = folder.join(&name);
            fs::create_dir_all(&copy).with_context(|| copy.display().to_string())?;
            let own = source.join("tokenizer.json");
            let tokenizer = if own.is_file() { &own } else { &tokenizer };
            fs::copy(tokenizer, copy.join("tokenizer.json"))
                .with_context(|| tokenizer.display().to_string())?;
            for file in ["config.json", "model.safetensors"] {
                fs::copy(source.join(file), copy.join(file)).with_context(|| format!("{name}/{file}"))?;
            }
            models.push(SourceModel { name, source: copy, shapes: Some(["64", "16"]) });
        }
    }
    let published = |name: &&str| SourceModel {
        name: (*name).to_owned(),
        source: name.into(),
        shapes: (*name != "minilm").then_some(["512", "64"]),
    };
    models.extend(PUBLISHED.iter().map(published));
    Ok(models)
}

/// Compiles a model in `w8` for a chip. Returns the rows of the table, and whether a graph was refused.
fn compile(
    session: &Session<'_>,
    narthex: &Path,
    model: &SourceModel,
    chip: &str,
) -> anyhow::Result<(Vec<String>, bool)> {
    const NAME: &str = "npu-check";
    let mut command = session.command(narthex);
    command.arg("compile").arg(&model.source);
    command.args([
        "--name",
        NAME,
        "--scheme",
        "w8",
        "--accept-loss",
        "--target",
        &format!("openvino:{chip}"),
    ]);
    if let Some([context, prefill]) = model.shapes {
        command.args(["--context", context, "--prefill", prefill]);
    }
    let output = command.stdout(Stdio::null()).output().context("narthex cannot be started")?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        process::output(session.command(narthex).args(["rm", "--yes", NAME]))?;
    }

    let name = &model.name;
    let row = |blob: Blob| {
        let Blob { graph, bytes, platform, seconds } = blob;
        format!("| {name} | {platform} ({chip}) | `{graph}` | compiled | {seconds} | {bytes} |")
    };
    let mut rows: Vec<String> = text.lines().filter_map(blob).map(row).collect();
    let is_unsupported = output.status.code() == Some(UNSUPPORTED);
    let failed = !output.status.success() && !is_unsupported;
    if !output.status.success() {
        let reason = reason(&text);
        let result = if is_unsupported { "no graphs for NPUs" } else { "refused" };
        rows.push(format!("| {name} | {chip} | – | {result}: {reason} | – | – |"));
    }
    ensure!(!rows.is_empty(), "{name}: narthex compile reported no graph: {text}");
    Ok((rows, failed))
}

/// Returns the blob that a line reports, as `head.onnx: 29184129 bytes for NPU 4000 in 9.6 s`.
fn blob(line: &str) -> Option<Blob> {
    let (before, after) = line.split_once(" bytes for NPU ")?;
    let (graph, bytes) = before.rsplit_once(": ")?;
    let (platform, seconds) = after.split_once(" in ")?;
    let graph = graph.rsplit_once(' ').map_or(graph, |(_, graph)| graph);
    let seconds = seconds.strip_suffix(" s")?;
    let [graph, bytes, platform, seconds] = [graph, bytes, platform, seconds].map(str::to_owned);
    Some(Blob { graph, bytes, platform, seconds })
}

/// Returns the reason of an error, in a cell of a table.
fn reason(text: &str) -> String {
    let error = text.lines().find_map(|line| line.strip_prefix("error: "));
    error.unwrap_or("no error was printed").replace('|', "\\|")
}

fn report(commit: &str, rows: &[String]) -> String {
    let list: String = rows.iter().map(|row| format!("{row}\n")).collect();
    format!(
        "# Graphs for Intel's NPUs in Intel's compiler, {}\n\nCommit {commit}; OpenVINO's NPU compiler of the version that the \
         commit pins (`narthex runtime install openvino-compiler`); {}, no NPU. `narthex compile MODEL --scheme w8 --target \
         openvino:CHIP`; tiny checkpoints with a context of 64 and prefill of 16 tokens, models with published weights with 512 \
         and 64. A row states that a graph was compiled for the chip. Nothing ran on an NPU, so nothing here is about numbers or \
         speed.\n\n| SourceModel | Chip | Graph | Result | Seconds | Bytes |\n|---|---|---|---|---:|---:|\n{list}",
        record::today(),
        record::platform(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blobs_are_recognised() {
        let parts = |line| blob(line).map(|blob| [blob.graph, blob.bytes, blob.platform, blob.seconds]);
        let expect = ["head.onnx", "29184129", "4000", "9.6"].map(str::to_owned);
        assert_eq!(parts("head.onnx: 29184129 bytes for NPU 4000 in 9.6 s"), Some(expect.clone()));
        assert_eq!(parts("note: head.onnx: 29184129 bytes for NPU 4000 in 9.6 s"), Some(expect));
        assert_eq!(parts("note: Compiling for openvino:lunar-lake"), None);
        assert_eq!(parts("head.onnx: 12 bytes"), None);
    }

    #[test]
    fn reasons_are_the_program_s_errors() {
        assert_eq!(reason("note: 1\nerror: a | b\nhint: c"), "a \\| b");
        assert_eq!(reason("note: 1"), "no error was printed");
    }

    #[test]
    fn every_tiny_checkpoint_is_compiled_with_a_tokenizer() {
        let workspace = Workspace::read().unwrap();
        let folder = std::env::temp_dir().join(format!("narthex-npu-models-{}", std::process::id()));
        let models = all_models(&workspace, &folder).unwrap();
        for name in ["llama", "gemma3n", "lfm2", "bert", "distilbert", "mobilebert"] {
            let model = models.iter().find(|model| model.name == name).unwrap();
            for file in ["config.json", "model.safetensors", "tokenizer.json"] {
                assert!(model.source.join(file).is_file(), "{name}/{file}");
            }
        }
        assert!(models.iter().any(|model| model.source == Path::new("smollm2:135m")));
        fs::remove_dir_all(folder).unwrap();
    }
}
