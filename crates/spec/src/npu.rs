//! Settings of a Hexagon NPU in addition to the [power preset](crate::Power).

use std::{fmt, str::FromStr};

use strum::{Display, IntoStaticStr};

use crate::UnknownName;

/// Settings of a Hexagon NPU. `None` keeps the value of the power preset or of the chip.
///
/// Written `priority=high,vtcm=4,rpc-latency=200`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NpuOptions {
    /// Priority compared with all other work on the NPU.
    pub priority: Option<Priority>,
    /// Amount of tightly coupled memory (VTCM) that a graph may use, in MiB, 1 to [`Self::MAX_VTCM_MB`]. The compiler's
    /// result depends on it.
    pub vtcm_mb: Option<u32>,
    /// Maximum time that a call waits for the NPU to wake, in microseconds, 1 to [`Self::MAX_RPC_LATENCY`].
    pub rpc_latency: Option<u32>,
}

impl NpuOptions {
    /// Maximum VTCM of any chip, in MiB.
    pub const MAX_VTCM_MB: u32 = 8;

    /// Maximum time to wait for the NPU to wake, in microseconds.
    pub const MAX_RPC_LATENCY: u32 = 10_000;
}

/// Priority of this program's work compared with all other work on an NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Display, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Priority {
    /// After other work.
    Low,
    /// Equal to other work.
    #[default]
    Normal,
    /// Before other work.
    High,
}

impl Priority {
    /// Every priority.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// Returns the name on the command line and in QNN.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl fmt::Display for NpuOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let priority = self.priority.map(|priority| format!("priority={}", priority.as_str()));
        let vtcm = self.vtcm_mb.map(|mb| format!("vtcm={mb}"));
        let latency = self.rpc_latency.map(|latency| format!("rpc-latency={latency}"));
        let given: Vec<String> = [priority, vtcm, latency].into_iter().flatten().collect();
        f.write_str(&given.join(","))
    }
}

/// A string that does not follow the form of [`NpuOptions`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected priority=low|normal|high, vtcm=MIB from 1 to {}, rpc-latency=MICROSECONDS from 1 to {}, each at most once; \
     found {found:?}",
    NpuOptions::MAX_VTCM_MB,
    NpuOptions::MAX_RPC_LATENCY
)]
pub struct InvalidNpuOption {
    /// Part of the string that could not be parsed.
    pub found: String,
}

impl FromStr for NpuOptions {
    type Err = InvalidNpuOption;

    fn from_str(text: &str) -> Result<Self, InvalidNpuOption> {
        let mut options = Self::default();
        for word in text.split(',') {
            let unknown = || InvalidNpuOption { found: word.chars().take(80).collect() };
            let (key, value) = word.split_once('=').ok_or_else(unknown)?;
            let key = key.trim().to_ascii_lowercase();
            let value = value.trim().to_ascii_lowercase();
            let up_to = |most: u32| value.parse().ok().filter(|found| (1..=most).contains(found));
            let new = match key.as_str() {
                "priority" => {
                    let priority = UnknownName::find("priority", &value, &Priority::ALL);
                    options.priority.replace(priority.map_err(|_| unknown())?).is_none()
                }
                "vtcm" => options.vtcm_mb.replace(up_to(Self::MAX_VTCM_MB).ok_or_else(unknown)?).is_none(),
                "rpc-latency" => {
                    options.rpc_latency.replace(up_to(Self::MAX_RPC_LATENCY).ok_or_else(unknown)?).is_none()
                }
                _ => false,
            };
            if !new {
                return Err(unknown());
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::QnnChip;

    #[test]
    fn options_read_as_they_are_written() {
        let check = |text: &str, expected: &str| {
            assert_eq!(
                text.parse::<NpuOptions>().map(|options| options.to_string()).as_deref(),
                Ok(expected)
            );
        };
        check("vtcm=4", "vtcm=4");
        check(" RPC-Latency = 200,priority=HIGH,vtcm=8", "priority=high,vtcm=8,rpc-latency=200");
        assert_eq!(NpuOptions::default().to_string(), "");
        for wrong in
            ["", "vtcm", "vtcm=0", "vtcm=9", "vtcm=1,vtcm=2", "priority=top", "rpc-latency=-1", "hvx=4"]
        {
            let error = wrong.parse::<NpuOptions>().unwrap_err().to_string();
            assert!(error.contains("vtcm=MIB from 1 to 8, rpc-latency=MICROSECONDS"), "{wrong}: {error}");
        }
    }

    #[test]
    fn no_chip_has_more_memory_than_can_be_asked_for() {
        let most = QnnChip::ALL.into_iter().map(|chip| chip.spec().vtcm_mb).max();
        assert_eq!(most, Some(NpuOptions::MAX_VTCM_MB));
    }
}
