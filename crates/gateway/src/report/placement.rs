//! Placement of a loaded model: for each graph and provider the nodes, their operators, their weights and their share
//! of the work.

use std::collections::BTreeMap;

use narthex_spec::{DeviceKind, DeviceName, DevicePlacement, Ep, HeadSplit, MediaKind, PhaseSplit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::report::fallback::FallbackNodes;

/// Placement of a loaded model on devices.
///
/// ```no_run
/// use narthex_gateway::{Cancel, Config, Gateway};
/// use narthex_spec::progress::Quiet;
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// let gateway = Gateway::open(Config::standard())?;
/// let status = gateway.load("smollm2:135m", &Quiet, &Cancel::new())?;
/// if let Some(report) = &status.placement {
///     println!("{} with {} on an NPU", report.name(), report.share_in_words());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacementReport {
    /// Device that runs the model. If there are two, the one for prefill or for the layers.
    pub device: DeviceName,
    /// Device for decode, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<DeviceName>,
    /// Device of the head, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<DeviceName>,
    /// Multiply-accumulates of one run of every graph.
    pub multiply_accumulates: u64,
    /// Share of the multiply-accumulates that run on an NPU, 0 to 1; for a decoder, the smaller share of its two
    /// phases. The host's work (embedding rows, angles, masks, sampling) has no matrix products and does not count.
    /// Software that stands in for an NPU does not count either.
    pub npu_share: f64,
    /// That share in each phase, for a decoder with static shapes or on two devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<PhaseShares>,
    /// One line for each graph and provider, apart from those of towers.
    pub lines: Vec<PlacementLine>,
    /// Towers, whose work is not part of the other figures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<TowerReport>,
    /// Nodes that fell back to another device.
    #[serde(rename = "fallen", default, skip_serializing_if = "FallbackNodes::is_empty")]
    pub fallback: FallbackNodes,
    /// Reason for the choice of devices, if measurements on this machine or a device map decided it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Events of the load that a user should know of, such as a stale compiled graph.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Shares of a decoder's multiply-accumulates that run on an NPU, 0 to 1, in each phase. The head is part of both.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PhaseShares {
    /// Share during prefill; the smallest one of graphs for several lengths.
    pub prefill: f64,
    /// Share during decode.
    pub decode: f64,
}

impl PhaseShares {
    pub(crate) fn min(self) -> f64 {
        self.prefill.min(self.decode)
    }
}

/// The part of a graph that one provider runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlacementLine {
    /// File name of the graph.
    pub graph: String,
    /// Provider.
    #[schemars(with = "String")]
    pub ep: Ep,
    /// Number of subgraphs that the provider runs as a whole.
    pub subgraphs: usize,
    /// Number of nodes that the provider runs.
    pub nodes: usize,
    /// Those nodes by operator.
    pub ops: BTreeMap<String, usize>,
    /// Bytes of the constants that those nodes read.
    pub weight_bytes: u64,
    /// Their share of the graph's multiply-accumulates, 0 to 1.
    pub compute_share: f64,
}

/// A tower that turns media of a conversation into rows of the decoder's input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TowerReport {
    /// Media that it reads: `image` or `audio`.
    #[schemars(with = "String")]
    pub reads: MediaKind,
    /// Device.
    #[schemars(with = "String")]
    pub device: DeviceName,
    /// Bytes of its weights.
    pub weight_bytes: u64,
    /// Multiply-accumulates of one run.
    pub multiply_accumulates: u64,
    /// One line for each graph and provider.
    pub lines: Vec<PlacementLine>,
}

impl TowerReport {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.lines.iter().map(|line| line.nodes).sum()
    }
}

impl PlacementReport {
    /// Returns the device, or the two devices and their division.
    pub fn place(&self) -> DevicePlacement {
        match (self.decode, self.head) {
            (Some(decode), _) => DevicePlacement::Phases(PhaseSplit { prefill: self.device, decode }),
            (None, Some(head)) => DevicePlacement::Head(HeadSplit { layers: self.device, head }),
            (None, None) => DevicePlacement::Single(self.device),
        }
    }

    /// Adds a reason for the choice of devices, which comes before the others.
    pub(crate) fn add_reason(&mut self, reason: String) {
        let others = self.why.take().map(|others| format!("; {others}"));
        self.why = Some(reason + &others.unwrap_or_default());
    }

