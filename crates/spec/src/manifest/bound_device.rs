//! Packages that run on only one kind of device.

use serde::{Deserialize, Serialize};

use crate::{Ep, Target};

/// Device that a package is bound to by vendor-specific graphs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundDevice {
    /// Execution provider of the device.
    pub ep: Ep,
    /// Chips that the graphs were compiled for, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// Description of the device: `the NPU of Snapdragon 8 Elite (8-elite)`.
    pub device: String,
    /// Description of the vendor-specific content: `3 compiled contexts, made with SDK 2.51`.
    pub holds: String,
}
