//! What decides whether something that this machine made earlier still holds: the device, the provider, its options.

use std::collections::BTreeMap;

use narthex_catalog::runtimes::RuntimeKind;
use narthex_device::{ep::Device, runtime::Runtime};
use narthex_spec::{DeviceName, Ep};
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The circumstances under which a context or a record was made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Circumstances {
    /// The device.
    pub(crate) device: DeviceName,
    /// The version of ONNX Runtime.
    pub(crate) runtime: String,
    /// The provider's package and version; ONNX Runtime's own providers have its version.
    pub(crate) provider: String,
    /// What the provider was told.
    pub(crate) settings: BTreeMap<String, String>,
}

impl Circumstances {
    /// Those of today.
    pub(crate) fn now(name: DeviceName, device: &Device, runtime: &Runtime) -> Self {
        Self {
            device: name,
            runtime: runtime.version().to_owned(),
            provider: provider(name.ep()),
            settings: device.settings(),
        }
    }

    /// Those of a model whose head runs elsewhere: the head's count as settings.
    pub(crate) fn with_head(mut self, head: Self) -> Self {
        let own = [("device", head.device.to_string()), ("provider", head.provider)];
        let own = own.map(|(key, value)| (key.to_owned(), value));
        let settings = own.into_iter().chain(head.settings);
        self.settings.extend(settings.map(|(key, value)| (format!("head.{key}"), value)));
        self
    }

    /// Why what was made under `self` does not hold under `now`.
    pub(crate) fn outdated(&self, now: &Self) -> Option<String> {
        if self.device != now.device {
            return Some(format!("it was made for {}, and this is {}", self.device, now.device));
        }
        if self.provider != now.provider {
            return Some(format!("it was made by {}, and this is {}", self.provider, now.provider));
        }
        if self.runtime != now.runtime {
            return Some(format!(
                "it was made by ONNX Runtime {}, and this is {}",
                self.runtime, now.runtime
            ));
        }
        let keys = self.settings.keys().chain(now.settings.keys());
        let differs = keys.into_iter().find(|key| self.settings.get(*key) != now.settings.get(*key))?;
        let value =
            |settings: &BTreeMap<String, String>| settings.get(differs).cloned().unwrap_or("nothing".into());
        Some(format!(
            "it was made with {differs} {}, and this is {}",
            value(&self.settings),
            value(&now.settings)
        ))
    }
}

/// The package that a provider comes in, with its version.
pub(crate) fn provider(ep: Ep) -> String {
    let kind = match ep {
        Ep::Qnn => RuntimeKind::Qnn,
        Ep::OpenVino => RuntimeKind::OpenVino,
        Ep::WebGpu => RuntimeKind::WebGpu,
        Ep::DirectMl | Ep::VitisAi | Ep::Cuda | Ep::CoreMl | Ep::Cpu => return "onnxruntime".to_owned(),
    };
    format!("{} {}", kind.package(), kind.version())
}

/// A record as it is written.
pub(crate) fn to_json(record: &impl Serialize) -> Result<Vec<u8>, Error> {
    serde_json::to_vec_pretty(record)
        .map_err(|error| Error::Io { what: "cannot write a record".to_owned(), source: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_named() {
        let made = Circumstances {
            device: DeviceName::Qnn,
            runtime: "1.31.1".into(),
            provider: "onnxruntime-qnn 2.7.0".into(),
            settings: BTreeMap::from([("soc_model".into(), "60".into())]),
        };
        let check = |now: Circumstances, expected: Option<&str>| {
            let found = made.outdated(&now);
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
        };
        check(made.clone(), None);
        let cpu = Circumstances {
            device: DeviceName::Cpu,
            provider: "onnxruntime".into(),
            settings: BTreeMap::new(),
            ..made.clone()
        };
        check(made.clone().with_head(cpu), Some("head.device nothing, and this is cpu"));
        check(Circumstances { provider: "onnxruntime-qnn 2.8.0".into(), ..made.clone() }, Some("2.8.0"));
        check(Circumstances { runtime: "1.32.0".into(), ..made.clone() }, Some("1.32.0"));
        let other = BTreeMap::from([("soc_model".into(), "69".into())]);
        check(Circumstances { settings: other, ..made.clone() }, Some("soc_model 60, and this is 69"));
        check(Circumstances { settings: BTreeMap::new(), ..made.clone() }, Some("this is nothing"));
        check(Circumstances { device: DeviceName::QnnEmulation, ..made.clone() }, Some("qnn:emulation"));
    }
}
