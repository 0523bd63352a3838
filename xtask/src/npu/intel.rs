//! `cargo xtask npu --target openvino`: compiles models for Intel's NPUs with Intel's own compiler, which needs no NPU.
//!
//! `narthex compile` runs the compiler; on Linux, under wine. A graph that compiles has not run anywhere, so the record
//! states bytes and seconds, and nothing about results or speed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, bail, ensure};
use xtask_tools::{process, record, session::Session, terminal, workspace::Workspace};

use super::NpuArgs;
use crate::{
    platforms::{tools, wine},
    test,
};

/// Chips by their names in `--target`, one of each platform.
const CHIPS: [&str; 4] = ["meteor-lake", "lunar-lake", "panther-lake", "npu-5020"];

/// Schemes without `--scheme`.
const SCHEMES: [&str; 2] = ["w8", "w8a16"];

/// Folders of tiny checkpoints, relative to the root.
const DECODERS: &str = "crates/checkpoint/tests/goldens/families";
const ENCODERS: &str = "crates/device/tests/goldens/encoders";

/// Options for tiny checkpoints. The files of encoders state no pooling.
const TINY_DECODER: &[&str] = &["--context", "64", "--prefill", "16"];
const TINY_ENCODER: &[&str] = &["--pooling", "mean"];

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
    /// Further options of `narthex compile`.
    options: &'static [&'static str],
}

/// Blob of a graph, as the program reports it.
#[derive(Debug, PartialEq, Eq)]
struct Blob {
    graph: String,
    bytes: String,
    platform: String,
    seconds: String,
}

/// Results of all compiles, for the record.
#[derive(Debug, Default)]
struct Results {
    /// Blobs by chip, for each model, scheme and graph in the order of the compiles.
    blobs: Vec<([String; 3], BTreeMap<&'static str, Blob>)>,
    /// Compiles that failed, with the reason.
    refusals: Vec<String>,
}

impl Results {
    /// Adds the blobs of a model and a scheme for a chip.
    fn add(&mut self, model: &str, scheme: &str, chip: &'static str, blobs: Vec<Blob>) {
        for blob in blobs {
            let key = [model, scheme, &blob.graph].map(str::to_owned);
            match self.blobs.iter_mut().find(|(other, _)| *other == key) {
                Some((_, chips)) => {
                    chips.insert(chip, blob);
                }
                None => self.blobs.push((key, BTreeMap::from([(chip, blob)]))),
            }
        }
    }