    /// Returns the device's name, or both as `prefill=qnn,decode=cpu` or `layers=qnn,head=cpu`.
    pub fn name(&self) -> String {
        self.place().to_string()
    }

    /// Returns the software that stands in for an NPU, if the model uses one. Its times are meaningless and are not
    /// reported.
    pub fn stand_in(&self) -> Option<DeviceName> {
        self.place().devices().into_iter().find(|device| device.kind() == DeviceKind::StandIn)
    }

    /// Returns the NPU's share as text, such as `86.20 % of the multiply-accumulates`, with each phase's share where
    /// they differ.
    pub fn share_in_words(&self) -> String {
        let share = format!("{:.2} % of the multiply-accumulates", self.npu_share * 100.0);
        match self.phases.filter(|phases| phases.prefill != phases.decode) {
            Some(PhaseShares { prefill, decode }) => {
                let prefill = prefill * 100.0;
                let decode = decode * 100.0;
                format!("{share} (prefill {prefill:.2} %, decode {decode:.2} %)")
            }
            None => share,
        }
    }

    /// Returns the nodes and the work on the devices of the model: `qnn 1470/1470 nodes, 100 % of MACs`. The share of the
    /// work is that of the graph with the smallest share, rounded down.
    pub fn summary(&self) -> String {
        let devices = self.place().devices();
        let mut all = 0;
        let mut on_devices = 0;
        let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
        for line in &self.lines {
            all += line.nodes;
            let share = shares.entry(&line.graph).or_default();
            if devices.iter().any(|device| device.ep() == line.ep) {
                on_devices += line.nodes;
                *share += line.compute_share;
            }
        }
        let share = shares.values().copied().fold(1.0, f64::min);
        // Sums of shares may miss 1 by their rounding.
        let percent = (share * 100.0 + 1e-6).floor();
        format!("{} {on_devices}/{all} nodes, {percent:.0} % of MACs", self.name())
    }

    /// Returns the report of a decoder whose phases run on two devices.
    pub(crate) fn joined(prefill: Self, decode: Self) -> Self {
        let phases = PhaseShares {
            prefill: prefill.phases.map_or(prefill.npu_share, |phases| phases.prefill),
            decode: decode.phases.map_or(decode.npu_share, |phases| phases.decode),
        };
        Self {
            device: prefill.device,
            decode: Some(decode.device),
            head: None,
            multiply_accumulates: prefill.multiply_accumulates.saturating_add(decode.multiply_accumulates),
            npu_share: phases.min(),
            phases: Some(phases),
            lines: [prefill.lines, decode.lines].concat(),
            towers: [prefill.towers, decode.towers].concat(),
            fallback: prefill.fallback.and(decode.fallback),
            why: None,
            notes: [prefill.notes, decode.notes].concat(),
        }
    }
}

/// Device that answered a request, for the reply's headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnsweringDevice {
    /// Name of the device, or both as `prefill=qnn,decode=cpu`.
    pub device: String,
    /// Nodes and work on it, as [`PlacementReport::summary`] writes them.
    pub placement: String,
    /// Preferred devices that did not run the model, with their reasons.
    pub fallback: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_devices_share_a_model() {
        let report = |device, work, npu_share| PlacementReport {
            device,
            decode: None,
            head: None,
            multiply_accumulates: work,
            npu_share,
            phases: None,
            lines: Vec::new(),
            towers: Vec::new(),
            fallback: FallbackNodes::default(),
            why: None,
            notes: vec![format!("{device}")],
        };
        let joined =
            PlacementReport::joined(report(DeviceName::Qnn, 900, 1.0), report(DeviceName::Cpu, 300, 0.0));
        assert_eq!((joined.npu_share, joined.multiply_accumulates), (0.0, 1200));
        assert_eq!(joined.phases, Some(PhaseShares { prefill: 1.0, decode: 0.0 }));
        let words = joined.share_in_words();
        assert_eq!(words, "0.00 % of the multiply-accumulates (prefill 100.00 %, decode 0.00 %)");
        assert_eq!((joined.name().as_str(), joined.notes.len()), ("prefill=qnn,decode=cpu", 2));
        let parts = PlacementReport { decode: None, head: joined.decode, phases: None, ..joined };
        assert_eq!(parts.share_in_words(), "0.00 % of the multiply-accumulates");
        assert_eq!(parts.name(), "layers=qnn,head=cpu");
    }
}
