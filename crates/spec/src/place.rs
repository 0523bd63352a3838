//! Where a model runs: on one device, or divided between two by its phases or its parts.
//!
//! Names only, as users write them; whether a machine has the devices is found out by the device crate.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::provider::{DeviceName, UnknownDevice};

/// Where a model runs.
///
/// Written as a device's name, a [`Split`], or [`Parts`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// All of it on one device.
    One(DeviceName),
    /// Its two phases on two devices.
    Phases(Split),
    /// Its layers and its head on two devices.
    Parts(Parts),
}

impl Place {
    /// Its devices: one, those of prefill and decode, or those of the layers and the head.
    pub fn devices(self) -> Vec<DeviceName> {
        match self {
            Self::One(device) => vec![device],
            Self::Phases(Split { prefill, decode }) => vec![prefill, decode],
            Self::Parts(Parts { layers, head }) => vec![layers, head],
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(device) => device.fmt(f),
            Self::Phases(split) => split.fmt(f),
            Self::Parts(parts) => parts.fmt(f),
        }
    }
}

impl FromStr for Place {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        if text.contains('=') { divided(text) } else { Ok(Self::One(text.parse()?)) }
    }
}

impl TryFrom<String> for Place {
    type Error = UnknownPlace;

    fn try_from(text: String) -> Result<Self, UnknownPlace> {
        text.parse()
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

/// Devices for the two phases of a decoder: one reads prompts, the other writes answers.
///
/// Written `prefill=qnn,decode=cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Where prompts are read.
    pub prefill: DeviceName,
    /// Where answers are written.
    pub decode: DeviceName,
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "prefill={},decode={}", self.prefill, self.decode)
    }
}

/// Devices for the parts of a decoder in graphs of fixed shape: its layers, and the head that makes logits of what they
/// give. The host looks up the embeddings, whatever the devices are.
///
/// Written `layers=qnn,head=cpu`, with `embeddings=cpu` or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parts {
    /// Where the layers run.
    pub layers: DeviceName,
    /// Where the head runs.
    pub head: DeviceName,
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layers={},head={}", self.layers, self.head)
    }
}

/// How a decoder is divided between devices.
///
/// Written as a [`Split`], as [`Parts`], or as `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// As measurements on the machine say, which may be not at all.
    Measured,
    /// So; never [`Place::One`].
    Given(Place),
}

impl FromStr for Division {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        match text.trim() {
            "auto" => Ok(Self::Measured),
            given => divided(given).map(Self::Given),
        }
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured => f.write_str("auto"),
            Self::Given(place) => place.fmt(f),
        }
    }
}

/// A string that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPlace {
    /// It is not of the form.
    #[error(
        "expected prefill=DEVICE,decode=DEVICE, or layers=DEVICE,head=DEVICE, or auto where measurements may decide; found \
         {found:?}"
    )]
    Form {
        /// What was given.
        found: String,
    },
    /// Everything is on one device.
    #[error("expected two devices, found {device} for both; {device} alone says that in fewer words")]
    Same {
        /// The device.
        device: DeviceName,
    },
    /// Embeddings are to be on a device.
    #[error(
        "expected embeddings=cpu, found {device}: the host looks them up, so that no graph has to hold their table"
    )]
    Embeddings {
        /// The device.
        device: DeviceName,
    },
    /// A device has no such name.
    #[error(transparent)]
    Device(#[from] UnknownDevice),
}

/// What may have a device of its own: the phases, then the parts.
const DIVISIBLE: [&str; 5] = ["prefill", "decode", "layers", "head", "embeddings"];

/// Which of [`DIVISIBLE`] a word such as `prefill=qnn` is about, and the device.
fn assignment(word: &str) -> Option<(usize, &str)> {
    let (name, device) = word.split_once('=')?;
    let name = name.trim().to_ascii_lowercase();
    Some((DIVISIBLE.iter().position(|known| *known == name)?, device))
}

