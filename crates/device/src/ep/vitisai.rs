//! AMD XDNA NPUs through VitisAI. Its library is part of AMD's own Ryzen AI software and not of any wheel.
//!
//! The NPU accepts language models only in the form of AMD's own tool (`narthex export --format quark` writes its
//! input). Of other graphs with fixed shapes, it accepts the parts that its compiler supports, but a load fails unless
//! the whole graph is accepted.

use std::path::{Path, PathBuf};

use super::{Device, DeviceSignature, Facts, Refusal, Vendor};
use crate::inventory::AcceleratorKind;

/// Linux driver of the NPU.
const DRIVER: &str = "amdxdna";

const NPU: DeviceSignature = DeviceSignature {
    name: "AMD XDNA NPU",
    kind: AcceleratorKind::Npu,
    processors: &["ryzen ai"],
    // Windows uses this name or the vendor's.
    drivers: &["npu compute accelerator", "amd"],
};

/// The compiler's settings file, which AMD's software may have next to the library.
const CONFIG: &str = "vaip_config.json";

/// Options of the provider.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VitisAiOptions {
    /// Settings of the compiler; `None` uses the built-in ones.
    pub config: Option<PathBuf>,
    /// Folder for the compiled graphs of one package; `None` uses the provider's default.
    pub cache: Option<PathBuf>,
}

impl VitisAiOptions {
    pub(super) fn entries(&self) -> Vec<(&'static str, String)> {
        let given = [("config_file", &self.config), ("cache_dir", &self.cache)];
        given
            .into_iter()
            .filter_map(|(key, path)| Some((key, path.as_ref()?.to_string_lossy().into_owned())))
            .collect()
    }

    /// Returns the key under which the compiled graph is stored, if there is a folder. Keys must differ, because the
    /// provider loads whatever is stored under a key.
    pub(super) fn key(&self, graph: &Path) -> Option<(&'static str, String)> {
        self.cache.as_ref()?;
        Some(("cache_key", graph.file_stem()?.to_string_lossy().into_owned()))
    }
}

/// Returns the settings file next to the library, if it exists.
fn config_beside(library: &Path) -> Option<PathBuf> {
    Some(library.with_file_name(CONFIG)).filter(|path| path.is_file())
}

/// Returns this machine's NPU.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    facts.require(facts.is_x86_64_pc(), "AMD XDNA NPUs are part of Ryzen AI processors")?;
    facts.require_driver(NPU.name, &[DRIVER], Some(Vendor::Amd))?;
    let library = facts.vitisai_library(&NPU)?;
    let config = config_beside(&library);
    Ok(Device::VitisAi(VitisAiOptions { config, ..VitisAiOptions::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_kept_by_name_where_a_folder_is_given() {
        let options = VitisAiOptions { cache: Some("/cache".into()), ..VitisAiOptions::default() };
        let layers = Path::new("/package/layers-1x64.onnx");
        assert_eq!(options.key(layers), Some(("cache_key", "layers-1x64".to_owned())));
        assert_eq!(VitisAiOptions::default().key(layers), None);
    }

    #[test]
    fn settings_beside_the_library_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("provider.so");
        assert_eq!(config_beside(&library), None);
        std::fs::write(folder.path().join(CONFIG), "{}").unwrap();
        assert_eq!(config_beside(&library), Some(folder.path().join(CONFIG)));
    }
}
