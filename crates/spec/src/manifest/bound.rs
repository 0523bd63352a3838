//! Packages that one kind of device alone runs.

use serde::{Deserialize, Serialize};

use crate::{Ep, Target};

/// What runs a package whose graphs hold what a vendor's tools made for its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The provider that takes them.
    pub ep: Ep,
    /// The chips that they were made for, where they say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Target>,
    /// The device in words: `the NPU of Snapdragon 8 Elite (8-elite)`.
    pub device: String,
    /// What the graphs hold, in words: `3 compiled contexts, made with SDK 2.51`.
    pub holds: String,
}
