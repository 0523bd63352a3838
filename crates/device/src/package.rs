//! Files, graphs and tensor names of a package. This module runs no graph.

use std::{
    ffi::CString,
    path::{Path, PathBuf},
};

use narthex_spec::{
    DeviceName, Variant,
    arch::Structure,
    manifest::{Binding, GraphEntry, Manifest, Part, Slot, check_path},
};

use crate::{ep::Device, error::DeviceError};

/// Returns the path of a file that a manifest names, which must be inside the package.
pub(crate) fn path(package: &Path, file: &str) -> Result<PathBuf, DeviceError> {
    match check_path(file) {
        Ok(()) => Ok(package.join(file)),
        Err(_) => Err(DeviceError::package("files inside the package", format!("{file:?}"))),
    }
}

/// Checks that a device can run a package's dynamic variant: the device to which the package is bound, or any device that
/// takes symbolic shapes and computes all operators of the model.
pub(crate) fn takes_dynamic(device: &Device, manifest: &Manifest) -> Result<(), DeviceError> {
    let name = device.name();
    match &manifest.bound {
        Some(bound) if bound.ep != device.ep() => {
            Err(DeviceError::Bound { holds: bound.holds.clone(), to: bound.device.clone() })
        }
        None if name.variant() != Variant::Dynamic => Err(DeviceError::Variant { device: name.describe() }),
        _ if matches!(manifest.architecture, Structure::Speech(_)) && *device != Device::Cpu => {
            Err(DeviceError::Speech { device: name.describe() })
        }
        _ if has_states(manifest) && *device != Device::Cpu => {
            Err(DeviceError::States { device: name.describe() })
        }
        // Found with version 0.4.0 of the plugin on an NVIDIA GPU, and with 1.27.0 on SwiftShader.
        _ if name == DeviceName::WebGpu && caps_scores(manifest) => {
            Err(DeviceError::Wrong { device: name.describe(), ignored: "the cap of attention scores" })
        }
        _ => Ok(()),
    }
}

/// Returns whether a layer of a decoder has a state instead of keys and values.
fn has_states(manifest: &Manifest) -> bool {
    manifest.graphs.iter().flat_map(|graph| &graph.kv).any(|entry| entry.recurrent_state().is_some())
}

/// Returns whether attention of a decoder caps its scores.
fn caps_scores(manifest: &Manifest) -> bool {
    let Structure::Decoder(arch) = &manifest.architecture else { return false };
    arch.attentions().any(|attention| attention.score_cap.is_some())
}

/// Returns the package's graph. If there are several for fixed numbers of tokens, returns the one for the fewest
/// tokens.
pub(crate) fn graph(manifest: &Manifest) -> Result<&GraphEntry, DeviceError> {
    let graphs = manifest.graphs.iter().filter(|graph| graph.variant == Variant::Dynamic);
    let first = graphs.min_by_key(|graph| chunk(graph).map(|(tokens, _)| tokens));
    first.ok_or_else(|| DeviceError::package("a dynamic graph", "none"))
}

/// Returns the graph for prompts, which is the one for the most tokens, if it differs from [`graph`].
pub(crate) fn prompt_graph(manifest: &Manifest) -> Option<&GraphEntry> {
    let graphs = manifest.graphs.iter().filter(|graph| chunk(graph).is_some_and(|(tokens, _)| tokens > 1));
    let most = graphs.max_by_key(|graph| chunk(graph))?;
    graph(manifest).is_ok_and(|first| first.file != most.file).then_some(most)
}

/// Returns the number of tokens and the number of past tokens of a graph for a fixed number of tokens.
pub(crate) fn chunk(entry: &GraphEntry) -> Option<(usize, usize)> {
    match entry.part {
        Part::Chunk { tokens, past } => Some((tokens, past)),
        _ => None,
    }
}

/// Returns the name of the input for `slot`.
pub(crate) fn input(entry: &GraphEntry, slot: Slot) -> Result<CString, DeviceError> {
    name(entry.input(slot), slot)
}

/// Returns the name of the output for `slot`.
pub(crate) fn output(entry: &GraphEntry, slot: Slot) -> Result<CString, DeviceError> {
    name(entry.output(slot), slot)
}

/// Returns the names of all outputs for `slot`, of which there must be at least one.
pub(crate) fn outputs(entry: &GraphEntry, slot: Slot) -> Result<Vec<CString>, DeviceError> {
    let all: Vec<_> = entry.outputs.iter().filter(|binding| binding.slot == slot).collect();
    match all.is_empty() {
        true => Ok(vec![name(None, slot)?]),
        false => all.into_iter().map(|binding| name(Some(binding), slot)).collect(),
    }
}

fn name(binding: Option<&Binding>, slot: Slot) -> Result<CString, DeviceError> {
    let binding = binding.ok_or_else(|| DeviceError::package(format!("a tensor for {slot:?}"), "none"))?;
    CString::new(binding.name.as_str())
        .map_err(|_| DeviceError::package("tensor names without zero bytes", format!("{:?}", binding.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_inside_the_package() {
        let check = |file: &str, inside: bool| {
            assert_eq!(path(Path::new("/p"), file).is_ok(), inside, "{file:?}");
        };
        check("model.onnx", true);
        check("graphs/model.onnx", true);
        check("../model.onnx", false);
        check("/etc/passwd", false);
        check("a/../../b", false);
        check("", false);
    }
}
