//! A model that is open on its devices, before a thread runs it.

use narthex_engine::supervise::NumericsMonitor;
use narthex_spec::{DevicePlacement, HeadSplit, ModelName, PhaseSplit};

use crate::{
    load::sessions::Model,
    report::{models::DeviceRefusal, placement::PlacementReport},
};

/// Target of the log line with the device of a loaded model, so that programs can show only this line.
const DEVICE_LINE: &str = "narthex::device";

/// A model that is open on its devices.
pub(crate) struct OpenModel {
    pub(crate) model: Model,
    pub(crate) report: PlacementReport,
    /// Preferred devices that refused the model.
    pub(crate) passed_over: Vec<DeviceRefusal>,
    /// Monitors of the devices' numerics.
    pub(crate) monitors: Vec<NumericsMonitor>,
}

impl OpenModel {
    /// Logs the placement, with a warning for each preferred device that is present and refused the model.
    pub(crate) fn log(&self, name: &ModelName) {
        let device = self.report.device;
        for DeviceRefusal { device, reason, fix, announced, .. } in &self.passed_over {
            let fix = fix.as_deref().map(|fix| format!(" ({fix})")).unwrap_or_default();
            if *announced {
                tracing::warn!("{name} does not run on {}: {reason}{fix}", device.describe());
            } else {
                tracing::debug!("{name} does not run on {}: {reason}", device.describe());
            }
        }
        for note in &self.report.notes {
            tracing::warn!("{name} on {}: {note}", device.describe());
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
