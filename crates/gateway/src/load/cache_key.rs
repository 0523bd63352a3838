//! Key under which a file that this machine made stays valid: device, driver, provider, runtime and options.

use std::collections::BTreeMap;

use narthex_catalog::{runtimes, store::MachineFolder};
use narthex_device::{ep::Facts, inventory::AcceleratorKind, runtime::Runtime};
use narthex_spec::{DeviceKind, DeviceName, Ep, ProviderLibrary};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{error::Error, load::request::SelectedDevice};

/// Key of a compiled context or a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheKey {
    pub(crate) device: DeviceName,
    /// Version of ONNX Runtime.
    pub(crate) runtime: String,
    /// Package and version of the provider. ONNX Runtime's own providers have its version.
    pub(crate) provider: String,
    /// Driver and its version, as the system reports them.
    #[serde(default = "no_driver")]
    pub(crate) driver: String,
    /// Options of the provider.
    pub(crate) settings: BTreeMap<String, String>,
}

impl CacheKey {
    /// Returns the key of a device on this machine.
    pub(crate) fn new(selected: &SelectedDevice, runtime: &Runtime, facts: &Facts) -> Self {
        let name = selected.name;
        Self {
            device: name,
            runtime: runtime.version().to_owned(),
            provider: provider_here(name.ep(), facts),
            driver: driver(name.kind(), facts),
            settings: selected.device.settings(),
        }
    }

    /// Adds the device of the head as settings.
    pub(crate) fn with_head(mut self, head: Self) -> Self {
        let own = [("device", head.device.to_string()), ("provider", head.provider), ("driver", head.driver)];
        let own = own.map(|(key, value)| (key.to_owned(), value));
        let settings = own.into_iter().chain(head.settings);
        self.settings.extend(settings.map(|(key, value)| (format!("head.{key}"), value)));
        self
    }

    /// Returns the first difference to `now`, for a file that was made under `self`.
    pub(crate) fn difference(&self, now: &Self) -> Option<String> {
        if self.device != now.device {
            return Some(format!("it was made for {}, but this is {}", self.device, now.device));
        }
        if self.provider != now.provider {
            return Some(format!("it was made by {}, but this is {}", self.provider, now.provider));
        }
        if self.runtime != now.runtime {
            return Some(format!(
                "it was made by ONNX Runtime {}, but this is {}",
                self.runtime, now.runtime
            ));
        }
        if self.driver != now.driver {
            return Some(format!("it was made with the driver {}, but this is {}", self.driver, now.driver));
        }
        let keys = self.settings.keys().chain(now.settings.keys());
        let differs = keys.into_iter().find(|key| self.settings.get(*key) != now.settings.get(*key))?;
        let [before, after] = [&self.settings, &now.settings]
            .map(|settings| settings.get(differs).map_or("nothing", String::as_str));
        Some(format!("it was made with {differs} {before}, but this is {after}"))
    }
}

/// Files that this machine keeps for a package on its devices, and the key under which they are valid.
#[derive(Clone)]
pub(crate) struct DeviceCache {
    pub(crate) folder: MachineFolder,
    pub(crate) key: CacheKey,
}

/// The fields of a record that decide if it is valid.
#[derive(Deserialize)]
struct RecordHeader {
    version: u32,
    key: CacheKey,
}

impl DeviceCache {
    /// Reads the record in a file, if it has this version and its key is the present one.
    pub(crate) fn record<R: DeserializeOwned>(&self, file: &str, version: u32) -> Result<Option<R>, Error> {
        let Some(bytes) = self.folder.read(file)? else { return Ok(None) };
        let is_valid = serde_json::from_slice::<RecordHeader>(&bytes)
            .is_ok_and(|header| header.version == version && header.key == self.key);
        Ok(if is_valid { serde_json::from_slice(&bytes).ok() } else { None })
    }

    /// Writes a record to a file. Logs a warning that names `what` if it cannot be written.
    pub(crate) fn store(&self, file: &str, record: &impl Serialize, what: &str) {
        let written = to_json(record).and_then(|bytes| Ok(self.folder.write(file, &bytes)?));
        if let Err(error) = written {
            tracing::warn!("{what} cannot be stored and will be repeated: {error}");
        }
    }
}

/// Driver of devices that have none, and of records that lack the field.
fn no_driver() -> String {
    "none".to_owned()
}

/// Returns the drivers of this kind of device with their versions, or `unknown` if the system does not report them.
fn driver(kind: DeviceKind, facts: &Facts) -> String {
    let kind = match kind {
        DeviceKind::Npu => AcceleratorKind::Npu,
        DeviceKind::Gpu => AcceleratorKind::Gpu,
        DeviceKind::Cpu | DeviceKind::StandIn => return no_driver(),
    };
    let found = facts.drivers.iter().filter(|driver| driver.kind == kind);
    let found: Vec<&str> = found.map(|driver| driver.text.as_str()).collect();
    if found.is_empty() { "unknown".to_owned() } else { found.join(", ") }
}

