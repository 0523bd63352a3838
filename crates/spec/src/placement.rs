//! Placement of a model: on one device, or split between two by phase or at the head.
//!
//! This module has only the names, as users write them. The device crate detects which devices a machine has.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{DeviceName, UnknownName, name::string_form};

/// Devices that a model runs on.
///
/// Written as a device's name, a [`PhaseSplit`] or a [`HeadSplit`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DevicePlacement {
    /// The whole model on one device.
    Single(DeviceName),
    /// Prefill and decode on two devices.
    Phases(PhaseSplit),
    /// Layers and head on two devices.
    Head(HeadSplit),
}

impl DevicePlacement {
    /// Returns its devices: one, those of prefill and decode, or those of layers and head.
    pub fn devices(self) -> Vec<DeviceName> {
        match self {
            Self::Single(device) => vec![device],
            Self::Phases(PhaseSplit { prefill, decode }) => vec![prefill, decode],
            Self::Head(HeadSplit { layers, head }) => vec![layers, head],
        }
    }
}

impl fmt::Display for DevicePlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(device) => device.fmt(f),
            Self::Phases(split) => split.fmt(f),
            Self::Head(split) => split.fmt(f),
        }
    }
}

impl FromStr for DevicePlacement {
    type Err = InvalidPlacement;

    fn from_str(text: &str) -> Result<Self, InvalidPlacement> {
        if text.contains('=') { parse_split(text) } else { Ok(Self::Single(text.parse()?)) }
    }
}

string_form!(DevicePlacement);

/// Devices for the two phases of a decoder.
///
/// Written `prefill=qnn,decode=cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PhaseSplit {
    /// Device of the prefill.
    pub prefill: DeviceName,
    /// Device of the decode.
    pub decode: DeviceName,
}

impl fmt::Display for PhaseSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "prefill={},decode={}", self.prefill, self.decode)
    }
}

/// Devices for the layers of a decoder in graphs with fixed shapes, and for the head that computes logits from their
/// output. The host always looks up the embeddings.
///
/// Written `layers=qnn,head=cpu`, with `embeddings=cpu` or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSplit {
    /// Device of the layers.
    pub layers: DeviceName,
    /// Device of the head.
    pub head: DeviceName,
}

impl fmt::Display for HeadSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layers={},head={}", self.layers, self.head)
    }
}

/// Choice of a placement on several devices, as passed to `--place`.
///
/// Written as a [`PhaseSplit`], a [`HeadSplit`] or `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementChoice {
    /// Measured on this machine; the result may be a single device.
    Auto,
    /// This split; never [`DevicePlacement::Single`].
    Fixed(DevicePlacement),
}

impl FromStr for PlacementChoice {
    type Err = InvalidPlacement;

    fn from_str(text: &str) -> Result<Self, InvalidPlacement> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            given => parse_split(given).map(Self::Fixed),
        }
    }
}

impl fmt::Display for PlacementChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(placement) => placement.fmt(f),
        }
    }
}

/// A string that is not a placement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPlacement {
    /// The form is wrong.
    #[error(
        "expected prefill=DEVICE,decode=DEVICE, or layers=DEVICE,head=DEVICE, or auto to measure; found {found:?}"
    )]
    Form {
        /// The string, shortened.
        found: String,
    },
    /// Both devices are the same.
    #[error("expected two devices, found {device} for both; for a single device write only {device}")]
    Same {
        /// The device.
        device: DeviceName,
    },
    /// Embeddings are placed on a device other than the CPU.
    #[error(
        "expected embeddings=cpu, found {device}: the host looks up embeddings, so no graph contains their table"
    )]
    Embeddings {
        /// The device.
        device: DeviceName,
    },
    /// A device is unknown.
    #[error(transparent)]
    Device(#[from] UnknownName),
}

/// Keys with a device as their value: those of a phase split, then those of a head split.
const KEYS: [&str; 5] = ["prefill", "decode", "layers", "head", "embeddings"];

/// Splits a word such as `prefill=qnn` into its index in [`KEYS`] and its device.
fn assignment(word: &str) -> Option<(usize, &str)> {
    let (name, device) = word.split_once('=')?;
    let name = name.trim().to_ascii_lowercase();
    Some((KEYS.iter().position(|known| *known == name)?, device))
}

/// Parses a [`PhaseSplit`] or a [`HeadSplit`].
fn parse_split(text: &str) -> Result<DevicePlacement, InvalidPlacement> {
    let form = || InvalidPlacement::Form { found: text.chars().take(80).collect() };
    let mut devices = [None; KEYS.len()];
    for word in text.split(',') {
        let (index, device) = assignment(word).ok_or_else(form)?;
        if devices[index].replace(device.parse::<DeviceName>()?).is_some() {
            return Err(form());
        }
    }
    match devices {
        // This rule does not depend on the other devices, so it is checked first.
        [None, None, Some(_), Some(_), Some(device)] if device != DeviceName::Cpu => {
            Err(InvalidPlacement::Embeddings { device })
        }
        [Some(device), Some(other), None, None, None] | [None, None, Some(device), Some(other), _]
            if device == other =>
        {
            Err(InvalidPlacement::Same { device })
        }
        [Some(prefill), Some(decode), None, None, None] => {
            Ok(DevicePlacement::Phases(PhaseSplit { prefill, decode }))
        }
        [None, None, Some(layers), Some(head), _] => Ok(DevicePlacement::Head(HeadSplit { layers, head })),
        _ => Err(form()),
    }
}

