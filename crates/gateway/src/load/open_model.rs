//! A model that is open on its devices, before a thread runs it.

use narthex_catalog::store::Store;
use narthex_engine::supervise::NumericsMonitor;
use narthex_spec::{DevicePlacement, HeadSplit, ModelName, PhaseSplit};

use crate::{
    error::Error,
    load::{cache_key::to_json, eligibility::UNVERIFIED_NOTE, sessions::Model},
    report::{
        models::{DeviceRefusal, NumericsCheck},
        placement::PlacementReport,
    },
};

/// Target of the log line with the device of a loaded model, so that programs can show only this line.
const DEVICE_LINE: &str = "narthex::device";

/// Target of the warnings about the devices of a model, so that programs can hide them.
const REFUSAL: &str = "narthex::refusal";

/// Record of the warnings that were shown on this machine.
const SHOWN_RECORD: &str = "shown_refusals.json";

/// Maximum number of warnings in the record; the oldest are forgotten.
const MAX_SHOWN: usize = 64;

/// A model that is open on its devices.
pub(crate) struct OpenModel {
    pub(crate) model: Model,
    pub(crate) report: PlacementReport,
    /// Preferred devices that refused the model.
    pub(crate) passed_over: Vec<DeviceRefusal>,
    /// Comparisons of the devices with the CPU.
    pub(crate) numerics: Vec<NumericsCheck>,
    /// Monitors of the devices' numerics.
    pub(crate) monitors: Vec<NumericsMonitor>,
}

impl OpenModel {
    /// Logs the placement, with a warning for each preferred device that is present and refused the model, once on each
    /// machine for each reason, and with the notes.
    pub(crate) fn log(&self, name: &ModelName, store: &Store) {
        let device = self.report.device;
        for DeviceRefusal { device, reason, fix, announced, .. } in &self.passed_over {
            let fix = fix.as_deref().map(|fix| format!(" ({fix})")).unwrap_or_default();
            let is_warning = *announced && tracing::enabled!(target: REFUSAL, tracing::Level::WARN);
            if is_warning && is_new(store, &format!("{device}: {reason}{fix}", device = device.as_str())) {
                tracing::warn!(target: REFUSAL, "{name} does not run on {}: {reason}{fix}", device.describe());
            } else {
                tracing::debug!("{name} does not run on {}: {reason}", device.describe());
            }
        }

        for note in &self.report.notes {
            let text = format!("{name} on {}: {note}", device.describe());
            // The other notes are about events of this load.
            let is_lasting = note == UNVERIFIED_NOTE;
            let is_shown = tracing::enabled!(target: REFUSAL, tracing::Level::WARN);
            if is_shown && (!is_lasting || is_new(store, &text)) {
                tracing::warn!(target: REFUSAL, "{text}");
            } else {
                tracing::debug!("{text}");
            }
        }
        if !self.report.fallback.is_empty() {
            tracing::info!("{name} on {}: nodes on the CPU: {}", device.describe(), self.report.fallback);
        }
        if let Some(why) = &self.report.why {
            tracing::info!("{name} on {}: {why}", self.report.name());
        }
        let placement = match self.report.place() {
            DevicePlacement::Single(device) => format!("runs on {}", device.describe()),
            DevicePlacement::Phases(PhaseSplit { prefill, decode }) => {
                format!("prefill on {}, decode on {}", prefill.describe(), decode.describe())
            }
            DevicePlacement::Head(HeadSplit { layers, head }) => {
                format!("layers on {}, head on {}", layers.describe(), head.describe())
            }
        };
        tracing::info!(target: DEVICE_LINE, "{name}: {placement}");
    }
}

/// Records a warning on this machine. Returns whether it is new; `true` too if the record cannot be read or written.
fn is_new(store: &Store, warning: &str) -> bool {
    let records = store.own_machine();
    let bytes = records.read(SHOWN_RECORD).ok().flatten();
    let mut shown: Vec<String> =
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    if shown.iter().any(|known| known == warning) {
        return false;
    }
    shown.push(warning.to_owned());
    let oldest = shown.len().saturating_sub(MAX_SHOWN);
    let stored = to_json(&shown[oldest..].to_vec())
        .and_then(|text| records.write(SHOWN_RECORD, &text).map_err(Error::from));
    if let Err(error) = stored {
        tracing::debug!(%error, "the shown warnings cannot be stored");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_new_once() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(Some(home.path().join("store"))).unwrap();
        assert!(is_new(&store, "qnn: not installed"));
        assert!(!is_new(&store, "qnn: not installed"));
        assert!(is_new(&store, "qnn: the driver is old"));
        for index in 0..MAX_SHOWN {
            assert!(is_new(&store, &index.to_string()));
        }
        assert!(is_new(&store, "qnn: not installed"), "the oldest are forgotten");
        assert!(!is_new(&store, "9"));
    }
}
