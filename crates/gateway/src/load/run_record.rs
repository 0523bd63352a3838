//! Records of packages that ran on a device of this machine, which `check` reports.

use std::path::Path;

use narthex_catalog::store::Store;
use narthex_spec::{DeviceName, OpenVinoDevice, Target};
use serde::{Deserialize, Serialize};

use super::cache_key::{CacheKey, DeviceCache};
use crate::{error::Error, report::placement::PlacementReport};

/// File of a record.
const RECORD: &str = "run.json";

/// Version of the form of a record.
const VERSION: u32 = 1;

/// The last load of a package on a device after which its results agreed with the CPU's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunRecord {
    version: u32,
    key: CacheKey,
    /// Nodes and work on the device.
    pub(crate) placement: String,
}

impl RunRecord {
    /// Stores the record of a load. A warning is logged if it cannot be stored.
    pub(super) fn store(cache: &DeviceCache, report: &PlacementReport) {
        let record = Self { version: VERSION, key: cache.key.clone(), placement: report.summary() };
        cache.store(RECORD, &record, "the record of the load");
    }

    /// Returns the records of the package in a folder, of devices that a target describes: NPUs, and software in their
    /// place.
    pub(crate) fn of_target(store: &Store, folder: &Path, target: &Target) -> Result<Vec<Self>, Error> {
        let mut records = Vec::new();
        for device in DeviceName::ALL.into_iter().filter(|device| is_described(*device, target)) {
            let bytes = store.machine(folder, device.as_str())?.read(RECORD)?;
            let record = bytes.and_then(|bytes| serde_json::from_slice::<Self>(&bytes).ok());
            records.extend(record.filter(|record| record.version == VERSION));
        }
        Ok(records)
    }

    /// Returns the device.
    pub(crate) fn device(&self) -> DeviceName {
        self.key.device
    }
}

fn is_described(device: DeviceName, target: &Target) -> bool {
    match target {
        Target::Qnn(_) => matches!(device, DeviceName::Qnn | DeviceName::QnnEmulation),
        Target::OpenVino(chosen) => device == DeviceName::OpenVino(*chosen),
        Target::IntelNpu(_) => device == DeviceName::OpenVino(OpenVinoDevice::Npu),
    }
}