/// Reads a [`Split`] or [`Parts`].
fn divided(text: &str) -> Result<Place, UnknownPlace> {
    let form = || UnknownPlace::Form { found: text.chars().take(80).collect() };
    let mut devices = [None; DIVISIBLE.len()];
    for word in text.split(',') {
        let (index, device) = assignment(word).ok_or_else(form)?;
        if devices[index].replace(device.parse::<DeviceName>()?).is_some() {
            return Err(form());
        }
    }
    match devices {
        // A rule that holds whatever the others say goes first.
        [None, None, Some(_), Some(_), Some(device)] if device != DeviceName::Cpu => {
            Err(UnknownPlace::Embeddings { device })
        }
        [Some(device), Some(other), None, None, None] | [None, None, Some(device), Some(other), _]
            if device == other =>
        {
            Err(UnknownPlace::Same { device })
        }
        [Some(prefill), Some(decode), None, None, None] => Ok(Place::Phases(Split { prefill, decode })),
        [None, None, Some(layers), Some(head), _] => Ok(Place::Parts(Parts { layers, head })),
        _ => Err(form()),
    }
}

/// Places that are compared; at least one, each once.
///
/// Written with commas, as in `cpu,qnn,prefill=qnn,decode=cpu`: words with `=` in a row are one place, until one repeats
/// what that place has already or is about parts instead of phases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places(Vec<Place>);

impl Places {
    /// The places, in the order in which they were given.
    pub fn as_slice(&self) -> &[Place] {
        &self.0
    }

    /// The devices of all of them, as often as they are named.
    pub fn devices(&self) -> impl Iterator<Item = DeviceName> {
        self.0.iter().flat_map(|place| place.devices())
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(Place::to_string).collect();
        f.write_str(&names.join(","))
    }
}

impl FromStr for Places {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        let mut groups: Vec<Vec<&str>> = Vec::new();
        for word in text.split(',') {
            match groups.last_mut() {
                Some(group) if belongs(word, group) => group.push(word),
                _ => groups.push(vec![word]),
            }
        }
        let mut places = Vec::with_capacity(groups.len());
        for group in groups {
            let place = group.join(",").parse()?;
            if !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(Self(places))
    }
}

/// Whether a word goes on with the place that `group` begins.
fn belongs(word: &str, group: &[&str]) -> bool {
    let Some((index, _)) = assignment(word) else { return false };
    group
        .iter()
        .all(|other| assignment(other).is_some_and(|(other, _)| other != index && (other < 2) == (index < 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr<Err = UnknownPlace> + fmt::Display>(text: &str, expected: Result<&str, &str>) {
        match (text.parse::<T>(), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found.to_string(), expected),
            (Err(error), Err(expected)) => assert!(error.to_string().contains(expected), "{text}: {error}"),
            (Ok(found), Err(expected)) => panic!("{text}: {found} instead of {expected:?}"),
            (Err(error), Ok(_)) => panic!("{text}: {error}"),
        }
    }

    #[test]
    fn splits_read_as_they_are_written() {
        let check = check::<Division>;
        check("prefill=qnn,decode=webgpu", Ok("prefill=qnn,decode=webgpu"));
        check("decode = cpu, Prefill=qnn:emulation", Ok("prefill=qnn:emulation,decode=cpu"));
        check("prefill=qnn", Err("expected prefill=DEVICE,decode=DEVICE"));
        check("prefill=qnn,decode=cpu,decode=cpu", Err("found \"prefill=qnn"));
        check("prefill=tpu,decode=cpu", Err("unknown device \"tpu\""));
        check("prefill=cpu,decode=cpu", Err("cpu alone"));
        check("cpu", Err("expected prefill=DEVICE,decode=DEVICE"));
        check(" auto", Ok("auto"));
    }

    #[test]
    fn parts_read_as_they_are_written() {
        let check = check::<Division>;
        check("layers=qnn,head=cpu", Ok("layers=qnn,head=cpu"));
        check("embeddings=cpu, head=cpu,Layers=qnn", Ok("layers=qnn,head=cpu"));
        check("embeddings=qnn,layers=qnn,head=cpu", Err("expected embeddings=cpu, found qnn"));
        check("embeddings=qnn,layers=cpu,head=cpu", Err("expected embeddings=cpu, found qnn"));
        check("layers=qnn", Err("layers=DEVICE,head=DEVICE"));
        check("layers=qnn,decode=cpu", Err("found \"layers=qnn"));
        check("embeddings=cpu,layers=qnn,head=qnn", Err("qnn alone"));
    }

    #[test]
    fn devices_and_splits_stand_in_one_list() {
        let check = check::<Places>;
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
