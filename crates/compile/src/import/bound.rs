//! Bundles for one kind of device: compiled contexts, and graphs of a vendor's own operators. They are known for what they
//! are and refused with what runs them.

use std::{fs, path::Path};

use narthex_graph::Graph;
use narthex_spec::target::QnnChip;
use serde_json::Value;

use crate::{
    checkpoint::{hf::folder::Folder, limit::read_small},
    error::CompileError,
};

/// What Qualcomm's Genie keeps beside the binaries of AI Hub.
const GENIE: [&str; 2] = ["genie_config.json", "htp_backend_ext_config.json"];

/// A pipeline of several graphs (`decoder-pipeline`), as Olive and AI Hub make them for NPUs.
pub(super) fn pipeline(folder: &Path, pipeline: &Value) -> CompileError {
    let stages = match pipeline {
        Value::Array(list) => list.iter().filter_map(Value::as_object).map(serde_json::Map::len).sum(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    let files = contexts(folder);
    let what = match files {
        0 => format!("a decoder-pipeline of {stages} stages"),
        _ => format!("a decoder-pipeline of {stages} stages with {files} compiled contexts"),
    };
    error(folder, what, device(pipeline))
}

/// A graph whose session needs a vendor's own software, if the options say so.
pub(super) fn by_options(folder: &Path, options: &Value) -> Option<CompileError> {
    let library = text(options, "custom_ops_library");
    let found = provider(options)?;
    if found.starts_with("an AMD") || library.is_some() {
        let what = match library {
            Some(library) => format!("a graph of operators from {library}"),
            None => "a graph".to_owned(),
        };
        return Some(error(folder, what, Some(found)));
    }
    None
}

/// A folder that holds what AI Hub makes for Genie.
pub(super) fn genie(folder: &mut Folder) -> Option<CompileError> {
    let file = GENIE.into_iter().find(|name| folder.has(name))?;
    let settings = GENIE.iter().filter(|name| folder.has(name)).find_map(|name| {
        let bytes = read_small(&folder.file(name)).ok()?;
        device(&serde_json::from_slice::<Value>(&bytes).ok()?)
    });
    let what = format!("{} context binaries for Qualcomm's Genie ({file})", contexts(folder.path()));
    Some(error(folder.path(), what, settings.or_else(|| Some(SNAPDRAGON.to_owned()))))
}

/// A graph that only stands for what a vendor's compiler made.
pub(super) fn compiled(path: &Path, graph: &Graph) -> Option<CompileError> {
    let node = graph.nodes.iter().find(|node| node.op == "EPContext")?;
    let device = match node.text("source") {
        Some(source) if source.to_ascii_lowercase().contains("qnn") => SNAPDRAGON.to_owned(),
        Some(source) if source.to_ascii_lowercase().contains("openvino") => "an Intel NPU".to_owned(),
        Some(source) => format!("the device of {}", shortened(source)),
        None => "the device that it was compiled for".to_owned(),
    };
    Some(error(path, "a compiled context".to_owned(), Some(device)))
}

const SNAPDRAGON: &str = "a Snapdragon's NPU";

fn error(path: &Path, what: String, device: Option<String>) -> CompileError {
    let chip = QnnChip::ALL.into_iter().find(|chip| {
        device.as_ref().is_some_and(|device| device.contains(&format!("({})", chip.facts().id)))
    });
    let target = chip.map_or("qnn:x-elite", |chip| chip.facts().id);
    let target = if target.contains(':') { target.to_owned() } else { format!("qnn:{target}") };
    CompileError::Bound {
        path: path.to_owned(),
        what,
        device: device.unwrap_or_else(|| "the NPU that it was made for".to_owned()),
        instead: format!(
            "import the export for CPUs instead, or compile the checkpoint for an NPU: narthex compile MODEL --target {target}"
        ),
    }
}

/// The first device that provider options anywhere in `value` name.
fn device(value: &Value) -> Option<String> {
    let model = number(value, "soc_model").or_else(|| number(value, "soc_id"));
    let arch = text(value, "dsp_arch").and_then(|arch| arch.trim_start_matches('v').parse().ok());
    let arch = arch.or_else(|| number(value, "htp_arch"));
    let chip = QnnChip::ALL.into_iter().map(QnnChip::facts).find(|facts| match model {
        Some(model) if model > 0 => u64::from(facts.soc_model) == model,
        _ => arch == Some(u64::from(facts.htp_arch)),
    });
    match (chip, model.filter(|&model| model > 0), arch) {
        (Some(facts), ..) => Some(format!("the NPU of {} ({})", facts.title, facts.id)),
        (None, Some(model), _) => Some(format!("the NPU of the Snapdragon chip with soc_model {model}")),
        (None, None, Some(arch)) => Some(format!("a Hexagon NPU v{arch}")),
        (None, None, None) => provider(value),
    }
}

/// The provider that options name, in words.
fn provider(options: &Value) -> Option<String> {
    const KNOWN: [(&[&str], &str); 3] = [
        (&["qnn", "qnnexecutionprovider"], SNAPDRAGON),
        (&["vitisai", "vitisaiexecutionprovider", "ryzenai"], "an AMD Ryzen AI NPU"),
        (&["openvino", "openvinoexecutionprovider"], "an Intel NPU"),
    ];
    let named = |names: &[&str]| {
        find(options, 0, &|key, _| names.contains(&key.to_ascii_lowercase().as_str()).then(|| key.to_owned()))
            .is_some()
    };
    let npu = KNOWN.iter().find(|(names, _)| named(names)).map(|(_, words)| (*words).to_owned());
    npu.or_else(|| text(options, "custom_ops_library").map(|_| "an AMD Ryzen AI NPU".to_owned()))
}

/// Settings nest this deep at most.
const DEPTH: usize = 16;

/// The first entry of an object anywhere in `value` that `take` takes.
fn find<T>(value: &Value, depth: usize, take: &dyn Fn(&str, &Value) -> Option<T>) -> Option<T> {
    match value {
        _ if depth > DEPTH => None,
        Value::Object(map) => {
            map.iter().find_map(|(key, value)| take(key, value).or_else(|| find(value, depth + 1, take)))
        }
        Value::Array(list) => list.iter().find_map(|value| find(value, depth + 1, take)),
        _ => None,
    }
}

fn number(value: &Value, name: &str) -> Option<u64> {
    find(value, 0, &|key, value| {
        let wanted = (key == name).then_some(value)?;
        wanted.as_u64().or_else(|| wanted.as_str()?.parse().ok())
    })
}

fn text(value: &Value, name: &str) -> Option<String> {
    find(value, 0, &|key, value| (key == name).then(|| value.as_str().map(shortened)).flatten())
}

/// Text from outside, short enough for a message.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Binaries in a folder.
fn contexts(folder: &Path) -> usize {
    let binary = |name: &Path| name.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("bin"));
    fs::read_dir(folder).map_or(0, |entries| entries.flatten().filter(|entry| binary(&entry.path())).count())
}
