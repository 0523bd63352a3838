//! Devices of the parts of a model, as a user or a client requires them.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};

use crate::{DeviceKind, DeviceName, DeviceOrder, DevicePlacement, HeadSplit, PhaseSplit, UnknownName};

/// Maximum length of a part or of a device in an error message, in characters.
const MAX_SHOWN: usize = 80;

/// Part of a model, or phase of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, EnumString, Display)]
#[strum(serialize_all = "lowercase", ascii_case_insensitive)]
pub enum ModelPart {
    /// The table of embeddings, which the host looks up.
    Embeddings,
    /// All layers.
    Layers,
    /// The head that computes logits.
    Head,
    /// The towers that read pictures and sounds.
    Towers,
    /// The layers and the head while they process a prompt.
    Prefill,
    /// The layers and the head while they generate.
    Decode,
}

/// A device, or a kind of which a load selects the first device that accepts the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceSelector {
    /// This device.
    Device(DeviceName),
    /// Any NPU.
    AnyNpu,
    /// Any GPU.
    AnyGpu,
}

impl DeviceSelector {
    /// Returns whether a device is this one or of this kind.
    pub fn matches(self, device: DeviceName) -> bool {
        match self {
            Self::Device(name) => name == device,
            Self::AnyNpu => device.kind() == DeviceKind::Npu,
            Self::AnyGpu => device.kind() == DeviceKind::Gpu,
        }
    }

    /// Returns the devices to try, first those of an order.
    fn candidates(self, order: &DeviceOrder) -> Vec<DeviceName> {
        if let Self::Device(name) = self {
            return vec![name];
        }
        let mut candidates: Vec<DeviceName> = Vec::new();
        for &device in order.devices().iter().chain(DeviceOrder::auto().devices()) {
            if self.matches(device) && !candidates.contains(&device) {
                candidates.push(device);
            }
        }
        candidates
    }
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => name.fmt(f),
            Self::AnyNpu => f.write_str("npu"),
            Self::AnyGpu => f.write_str("gpu"),
        }
    }
}

impl FromStr for DeviceSelector {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        match text.trim().to_ascii_lowercase().as_str() {
            "npu" => Ok(Self::AnyNpu),
            "gpu" => Ok(Self::AnyGpu),
            name => name.parse().map(Self::Device),
        }
    }
}

/// Devices that parts of a model must run on. A load that cannot place a part there fails.
///
/// Written `layers=npu,head=cpu`, or `prefill=npu,decode=cpu`, or as a JSON object with the same names.
///
/// ```
/// use narthex_spec::{DeviceMap, DeviceOrder};
///
/// let map: DeviceMap = "layers=npu".parse()?;
/// let placements = map.placements(&DeviceOrder::auto());
/// assert_eq!(placements[0].to_string(), "qnn");
/// # Ok::<(), narthex_spec::InvalidDeviceMap>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenDeviceMap", into = "String")]
pub struct DeviceMap(Division);

/// Division of a model between devices. Embeddings and towers are always on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Division {
    /// All layers, and a head that may run on another device.
    Parts { layers: DeviceSelector, head: Option<DeviceSelector> },
    /// Both phases.
    Phases { prefill: DeviceSelector, decode: DeviceSelector },
}

/// A string or an object that is not a [`DeviceMap`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDeviceMap {
    /// The form is wrong.
    #[error(
        "expected parts with devices, as in layers=npu,head=cpu or prefill=npu,decode=cpu; found {found:?}"
    )]
    Form {
        /// The string, shortened.
        found: String,
    },
    /// A part is unknown.
    #[error(
        "expected a part (embeddings, layers, head, towers, prefill, decode), found {found:?}{}",
        range_hint(found)
    )]
    Part {
        /// The name, shortened.
        found: String,
    },
    /// A part is named twice.
    #[error("{part} has two devices; expected one")]
    Twice {
        /// The part.
        part: ModelPart,
    },
    /// A part that only the CPU runs is placed elsewhere.
    #[error("{part} run on the CPU only: {reason}; expected {part}=cpu, found {found}")]
    OnlyCpu {
        /// The part.
        part: ModelPart,
        /// The reason.
        reason: &'static str,
        /// The device.
        found: DeviceSelector,
    },
    /// The parts do not form a division of a model.
    #[error("expected layers with or without a head, or both prefill and decode; found {found}")]
    Division {
        /// The parts.
        found: String,
    },
    /// A device is unknown.
    #[error("{0}; or a kind: npu, gpu")]
    Device(#[from] UnknownName),
}

/// Returns the end of the message about an unknown part.
fn range_hint(found: &str) -> &'static str {
    if found.to_ascii_lowercase().starts_with("layers") { "; one device runs all layers" } else { "" }
}