/// Placements to compare: at least one, without repetitions.
///
/// Written with commas, as in `cpu,qnn,prefill=qnn,decode=cpu`. Consecutive words with `=` form one placement, until a
/// key repeats or belongs to the other kind of split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DevicePlacements(Vec<DevicePlacement>);

impl DevicePlacements {
    /// Returns the placements in the given order.
    pub fn as_slice(&self) -> &[DevicePlacement] {
        &self.0
    }

    /// Returns the devices of all placements, with repetitions.
    pub fn devices(&self) -> impl Iterator<Item = DeviceName> {
        self.0.iter().flat_map(|placement| placement.devices())
    }
}

impl fmt::Display for DevicePlacements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(DevicePlacement::to_string).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for DevicePlacements {
    type Err = InvalidPlacement;

    fn from_str(text: &str) -> Result<Self, InvalidPlacement> {
        let mut groups: Vec<Vec<&str>> = Vec::new();
        for word in text.split(',') {
            match groups.last_mut() {
                Some(group) if continues(word, group) => group.push(word),
                _ => groups.push(vec![word]),
            }
        }
        let mut placements = Vec::with_capacity(groups.len());
        for group in groups {
            let placement = group.join(",").parse()?;
            if !placements.contains(&placement) {
                placements.push(placement);
            }
        }
        Ok(Self(placements))
    }
}

/// Returns true if a word continues the placement that starts with `group`.
fn continues(word: &str, group: &[&str]) -> bool {
    let Some((index, _)) = assignment(word) else { return false };
    group
        .iter()
        .all(|other| assignment(other).is_some_and(|(other, _)| other != index && (other < 2) == (index < 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr<Err = InvalidPlacement> + fmt::Display>(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<T>(), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.to_string(), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{text}: {error}"),
            (Ok(found), Err(expected)) => panic!("{text}: {found} instead of {expected:?}"),
            (Err(error), Ok(_)) => panic!("{text}: {error}"),
        }
    }

    #[test]
    fn phase_splits_read_as_they_are_written() {
        let check = check::<PlacementChoice>;
        check("prefill=qnn,decode=webgpu", Ok("prefill=qnn,decode=webgpu"));
        check("decode = cpu, Prefill=qnn:emulation", Ok("prefill=qnn:emulation,decode=cpu"));
        check("prefill=qnn", Err("expected prefill=DEVICE,decode=DEVICE"));
        check("prefill=qnn,decode=cpu,decode=cpu", Err("found \"prefill=qnn"));
        check("prefill=tpu,decode=cpu", Err("unknown device \"tpu\""));
        check("prefill=cpu,decode=cpu", Err("write only cpu"));
        check("cpu", Err("expected prefill=DEVICE,decode=DEVICE"));
        check(" auto", Ok("auto"));
    }

    #[test]
    fn head_splits_read_as_they_are_written() {
        let check = check::<PlacementChoice>;
        check("layers=qnn,head=cpu", Ok("layers=qnn,head=cpu"));
        check("embeddings=cpu, head=cpu,Layers=qnn", Ok("layers=qnn,head=cpu"));
        check("embeddings=qnn,layers=qnn,head=cpu", Err("expected embeddings=cpu, found qnn"));
        check("embeddings=qnn,layers=cpu,head=cpu", Err("expected embeddings=cpu, found qnn"));
        check("layers=qnn", Err("layers=DEVICE,head=DEVICE"));
        check("layers=qnn,decode=cpu", Err("found \"layers=qnn"));
        check("embeddings=cpu,layers=qnn,head=qnn", Err("write only qnn"));
    }

    #[test]
    fn devices_and_splits_stand_in_one_list() {
        let check = check::<DevicePlacements>;
        check("cpu", Ok("cpu"));
        check(
            "cpu,prefill=qnn,decode=cpu,dml,cpu, decode=qnn,prefill=cpu",
            Ok("cpu,prefill=qnn,decode=cpu,directml,prefill=cpu,decode=qnn"),
        );
        check(
            "layers=qnn,head=cpu,embeddings=cpu,prefill=qnn,decode=cpu,layers=cpu,head=qnn,cpu",
            Ok("layers=qnn,head=cpu,prefill=qnn,decode=cpu,layers=cpu,head=qnn,cpu"),
        );
        check("prefill=qnn", Err("expected prefill=DEVICE,decode=DEVICE"));
        check("prefill=qnn,cpu,decode=cpu", Err("found \"prefill=qnn\""));
        check("", Err("unknown device"));
        check("cpu,", Err("unknown device"));
    }
}