    /// Adds a refusal, unless it is known from another chip.
    fn refuse(&mut self, refusal: String) {
        if !self.refusals.contains(&refusal) {
            self.refusals.push(refusal);
        }
    }
}

/// Compiles models for chips. The arguments restrict models, chips and schemes to some names.
pub(super) fn run(workspace: &Workspace, args: &NpuArgs) -> anyhow::Result<()> {
    let NpuArgs { model: models, chip: chips, scheme: schemes, record, .. } = args;
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
    let schemes: Vec<&str> = match schemes.is_empty() {
        true => SCHEMES.to_vec(),
        false => schemes.iter().map(String::as_str).collect(),
    };
    let is_selected =
        |names: &[String], name: &str| names.is_empty() || names.iter().any(|other| other == name);
    let mut results = Results::default();
    let mut failed = 0;
    for model in all.iter().filter(|model| is_selected(models, &model.name)) {
        for scheme in &schemes {
            for chip in CHIPS.into_iter().filter(|chip| is_selected(chips, chip)) {
                failed += usize::from(!compile(&session, &narthex, model, scheme, chip, &mut results)?);
            }
        }
    }
    fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;

    if record.record {
        record::write(workspace, record::CONFORMANCE, "openvino-npu", &report(&commit, &results))?;
    }
    ensure!(failed == 0, "{failed} compiles of a model for a chip failed");
    terminal::line("npu: Intel's compiler took every graph");
    Ok(())
}

/// Returns every model. Copies the tiny checkpoints to a new folder, with a tokenizer each.
fn all_models(workspace: &Workspace, folder: &Path) -> anyhow::Result<Vec<SourceModel>> {
    let _ = fs::remove_dir_all(folder);
    let tokenizer = workspace.root.join(TOKENIZER);
    let mut models = Vec::new();
    for checkpoints in [DECODERS, ENCODERS] {
        let mut sources: Vec<PathBuf> = fs::read_dir(workspace.root.join(checkpoints))
            .with_context(|| checkpoints.to_owned())?
            .map(|entry| Ok(entry?.path()))
            .collect::<anyhow::Result<_>>()?;
        sources.retain(|source| source.join("config.json").is_file());
        sources.sort();
        for source in sources {
            let options = if checkpoints == ENCODERS { TINY_ENCODER } else { TINY_DECODER };
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
            models.push(SourceModel { name, source: copy, options });
        }
    }
    let published = |name: &&str| SourceModel {
        name: (*name).to_owned(),
        source: name.into(),
        options: if *name == "minilm" { &[] } else { &["--context", "512", "--prefill", "64"] },
    };
    models.extend(PUBLISHED.iter().map(published));
    Ok(models)
}

/// Compiles a model in a scheme for a chip. Returns `false` if a graph was refused.
fn compile(
    session: &Session<'_>,
    narthex: &Path,
    model: &SourceModel,
    scheme: &str,
    chip: &'static str,
    results: &mut Results,
) -> anyhow::Result<bool> {
    const NAME: &str = "npu-check";
    let name = &model.name;
    let target = format!("openvino:{chip}");
    let mut command = session.command(narthex);
    command.arg("compile").arg(&model.source).args(model.options);
    command.args(["--name", NAME, "--scheme", scheme, "--accept-loss", "--target", &target]);
    let output = command.stdout(Stdio::null()).output().context("narthex cannot be started")?;
    let text = String::from_utf8_lossy(&output.stderr);
    let is_whole = output.status.success();
    if is_whole {
        process::output(session.command(narthex).args(["rm", "--yes", NAME]))?;
    }

    let blobs: Vec<Blob> = text.lines().filter_map(blob).collect();
    ensure!(!is_whole || !blobs.is_empty(), "{name}: narthex compile reported no graph: {text}");
    for Blob { graph, bytes, platform, seconds } in &blobs {
        terminal::line(format!("{name} {scheme} {platform} {graph}: {bytes} bytes, {seconds} s"));
    }
    results.add(name, scheme, chip, blobs);
    if is_whole {
        return Ok(true);
    }
    let is_unsupported = output.status.code() == Some(UNSUPPORTED);
    let reason = reason(&text);
    let refusal = match is_unsupported {
        true => format!("{name} has no graphs for NPUs: {reason}"),
        false => format!("{name} in {scheme} is refused for {chip}: {reason}"),
    };
    terminal::line(&refusal);
    results.refuse(refusal);
    Ok(is_unsupported)
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

/// Returns the reason of an error.
fn reason(text: &str) -> String {
    let error = text.lines().find_map(|line| line.strip_prefix("error: "));
    error.unwrap_or("no error was printed").to_owned()
}

fn report(commit: &str, results: &Results) -> String {
    let list = record::list(&results.refusals);
    format!(
        "# Graphs for Intel's NPUs in Intel's compiler, {}\n\nCommit {commit}; OpenVINO's NPU compiler of the version that the \
         commit pins (`narthex runtime install openvino-compiler`); {}, no NPU. `narthex compile MODEL --scheme SCHEME --target \
         openvino:CHIP`; tiny checkpoints with a context of 64 and prefill of 16 tokens, models with published weights with 512 \
         and 64. A cell states that the graph was compiled for the chip, the bytes of the blob and the seconds of the compile. \
         Nothing ran on an NPU, so nothing here is about numbers or speed.\n\n{}\nNot compiled:\n\n{list}",
        record::today(),
        record::platform(),
        table(results),
    )
}

/// Returns a row for each graph, with a column for each chip.
fn table(results: &Results) -> String {
    let mut text = format!("| Model | Scheme | Graph | {} |\n|---|---|---|", CHIPS.join(" | "));
    text.push_str(&"---:|".repeat(CHIPS.len()));
    text.push('\n');
    for ([model, scheme, graph], blobs) in &results.blobs {
        let cells = CHIPS.map(|chip| match blobs.get(chip) {
            Some(Blob { bytes, seconds, .. }) => format!("{bytes}, {seconds} s"),
            None => "–".to_owned(),
        });
        text.push_str(&format!("| {model} | {scheme} | `{graph}` | {} |\n", cells.join(" | ")));
    }
    text
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
        assert_eq!(reason("note: 1\nerror: a | b\nhint: c"), "a | b");
        assert_eq!(reason("note: 1"), "no error was printed");
    }

    #[test]
    fn a_row_has_the_blobs_of_all_chips() {
        let blob = |bytes: &str| Blob {
            graph: "head.onnx".to_owned(),
            bytes: bytes.to_owned(),
            platform: String::new(),
            seconds: "0.4".to_owned(),
        };
        let mut results = Results::default();
        results.add("llama", "w8", "meteor-lake", vec![blob("10")]);
        results.add("llama", "w8", "panther-lake", vec![blob("30")]);
        results.add("llama", "w8a16", "meteor-lake", vec![blob("20")]);
        for _ in 0..2 {
            results.refuse("gpt-oss has no graphs".to_owned());
        }
        assert_eq!(results.refusals.len(), 1);
        let table = table(&results);
        let rows: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| llama | w8 | `head.onnx` | 10, 0.4 s | – | 30, 0.4 s | – |",
                "| llama | w8a16 | `head.onnx` | 20, 0.4 s | – | – | – |"
            ]
        );
    }

    #[test]
    fn every_tiny_checkpoint_is_compiled_with_a_tokenizer() {
        let workspace = Workspace::read().unwrap();
        let folder = std::env::temp_dir().join(format!("narthex-npu-models-{}", std::process::id()));
        let models = all_models(&workspace, &folder).unwrap();
        for name in ["llama", "gemma3n", "lfm2", "bert", "distilbert", "mobilebert"] {
            let model = models.iter().find(|model| model.name == name).unwrap();
            assert_eq!(model.options.contains(&"--pooling"), name.contains("bert"), "{name}");
            for file in ["config.json", "model.safetensors", "tokenizer.json"] {
                assert!(model.source.join(file).is_file(), "{name}/{file}");
            }
        }
        assert!(models.iter().any(|model| model.source == Path::new("smollm2:135m")));
        fs::remove_dir_all(folder).unwrap();
    }
}