impl DeviceMap {
    /// Returns the map of these parts to devices.
    ///
    /// # Errors
    /// [`InvalidDeviceMap`] for unknown names, for a part that is named twice, and for a division that is not possible.
    pub fn new<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, InvalidDeviceMap> {
        let mut devices = BTreeMap::new();
        for (part, device) in parts {
            let part: ModelPart = part
                .trim()
                .parse()
                .map_err(|_| InvalidDeviceMap::Part { found: part.chars().take(MAX_SHOWN).collect() })?;
            if devices.insert(part, device.parse()?).is_some() {
                return Err(InvalidDeviceMap::Twice { part });
            }
        }

        let looked_up = "the host looks them up, so that no graph contains their table";
        check_on_cpu(&mut devices, ModelPart::Embeddings, looked_up)?;
        check_on_cpu(&mut devices, ModelPart::Towers, "this version has no towers for other devices")?;

        let of = |part| devices.get(&part).copied();
        let layers_and_head = [ModelPart::Layers, ModelPart::Head].map(of);
        let phases = [ModelPart::Prefill, ModelPart::Decode].map(of);
        match (layers_and_head, phases) {
            ([Some(layers), head], [None, None]) => Ok(Self(Division::Parts { layers, head })),
            ([None, None], [Some(prefill), Some(decode)]) => Ok(Self(Division::Phases { prefill, decode })),
            _ => {
                let found: Vec<String> = devices.keys().map(ModelPart::to_string).collect();
                let found = if found.is_empty() { "neither".to_owned() } else { found.join(", ") };
                Err(InvalidDeviceMap::Division { found })
            }
        }
    }

    /// Returns the placements that satisfy the map, in the order in which a load tries them.
    pub fn placements(&self, order: &DeviceOrder) -> Vec<DevicePlacement> {
        let (first, second) = match self.0 {
            Division::Parts { layers, head: None } => {
                return layers.candidates(order).into_iter().map(DevicePlacement::Single).collect();
            }
            Division::Parts { layers, head: Some(head) } => (layers, head),
            Division::Phases { prefill, decode } => (prefill, decode),
        };
        let seconds = second.candidates(order);
        let pairs = first.candidates(order).into_iter().flat_map(|first| {
            seconds.iter().map(move |second| match self.0 {
                _ if first == *second => DevicePlacement::Single(first),
                Division::Parts { .. } => DevicePlacement::Head(HeadSplit { layers: first, head: *second }),
                Division::Phases { .. } => {
                    DevicePlacement::Phases(PhaseSplit { prefill: first, decode: *second })
                }
            })
        });
        pairs.collect()
    }

    /// Returns whether a model in this placement satisfies the map.
    pub fn is_satisfied_by(&self, placement: DevicePlacement) -> bool {
        match (self.0, placement) {
            (Division::Parts { layers, head }, DevicePlacement::Single(device)) => {
                layers.matches(device) && head.is_none_or(|head| head.matches(device))
            }
            (Division::Parts { layers, head: Some(head) }, DevicePlacement::Head(split)) => {
                layers.matches(split.layers) && head.matches(split.head)
            }
            (Division::Phases { prefill, decode }, DevicePlacement::Single(device)) => {
                prefill.matches(device) && decode.matches(device)
            }
            (Division::Phases { prefill, decode }, DevicePlacement::Phases(split)) => {
                prefill.matches(split.prefill) && decode.matches(split.decode)
            }
            _ => false,
        }
    }

    /// Returns whether the map divides phases or parts, which only decoders have.
    pub fn is_divided(&self) -> bool {
        !matches!(self.0, Division::Parts { head: None, .. })
    }
}

/// Removes a part that only the CPU runs. Fails if it is placed elsewhere.
fn check_on_cpu(
    devices: &mut BTreeMap<ModelPart, DeviceSelector>,
    part: ModelPart,
    reason: &'static str,
) -> Result<(), InvalidDeviceMap> {
    match devices.remove(&part).filter(|device| !device.matches(DeviceName::Cpu)) {
        None => Ok(()),
        Some(found) => Err(InvalidDeviceMap::OnlyCpu { part, reason, found }),
    }
}

impl fmt::Display for DeviceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Division::Parts { layers, head: None } => write!(f, "layers={layers}"),
            Division::Parts { layers, head: Some(head) } => write!(f, "layers={layers},head={head}"),
            Division::Phases { prefill, decode } => write!(f, "prefill={prefill},decode={decode}"),
        }
    }
}

impl FromStr for DeviceMap {
    type Err = InvalidDeviceMap;

    fn from_str(text: &str) -> Result<Self, InvalidDeviceMap> {
        let form = || InvalidDeviceMap::Form { found: text.chars().take(MAX_SHOWN).collect() };
        let parts = text.split(',').map(|word| word.split_once('=').ok_or_else(form));
        Self::new(parts.collect::<Result<Vec<_>, _>>()?)
    }
}

