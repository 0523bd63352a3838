//! AMD XDNA NPUs through VitisAI, whose library comes with AMD's own Ryzen AI software and with no wheel.
//!
//! The NPU takes language models only as AMD's own tool makes them (`narthex export --format quark` writes what that
//! tool reads). Other graphs of fixed shape it takes as far as its compiler goes, and a load that is not whole fails.

use std::path::{Path, PathBuf};

use super::{Device, Facts, Refusal, Seen, Vendor};
use crate::inventory::AcceleratorKind;

/// The environment variable that names the provider's library.
pub(super) const VARIABLE: &str = "NARTHEX_VITISAI_LIBRARY";

/// The Linux driver through which the NPU is reached.
const DRIVER: &str = "amdxdna";

const NPU: Seen = Seen {
    name: "AMD XDNA NPU",
    kind: AcceleratorKind::Npu,
    processors: &["ryzen ai"],
    // Windows calls it that, or after its maker.
    drivers: &["npu compute accelerator", "amd"],
};

/// The compiler's settings, where AMD's software has them beside the library.
const CONFIG: &str = "vaip_config.json";

/// What the provider is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VitisAiOptions {
    /// The compiler's settings; `None` takes those that are built in.
    pub config: Option<PathBuf>,
    /// The folder where compiled graphs of one package are kept; `None` leaves it to the provider.
    pub cache: Option<PathBuf>,
    /// The overlay that the NPU is given; `None` takes the one of the settings.
    pub target: Option<Overlay>,
}

/// How the NPU's columns are put to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlay {
    /// For models of the first generation of the software.
    X1,
    /// For transformers.
    X2,
}

impl VitisAiOptions {
    pub(super) fn entries(&self) -> Vec<(&'static str, String)> {
        let path = |path: &PathBuf| path.to_string_lossy().into_owned();
        let overlay = |overlay| match overlay {
            Overlay::X1 => "X1".to_owned(),
            Overlay::X2 => "X2".to_owned(),
        };
        let given = [
            ("config_file", self.config.as_ref().map(path)),
            ("cache_dir", self.cache.as_ref().map(path)),
            ("target", self.target.map(overlay)),
        ];
        given.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// The name under which a graph is kept, where any is. A graph compiled under another's name would be taken for it.
    pub(super) fn key(&self, graph: &Path) -> Option<(&'static str, String)> {
        self.cache.as_ref()?;
        Some(("cache_key", graph.file_stem()?.to_string_lossy().into_owned()))
    }
}

/// The settings beside the library, if they are there.
fn config_beside(library: &Path) -> Option<PathBuf> {
    Some(library.with_file_name(CONFIG)).filter(|path| path.is_file())
}

/// The NPU of this machine.
pub(super) fn probe(facts: &Facts) -> Result<Device, Refusal> {
    if facts.arch != "x86_64" || !["linux", "windows"].contains(&facts.os.as_str()) {
        let platform = facts.platform();
        return Err(Refusal::absent(format!(
            "AMD XDNA NPUs are part of Ryzen AI processors, and this is {platform}"
        )));
    }
    facts.driven(NPU.name, &[DRIVER], Some(Vendor::Amd))?;
    let library = facts.vitisai_library(&NPU)?;
    let config = config_beside(&library);
    Ok(Device::VitisAi(VitisAiOptions { config, ..VitisAiOptions::default() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_by_the_provider_s_names() {
        assert_eq!(VitisAiOptions::default().entries(), []);
        let options = VitisAiOptions {
            config: Some("/amd/vaip_config.json".into()),
            cache: Some("/cache".into()),
            target: Some(Overlay::X2),
        };
        let expected = [("config_file", "/amd/vaip_config.json"), ("cache_dir", "/cache"), ("target", "X2")];
        assert_eq!(options.entries(), expected.map(|(key, value)| (key, value.to_owned())));
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
