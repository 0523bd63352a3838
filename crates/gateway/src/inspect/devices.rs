//! The devices of this machine, determined from facts only. No library is loaded.

use narthex_device::ep::{self, Cause, Facts};
use narthex_spec::DeviceName;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{gateway::Gateway, load::runtime_choice::RuntimeChoice};

/// A device, and whether it is usable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DeviceStatus {
    /// Device, named as in `--providers`.
    #[schemars(with = "String")]
    pub device: DeviceName,
    /// Presence of the device with everything that it needs, as far as facts show. Only a load proves it.
    pub usable: bool,
    /// Presence of the device, as far as facts show.
    pub present: bool,
    /// Reason why the device is not usable.
    pub reason: Option<String>,
    /// The next step.
    pub fix: Option<String>,
}

impl Gateway {
    /// Lists every device that this version supports, NPUs first.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        statuses(&RuntimeChoice::of(self.library()).facts)
    }
}

fn statuses(facts: &Facts) -> Vec<DeviceStatus> {
    DeviceName::ALL
        .map(|device| match ep::probe(device, facts) {
            Ok(_) => DeviceStatus { device, usable: true, present: true, reason: None, fix: None },
            Err(refusal) => DeviceStatus {
                device,
                usable: false,
                present: refusal.cause != Cause::Absent,
                reason: Some(refusal.reason),
                fix: refusal.fix,
            },
        })
        .into()
}

#[cfg(test)]
mod tests {
    use narthex_spec::Ep;

    use super::*;
    use crate::fixtures::snapdragon;

    #[test]
    fn a_missing_runtime_has_its_command() {
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
