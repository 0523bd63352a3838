//! Bundles for one kind of device: compiled contexts, and graphs of a vendor's own operators. A bundle that states how
//! it is run becomes a package for that device; others are refused with a hint.

use std::{collections::HashSet, fs, path::Path};

use narthex_checkpoint::hf::folder::Folder;
use narthex_graph::{Graph, Node, onnx::files::OnnxFile};
use narthex_spec::{Ep, Target, manifest::BoundDevice, target::QnnChip};
use serde_json::Value;

use crate::error::{CompileError, Result};

/// Configuration files of Qualcomm's Genie, which are next to the binaries of AI Hub.
const GENIE: [&str; 2] = ["genie_config.json", "htp_backend_ext_config.json"];

/// Returns the device of a pipeline of several graphs (`decoder-pipeline`) with compiled contexts, as Olive and AI Hub
/// write for NPUs.
///
/// # Errors
/// [`CompileError::Bound`] for contexts of other compilers than Qualcomm's.
pub(super) fn pipeline(folder: &Path, options: &Value, parts: &[OnnxFile]) -> Result<BoundDevice> {
    let contexts: Vec<&Node> = parts.iter().flat_map(|part| part.graph.contexts()).collect();
    let sdk = contexts.iter().find_map(|node| sdk(node));
    let version = sdk.map(|version| format!(", made with SDK {version}")).unwrap_or_default();
    let stages = parts.len();
    let count = parts.iter().filter(|part| is_compiled(&part.graph)).count();
    let holds = format!("a decoder-pipeline of {stages} stages, {count} of them compiled contexts{version}");
    let devices: Vec<String> = contexts.into_iter().map(made_for).collect();
    if let Some(other) = devices.iter().find(|device| *device != SNAPDRAGON) {
        return Err(error(folder, holds, Some(other.clone())));
    }

    let stated = parts.iter().find_map(|part| stated(&part.graph));
    let device = stated.or_else(|| device(options)).or_else(|| devices.into_iter().next());
    let device = device.unwrap_or_else(|| SNAPDRAGON.to_owned());
    let chips: Vec<QnnChip> = chips(&device).collect();
    let target = Some(Target::Qnn(chips)).filter(|target| *target != Target::Qnn(Vec::new()));
    Ok(BoundDevice { ep: Ep::Qnn, target, device, holds })
}

/// Returns the inputs and outputs of a graph's compiled contexts, whose binaries refer to them by name.
pub(super) fn values(graph: &Graph) -> HashSet<String> {
    graph.contexts().flat_map(|node| node.inputs.iter().chain(&node.outputs)).cloned().collect()
}

/// Returns the chips in the description of a device.
fn chips(device: &str) -> impl Iterator<Item = QnnChip> {
    QnnChip::ALL.into_iter().filter(move |chip| device.contains(&format!("({})", chip.spec().name)))
}

/// Returns an error for a folder with binaries of AI Hub for Genie.
pub(super) fn genie(folder: &mut Folder) -> Option<CompileError> {
    let file = GENIE.into_iter().find(|name| folder.has(name))?;
    let settings = GENIE.into_iter().find_map(|name| {
        let settings = folder.json::<Value>(name, "the settings of Genie").ok()??;
        device(&settings)
    });
    let what = format!("{} context binaries for Qualcomm's Genie ({file})", count(folder.path()));
    Some(error(folder.path(), what, settings.or_else(|| Some(SNAPDRAGON.to_owned()))))
}

/// Returns whether a graph contains a compiled context.
pub(super) fn is_compiled(graph: &Graph) -> bool {
    graph.contexts().next().is_some()
}

/// Returns an error for a graph with a compiled context.
pub(super) fn compiled(path: &Path, graph: &Graph) -> Option<CompileError> {
    let node = graph.contexts().next()?;
    let version = sdk(node).map(|version| format!(" (made with SDK {version})")).unwrap_or_default();
    let device = stated(graph).unwrap_or_else(|| made_for(node));
    Some(error(path, format!("a compiled context{version}"), Some(device)))
}

/// Returns the chips in the compatibility record of QNN's provider: `v2:BACKEND:SDK:API:ARCHITECTURES:CHIPS:…`, with
/// commas between list entries.
fn stated(graph: &Graph) -> Option<String> {
    let (_, info) =
        graph.metadata.iter().find(|(key, _)| key == "ep_compatibility_info.QNNExecutionProvider")?;
    let fields: Vec<&str> = info.split(':').collect();
    let [version, _, _, _, archs, chips, ..] = fields[..] else { return None };
    let mut archs = archs.split(',').map(|arch| arch.parse().ok());
    let chips = chips.split(',').map(|chip| chip.parse().ok());
    let each = chips.take(QnnChip::ALL.len()).filter_map(|chip| npu(chip, archs.next().flatten()));
    let each: Vec<String> = each.collect();
    (version == "v2" && !each.is_empty()).then(|| each.join(", "))
}

