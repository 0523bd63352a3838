//! NVIDIA GPUs through CUDA: a provider library in the folder of an ONNX Runtime that is built for it.

use std::path::{Path, PathBuf};

use narthex_spec::Ep;

use super::{Device, DeviceSignature, Facts, Refusal, cuda_libraries::DRIVER};
use crate::inventory::AcceleratorKind;

const GPU: DeviceSignature =
    DeviceSignature { name: "NVIDIA GPU", kind: AcceleratorKind::Gpu, processors: &[], drivers: &["nvidia"] };

/// Returns the options of the provider.
pub(super) fn entries() -> Vec<(&'static str, String)> {
    vec![
        // Single-precision products in TensorFloat-32 are faster, with ten bits of mantissa for each factor.
        ("use_tf32", "1".to_owned()),
        // By default the arena doubles its size, which would take up to twice the memory that a model needs.
        ("arena_extend_strategy", "kSameAsRequested".to_owned()),
    ]
}

/// Returns the path of the provider's library, next to the ONNX Runtime `core` that is built for it.
pub(super) fn beside(core: &Path) -> PathBuf {
    let windows = core.extension().is_some_and(|extension| extension == "dll");
    let name = if windows { "onnxruntime_providers_cuda.dll" } else { "libonnxruntime_providers_cuda.so" };
    core.with_file_name(name)
}

/// Returns this machine's NVIDIA GPU.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    facts.require(facts.is_x86_64_pc(), "the cuda runtime is available for Linux and Windows on x86-64")?;
    facts.require_driver(GPU.name, &[DRIVER], None)?;
    facts.library_of(Ep::Cuda, &GPU)?;
    Ok(Device::Cuda)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_lies_beside_the_runtime() {
        let check = |core: &str, name: &str| assert!(beside(Path::new(core)).ends_with(name), "{core}");
        check("/r/capi/libonnxruntime.so.1.31.1", "capi/libonnxruntime_providers_cuda.so");
        check("r/capi/onnxruntime.dll", "capi/onnxruntime_providers_cuda.dll");
    }
}