impl From<DeviceMap> for String {
    fn from(map: DeviceMap) -> Self {
        map.to_string()
    }
}

/// The forms of a [`DeviceMap`] in JSON.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a text such as layers=npu,head=cpu, or an object of parts and their devices"
)]
enum WrittenDeviceMap {
    Text(String),
    Parts(BTreeMap<String, String>),
}

impl TryFrom<WrittenDeviceMap> for DeviceMap {
    type Error = InvalidDeviceMap;

    fn try_from(written: WrittenDeviceMap) -> Result<Self, InvalidDeviceMap> {
        match written {
            WrittenDeviceMap::Text(text) => text.parse(),
            WrittenDeviceMap::Parts(parts) => {
                Self::new(parts.iter().map(|(part, device)| (part.as_str(), device.as_str())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> DeviceMap {
        text.parse().unwrap()
    }

    #[test]
    fn maps_are_read_from_text_and_objects_and_written_in_one_form() {
        for (text, json, written) in [
            ("layers=npu", r#"{"layers": "npu"}"#, "layers=npu"),
            (
                "Head=CPU, layers = qnn,embeddings=cpu",
                r#"{"head": "cpu", "layers": "qnn", "embeddings": "cpu"}"#,
                "layers=qnn,head=cpu",
            ),
            (
                "decode=gpu,prefill=npu,towers=cpu",
                r#"{"prefill": "npu", "decode": "gpu", "towers": "cpu"}"#,
                "prefill=npu,decode=gpu",
            ),
        ] {
            assert_eq!(map(text).to_string(), written);
            assert_eq!(serde_json::from_str::<DeviceMap>(json).unwrap(), map(text), "{json}");
            assert_eq!(map(written), map(text));
        }
    }

    #[test]
    fn what_no_load_can_place_is_refused_with_the_reason() {
        for (text, expected) in [
            ("npu", "expected parts with devices"),
            ("", "expected parts with devices"),
            ("layers=tpu", "tpu"),
            (
                "tail=cpu",
                "expected a part (embeddings, layers, head, towers, prefill, decode), found \"tail\"",
            ),
            ("layers.0-11=npu", "one device runs all layers"),
            ("layers=cpu,layers=npu", "layers has two devices"),
            ("embeddings=npu,layers=gpu,head=cpu", "the host looks them up"),
            ("layers=npu,towers=gpu", "expected towers=cpu, found gpu"),
            ("head=cpu", "found head"),
            ("prefill=npu", "found prefill"),
            ("layers=npu,prefill=npu,decode=cpu", "found layers, prefill, decode"),
            ("embeddings=cpu", "found neither"),
        ] {
            let error = text.parse::<DeviceMap>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert!(serde_json::from_str::<DeviceMap>("7").is_err());
        assert!(serde_json::from_str::<DeviceMap>(r#"{"layers": 7}"#).is_err());
    }

    #[test]
    fn kinds_stand_for_their_devices_in_the_order_of_the_settings() {
        let placements = |text: &str, order: &str| {
            let order: DeviceOrder = order.parse().unwrap();
            let placements = map(text).placements(&order);
            placements.iter().map(DevicePlacement::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(placements("layers=gpu", "webgpu,cpu"), "webgpu directml cuda");
        assert_eq!(placements("layers=cpu,head=cpu", "auto"), "cpu");
        assert!(placements("layers=npu", "cpu").starts_with("qnn openvino vitisai"));
        assert_eq!(placements("layers=qnn,head=cpu", "auto"), "layers=qnn,head=cpu");
        let phases = "prefill=directml,decode=cpu prefill=cuda,decode=cpu prefill=webgpu,decode=cpu";
        assert_eq!(placements("prefill=gpu,decode=cpu", "auto"), phases);
        assert!(!placements("layers=npu", "auto").contains("emulation"));
    }

    #[test]
    fn placements_are_compared_with_the_map() {
        let satisfied = |text: &str, placement: &str| map(text).is_satisfied_by(placement.parse().unwrap());
        assert!(satisfied("layers=npu", "qnn") && satisfied("layers=npu", "openvino:npu"));
        assert!(satisfied("layers=cpu,embeddings=cpu", "cpu"));
        assert!(!satisfied("layers=npu", "cpu") && !satisfied("layers=npu", "layers=qnn,head=cpu"));
        assert!(satisfied("layers=npu,head=cpu", "layers=qnn,head=cpu"));
        assert!(!satisfied("layers=npu,head=cpu", "qnn"));
        assert!(satisfied("prefill=npu,decode=cpu", "prefill=qnn,decode=cpu"));
        assert!(!satisfied("prefill=npu,decode=cpu", "prefill=webgpu,decode=cpu"));
        assert!(satisfied("prefill=cpu,decode=cpu", "cpu"));
    }
}
