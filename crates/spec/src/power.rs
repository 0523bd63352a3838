//! Trade-off between a device's speed and its energy use.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr};

use crate::name::named_set;

/// Preset for a device's clocks while it works. Each provider translates it to its own settings.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, Display, IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Power {
    /// Shortest time to an answer.
    #[default]
    Burst,
    /// A balance of time and energy.
    Balanced,
    /// Least energy.
    Saver,
}

impl Power {
    /// Every preset.
    pub const ALL: [Self; 3] = [Self::Burst, Self::Balanced, Self::Saver];
}

named_set!(Power, "power preset");
