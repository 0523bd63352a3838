//! What a Hexagon NPU is told besides a preset of power.

use std::{fmt, str::FromStr};

/// Settings of a Hexagon NPU. What is left out is as the preset of power or the chip has it.
///
/// Written `priority=high,vtcm=4,rpc-latency=200`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct NpuOptions {
    /// Whose work comes first.
    pub priority: Option<Priority>,
    /// MiB of the vector memory near the NPU (VTCM) that a graph may take, 1 to [`Self::MOST_VTCM`]. It decides what the
    /// compiler makes of a graph.
    pub vtcm_mb: Option<u32>,
    /// Microseconds that a call may wait for the NPU to wake, 1 to [`Self::MOST_LATENCY`].
    pub rpc_latency: Option<u32>,
}

impl NpuOptions {
    /// The most vector memory of any chip, in MiB.
    pub const MOST_VTCM: u32 = 8;

    /// The longest that a call may wait, in microseconds.
    pub const MOST_LATENCY: u32 = 10_000;
}

/// Which work an NPU does first where there is more than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Priority {
    /// That of others.
    Low,
    /// Neither.
    #[default]
    Normal,
    /// This.
    High,
}

impl Priority {
    /// Every priority.
    pub const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// The name on the command line, and QNN's.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        }
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

/// A string that is no settings of an NPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected, each at most once, priority=low, normal or high, vtcm=MIB from 1 to {}, rpc-latency=MICROSECONDS from 1 to {}; \
     found {found:?}",
    NpuOptions::MOST_VTCM,
    NpuOptions::MOST_LATENCY
)]
pub struct UnknownNpuOption {
    /// What was given.
    pub found: String,
}

impl FromStr for NpuOptions {
    type Err = UnknownNpuOption;

    fn from_str(text: &str) -> Result<Self, UnknownNpuOption> {
        let mut options = Self::default();
        for word in text.split(',') {
            let unknown = || UnknownNpuOption { found: word.chars().take(80).collect() };
            let (key, value) = word.split_once('=').ok_or_else(unknown)?;
            let (key, value) = (key.trim().to_ascii_lowercase(), value.trim().to_ascii_lowercase());
            let up_to = |most: u32| value.parse().ok().filter(|found| (1..=most).contains(found));
            let priority = || Priority::ALL.into_iter().find(|priority| priority.as_str() == value);
            let new = match key.as_str() {
                "priority" => options.priority.replace(priority().ok_or_else(unknown)?).is_none(),
                "vtcm" => options.vtcm_mb.replace(up_to(Self::MOST_VTCM).ok_or_else(unknown)?).is_none(),
                "rpc-latency" => {
                    options.rpc_latency.replace(up_to(Self::MOST_LATENCY).ok_or_else(unknown)?).is_none()
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
        let most = QnnChip::ALL.into_iter().map(|chip| chip.facts().vtcm_mb).max();
        assert_eq!(most, Some(NpuOptions::MOST_VTCM));
    }
}
