//! Which devices this machine has, one by one, without loading anything.

use narthex_device::ep::{self, Cause, Facts};
use narthex_spec::{DeviceKind, DeviceName};
use serde::Serialize;

use crate::{gateway::Gateway, load::runtime_choice::Core};

/// A device, and whether models can be loaded on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceStatus {
    /// The device.
    pub device: DeviceName,
    /// Whether the machine seems to have it, ready to be used; loading tells for certain.
    pub usable: bool,
    /// Whether the machine has it at all, as far as can be told.
    pub present: bool,
    /// Why it cannot be used.
    pub reason: Option<String>,
    /// What to do about that.
    pub fix: Option<String>,
}

impl Gateway {
    /// Every device that this version knows, NPUs first.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        statuses(&Core::of(self.inner()).facts)
    }

    /// The NPUs, and whether one can be used.
    pub fn npus(&self) -> Vec<DeviceStatus> {
        self.devices().into_iter().filter(|status| status.device.kind() == DeviceKind::Npu).collect()
    }
}

fn statuses(facts: &Facts) -> Vec<DeviceStatus> {
    let status = |device| match ep::probe(device, facts) {
        Ok(_) => DeviceStatus { device, usable: true, present: true, reason: None, fix: None },
        Err(refusal) => DeviceStatus {
            device,
            usable: false,
            present: refusal.cause != Cause::Absent,
            reason: Some(refusal.reason),
            fix: refusal.fix,
        },
    };
    DeviceName::ALL.map(status).into()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use narthex_device::inventory::{Accelerator, AcceleratorKind};
    use narthex_spec::Ep;

    use super::*;

    /// A laptop with a Snapdragon X Elite, on Linux.
    pub(crate) fn snapdragon<const N: usize>(libraries: [(Ep, PathBuf); N]) -> Facts {
        let npu = Accelerator {
            kind: AcceleratorKind::Npu,
            driver: "fastrpc".into(),
            text: "Hexagon".into(),
            memory: None,
        };
        Facts {
            os: "linux".into(),
            arch: "aarch64".into(),
            processor: "Snapdragon X Elite".into(),
            accelerators: vec![npu],
            libraries: libraries.into(),
            ..Facts::default()
        }
    }

    #[test]
    fn what_is_missing_is_told_with_its_command() {
        let mut facts = snapdragon([]);
        let qnn = |facts: &Facts| statuses(facts).into_iter().find(|s| s.device == DeviceName::Qnn).unwrap();
        let found = qnn(&facts);
        assert!(found.present && !found.usable, "{found:?}");
        assert_eq!(found.fix.as_deref(), Some("narthex runtime install qnn"));
        facts.libraries.insert(Ep::Qnn, "/q/plugin.so".into());
        assert!(qnn(&facts).usable);
        facts.accelerators.clear();
        let found = qnn(&facts);
        assert!(!found.present && found.reason.unwrap().contains("fastrpc"));
    }
}
