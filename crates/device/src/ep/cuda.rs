//! NVIDIA GPUs through CUDA: a provider library that lies beside an ONNX Runtime built for it.

use std::path::{Path, PathBuf};

use narthex_spec::Ep;

use super::{Device, Facts, Refusal, Seen};
use crate::inventory::AcceleratorKind;

/// The Linux driver through which the GPU is reached.
const DRIVER: &str = "nvidia";

const GPU: Seen =
    Seen { name: "NVIDIA GPU", kind: AcceleratorKind::Gpu, processors: &[], drivers: &["nvidia"] };

/// What the provider is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaOptions {
    /// The most bytes of the GPU's memory that are taken; `None` sets no bound.
    pub memory: Option<u64>,
    /// In which precision products of single-precision numbers are computed.
    pub products: Products,
}

/// In which precision products of single-precision numbers are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// In single precision.
    Exact,
    /// In TensorFloat-32, which is faster and keeps ten bits of each factor.
    TensorFloat,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self { memory: None, products: Products::TensorFloat }
    }
}

impl CudaOptions {
    pub(super) fn entries(self) -> Vec<(&'static str, String)> {
        let tf32 = match self.products {
            Products::Exact => "0",
            Products::TensorFloat => "1",
        };
        let mut entries = vec![
            ("use_tf32", tf32.to_owned()),
            // Doubling, its default, would take up to twice what a model needs.
            ("arena_extend_strategy", "kSameAsRequested".to_owned()),
        ];
        entries.extend(self.memory.map(|bytes| ("gpu_mem_limit", bytes.to_string())));
        entries
    }
}

/// The provider's library, beside the ONNX Runtime that is built for it.
pub(super) fn beside(core: &Path) -> PathBuf {
    let windows = core.extension().is_some_and(|extension| extension == "dll");
    let name = if windows { "onnxruntime_providers_cuda.dll" } else { "libonnxruntime_providers_cuda.so" };
    core.with_file_name(name)
}

/// An NVIDIA GPU of this machine.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    if facts.arch != "x86_64" || !["linux", "windows"].contains(&facts.os.as_str()) {
        let platform = facts.platform();
        return Err(Refusal::absent(format!(
            "the cuda runtime is made for Linux and Windows on x86-64, and this is {platform}"
        )));
    }
    facts.driven(GPU.name, &[DRIVER], None)?;
    facts.library_of(Ep::Cuda, &GPU)?;
    Ok(Device::Cuda(CudaOptions::default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_by_the_provider_s_names() {
        let options = CudaOptions { memory: Some(1 << 30), products: Products::Exact };
        let expected = [
            ("use_tf32", "0"),
            ("arena_extend_strategy", "kSameAsRequested"),
            ("gpu_mem_limit", "1073741824"),
        ];
        assert_eq!(options.entries(), expected.map(|(key, value)| (key, value.to_owned())));
    }

    #[test]
    fn the_library_lies_beside_the_runtime() {
        let check = |core: &str, name: &str| assert!(beside(Path::new(core)).ends_with(name), "{core}");
        check("/r/capi/libonnxruntime.so.1.31.1", "capi/libonnxruntime_providers_cuda.so");
        check("r/capi/onnxruntime.dll", "capi/onnxruntime_providers_cuda.dll");
    }
}
