//! Where a model runs: on one device, or divided between two.
//!
//! Names only, as users write them; whether a machine has the devices is found out by the device crate.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::provider::{DeviceName, UnknownDevice};

/// Where a model runs.
///
/// Written as a device's name, or as a [`Split`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Place {
    /// All of it on one device.
    One(DeviceName),
    /// Its two phases on two devices.
    Phases(Split),
}

impl Place {
    /// Its devices: one, or that of prefill and that of decode.
    pub fn devices(self) -> Vec<DeviceName> {
        match self {
            Self::One(device) => vec![device],
            Self::Phases(Split { prefill, decode }) => vec![prefill, decode],
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(device) => device.fmt(f),
            Self::Phases(split) => split.fmt(f),
        }
    }
}

impl FromStr for Place {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        if text.contains('=') { text.parse().map(Self::Phases) } else { Ok(Self::One(text.parse()?)) }
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

/// How a decoder is divided between devices.
///
/// Written as a [`Split`], or as `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Division {
    /// As measurements on the machine say, which may be not at all.
    Measured,
    /// So.
    Given(Split),
}

impl FromStr for Division {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        match text.trim() {
            "auto" => Ok(Self::Measured),
            given => given.parse().map(Self::Given),
        }
    }
}

impl fmt::Display for Division {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measured => f.write_str("auto"),
            Self::Given(split) => split.fmt(f),
        }
    }
}

/// A string that names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownPlace {
    /// It is not of the form.
    #[error("expected prefill=DEVICE,decode=DEVICE, or auto where measurements may decide; found {found:?}")]
    Form {
        /// What was given.
        found: String,
    },
    /// Both phases are on one device.
    #[error("expected two devices, found {device} for both phases; {device} alone says that in fewer words")]
    Same {
        /// The device.
        device: DeviceName,
    },
    /// A device has no such name.
    #[error(transparent)]
    Device(#[from] UnknownDevice),
}

impl FromStr for Split {
    type Err = UnknownPlace;

    fn from_str(text: &str) -> Result<Self, UnknownPlace> {
        let form = || UnknownPlace::Form { found: text.chars().take(80).collect() };
        let (mut prefill, mut decode) = (None, None);
        for part in text.split(',') {
            let (phase, device) = part.split_once('=').ok_or_else(form)?;
            let place = match phase.trim().to_ascii_lowercase().as_str() {
                "prefill" => &mut prefill,
                "decode" => &mut decode,
                _ => return Err(form()),
            };
            if place.replace(device.parse()?).is_some() {
                return Err(form());
            }
        }
        match (prefill, decode) {
            (Some(device), Some(decode)) if device == decode => Err(UnknownPlace::Same { device }),
            (Some(prefill), Some(decode)) => Ok(Self { prefill, decode }),
            _ => Err(form()),
        }
    }
}

/// Places that are compared; at least one, each once.
///
/// Written with commas, as in `cpu,qnn,prefill=qnn,decode=cpu`: two words with `=` in a row are one split.
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
        let (mut places, mut words) = (Vec::new(), text.split(','));
        while let Some(word) = words.next() {
            let rest = if word.contains('=') { words.next() } else { None };
            let place = rest.map_or_else(|| word.parse(), |rest| format!("{word},{rest}").parse())?;
            if !places.contains(&place) {
                places.push(place);
            }
        }
        Ok(Self(places))
    }
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
        let check = check::<Split>;
        check("prefill=qnn,decode=webgpu", Ok("prefill=qnn,decode=webgpu"));
        check("decode = cpu, Prefill=qnn:emulation", Ok("prefill=qnn:emulation,decode=cpu"));
        check("prefill=qnn", Err("expected prefill=DEVICE,decode=DEVICE"));
        check("prefill=qnn,decode=cpu,decode=cpu", Err("found \"prefill=qnn"));
        check("prefill=tpu,decode=cpu", Err("unknown device \"tpu\""));
        check("prefill=cpu,decode=cpu", Err("cpu alone"));
        check("auto", Err("expected prefill"));
    }

    #[test]
    fn a_division_is_given_or_measured() {
        let check = check::<Division>;
        check(" auto", Ok("auto"));
        check("prefill=qnn,decode=cpu", Ok("prefill=qnn,decode=cpu"));
        check("cpu", Err("expected prefill=DEVICE,decode=DEVICE, or auto"));
    }

    #[test]
    fn devices_and_splits_stand_in_one_list() {
        let check = check::<Places>;
        check("cpu", Ok("cpu"));
        check(
            "cpu,prefill=qnn,decode=cpu,dml,cpu, decode=qnn,prefill=cpu",
            Ok("cpu,prefill=qnn,decode=cpu,directml,prefill=cpu,decode=qnn"),
        );
        check("prefill=qnn", Err("expected prefill=DEVICE,decode=DEVICE"));
        check("prefill=qnn,cpu,decode=cpu", Err("found \"prefill=qnn,cpu\""));
        check("", Err("unknown device"));
        check("cpu,", Err("unknown device"));
    }
}