/// Returns the provider's package and version. AMD's library has no package and is identified by its digest.
fn provider_here(ep: Ep, facts: &Facts) -> String {
    match facts.libraries.get(&ep).filter(|_| ep == Ep::VitisAi).map(|library| MachineFolder::digest(library))
    {
        Some(Ok(digest)) => format!("AMD's library {digest}"),
        Some(Err(_)) | None => provider(ep),
    }
}

/// Returns the package of a provider with its version.
pub(crate) fn provider(ep: Ep) -> String {
    let plugin = runtimes::package(ep).filter(|_| ep.library() == ProviderLibrary::Plugin);
    plugin.map_or_else(|| "onnxruntime".to_owned(), |package| format!("{} {}", package.name, package.version))
}

/// Serialises a record.
pub(crate) fn to_json(record: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec_pretty(record)
        .map_err(|error| Error::Io { what: "cannot write a record".to_owned(), source: error.into() })
}

#[cfg(test)]
mod tests {
    use narthex_device::inventory::Driver;

    use super::*;

    #[test]
    fn a_driver_is_that_of_the_kind_of_device() {
        let driver = |kind, text: &str| Driver { kind, text: text.to_owned() };
        let (npu, gpu) = (AcceleratorKind::Npu, AcceleratorKind::Gpu);
        let drivers =
            vec![driver(npu, "intel_vpu 1.0"), driver(gpu, "i915 1.6"), driver(gpu, "nvidia 580.95")];
        let facts = Facts { drivers, ..Facts::default() };
        assert_eq!(super::driver(DeviceKind::Npu, &facts), "intel_vpu 1.0");
        assert_eq!(super::driver(DeviceKind::Gpu, &facts), "i915 1.6, nvidia 580.95");
        assert_eq!(super::driver(DeviceKind::StandIn, &facts), "none");
        let untold = Facts { drivers: Vec::new(), ..facts };
        assert_eq!(super::driver(DeviceKind::Npu, &untold), "unknown");
    }

    #[test]
    fn another_library_of_amds_is_another_provider() {
        let folder = tempfile::tempdir().unwrap();
        let library = folder.path().join("provider.so");
        let libraries = BTreeMap::from([(Ep::VitisAi, library.clone()), (Ep::Qnn, "/q/plugin.so".into())]);
        let facts = Facts { libraries, ..Facts::default() };
        let with = |bytes: &str| {
            std::fs::write(&library, bytes).unwrap();
            provider_here(Ep::VitisAi, &facts)
        };
        let first = with("1.6");
        assert!(first.starts_with("AMD's library ") && first == with("1.6") && first != with("1.7"));
        assert_eq!(provider_here(Ep::Qnn, &facts), provider(Ep::Qnn));
    }

    #[test]
    fn a_record_without_a_driver_is_valid_where_there_is_none() {
        let text = r#"{"device": "cpu", "runtime": "1.31.1", "provider": "p", "settings": {}}"#;
        let record: CacheKey = serde_json::from_str(text).unwrap();
        let now = |driver: &str| CacheKey { driver: driver.to_owned(), ..record.clone() };
        assert_eq!(record.difference(&now("none")), None);
        assert!(record.difference(&now("fastrpc kernel 6.12.9")).is_some());
    }

    #[test]
    fn the_difference_is_named() {
        let made = CacheKey {
            device: DeviceName::Qnn,
            runtime: "1.31.1".into(),
            provider: "onnxruntime-qnn 2.7.0".into(),
            driver: "fastrpc, kernel 6.12.9".into(),
            settings: BTreeMap::from([("soc_model".into(), "60".into())]),
        };
        let check = |now: CacheKey, expected: Option<&str>| {
            let found = made.difference(&now);
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check(made.clone(), None);
        let cpu = CacheKey {
            device: DeviceName::Cpu,
            provider: "onnxruntime".into(),
            settings: BTreeMap::new(),
            ..made.clone()
        };
        check(made.clone().with_head(cpu), Some("head.device nothing, but this is cpu"));
        check(CacheKey { provider: "onnxruntime-qnn 2.8.0".into(), ..made.clone() }, Some("2.8.0"));
        let driver = "fastrpc, kernel 6.13.0".to_owned();
        check(CacheKey { driver, ..made.clone() }, Some("6.12.9, but this is fastrpc, kernel 6.13.0"));
        check(CacheKey { runtime: "1.32.0".into(), ..made.clone() }, Some("1.32.0"));
        let other = BTreeMap::from([("soc_model".into(), "69".into())]);
        check(CacheKey { settings: other, ..made.clone() }, Some("soc_model 60, but this is 69"));
        check(CacheKey { settings: BTreeMap::new(), ..made.clone() }, Some("this is nothing"));
        check(CacheKey { device: DeviceName::QnnEmulation, ..made.clone() }, Some("qnn:emulation"));
    }
}