/// Returns the version of the SDK that compiled a context.
fn sdk(node: &Node) -> Option<String> {
    node.text("ep_sdk_version").filter(|version| !version.is_empty()).map(shortened)
}

/// Returns the device for which a context was compiled.
fn made_for(node: &Node) -> String {
    match node.text("source") {
        Some(source) if source.to_ascii_lowercase().contains("qnn") => SNAPDRAGON.to_owned(),
        Some(source) if source.to_ascii_lowercase().contains("openvino") => OPENVINO.to_owned(),
        Some(source) => format!("the device of {}", shortened(source)),
        None => "the device that it was compiled for".to_owned(),
    }
}

const SNAPDRAGON: &str = "a Snapdragon's NPU";

/// Contexts of OpenVINO are its own form of the graph, which each device compiles when it is loaded.
const OPENVINO: &str = "Intel's devices, through OpenVINO";
pub(super) const RYZEN: &str = "an AMD Ryzen AI NPU";

fn error(path: &Path, what: String, device: Option<String>) -> CompileError {
    let chip = device.as_deref().and_then(|device| chips(device).next());
    let intel = device.as_ref().is_some_and(|device| device.contains("Intel"));
    let target = match chip.unwrap_or(QnnChip::XElite).spec().name {
        _ if intel => "openvino:npu".to_owned(),
        id => format!("qnn:{id}"),
    };
    CompileError::Bound {
        path: path.to_owned(),
        what,
        device: device.unwrap_or_else(|| "the NPU that it was made for".to_owned()),
        instead: format!(
            "import the export for CPUs instead, or compile the checkpoint for an NPU: narthex compile MODEL --target {target}"
        ),
    }
}

/// Returns the first device in provider options anywhere in `value`.
fn device(value: &Value) -> Option<String> {
    let model = number(value, "soc_model").or_else(|| number(value, "soc_id"));
    let arch = text(value, "dsp_arch").and_then(|arch| arch.trim_start_matches('v').parse().ok());
    let arch = arch.or_else(|| number(value, "htp_arch"));
    npu(model, arch).or_else(|| provider(value))
}

/// Returns the NPU with QNN's number of a chip, or with a version of the Hexagon architecture; 0 means unknown.
fn npu(model: Option<u64>, arch: Option<u64>) -> Option<String> {
    let [model, arch] = [model, arch].map(|number| number.filter(|&number| number > 0));
    let chip = QnnChip::ALL.into_iter().map(QnnChip::spec).find(|spec| match model {
        Some(model) => u64::from(spec.soc_model) == model,
        None => arch == Some(u64::from(spec.htp_arch)),
    });
    match (chip, model, arch) {
        (Some(spec), ..) => Some(format!("the NPU of {} ({})", spec.title, spec.name)),
        (None, Some(model), _) => Some(format!("the NPU of the Snapdragon chip with soc_model {model}")),
        (None, None, Some(arch)) => Some(format!("a Hexagon NPU v{arch}")),
        (None, None, None) => None,
    }
}

/// Returns the provider in options, in words.
pub(super) fn provider(options: &Value) -> Option<String> {
    const KNOWN: [(&[&str], &str); 3] = [
        (&["qnn", "qnnexecutionprovider"], SNAPDRAGON),
        (&["vitisai", "vitisaiexecutionprovider", "ryzenai"], RYZEN),
        (&["openvino", "openvinoexecutionprovider"], OPENVINO),
    ];
    let provider = KNOWN.into_iter().find(|(names, _)| {
        find(options, 0, &|key, _| names.contains(&key.to_ascii_lowercase().as_str()).then_some(())).is_some()
    });
    let device = provider.map(|(_, device)| device);
    device.or_else(|| text(options, "custom_ops_library").map(|_| RYZEN)).map(str::to_owned)
}

/// Maximum nesting of settings.
const DEPTH: usize = 16;

/// Returns the first entry of an object anywhere in `value` that `take` accepts.
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

pub(super) fn text(value: &Value, name: &str) -> Option<String> {
    find(value, 0, &|key, value| (key == name).then(|| value.as_str().map(shortened)).flatten())
}

/// Shortens foreign text for messages.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

/// Counts the binaries in a folder.
fn count(folder: &Path) -> usize {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("bin"))).count()
}
