//! NPUs for which packages are compiled ahead of time.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    Ep, OpenVinoDevice, UnknownName,
    name::{alternatives, string_form},
};

/// An NPU, or several of one vendor, for which a package is compiled ahead of time.
///
/// Written `PROVIDER:DEVICE[,DEVICE…]`: `qnn:x-elite`, `qnn:x-elite,8-elite`, `openvino:npu`, `openvino:lunar-lake`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// Qualcomm Hexagon NPUs: at least one chip, without repetitions, in the order of [`QnnChip::ALL`].
    Qnn(Vec<QnnChip>),
    /// Any NPU of Intel, or another device of OpenVINO.
    OpenVino(OpenVinoDevice),
    /// The NPU of one Intel chip.
    IntelNpu(IntelChip),
}

/// A Snapdragon chip with a Hexagon NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QnnChip {
    /// Snapdragon X Elite and X Plus (SC8380XP).
    XElite,
    /// Snapdragon X2 Elite (SC8480XP).
    X2Elite,
    /// Snapdragon 8 Gen 3 (SM8650).
    Gen3,
    /// Snapdragon 8 Elite (SM8750).
    Elite,
    /// Snapdragon 8 Elite Gen 5 (SM8850).
    EliteGen5,
}

/// Properties of a chip that Qualcomm's compiler needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QnnChipSpec {
    /// Name in a [`Target`].
    pub name: &'static str,
    /// Product name.
    pub title: &'static str,
    /// QNN's number of the chip.
    pub soc_model: u32,
    /// Version of the Hexagon architecture.
    pub htp_arch: u32,
    /// Tightly coupled memory of the NPU (VTCM), in MiB.
    pub vtcm_mb: u32,
    /// Maximum size of the weights of one compiled context, in bytes. The NPU has a 32-bit address space, which weights
    /// share with activations and spills.
    pub part_bytes: u64,
}

impl QnnChip {
    /// Every chip.
    pub const ALL: [Self; 5] = [Self::XElite, Self::X2Elite, Self::Gen3, Self::Elite, Self::EliteGen5];

    /// Returns the VTCM that all of these chips have, in MiB; `None` without a chip.
    pub fn shared_vtcm(chips: &[Self]) -> Option<u32> {
        chips.iter().map(|chip| chip.spec().vtcm_mb).min()
    }

    /// Returns the chip's row in the table of chips.
    pub const fn spec(self) -> QnnChipSpec {
        let (name, title, soc_model, htp_arch) = match self {
            Self::XElite => ("x-elite", "Snapdragon X Elite, X Plus", 60, 73),
            Self::X2Elite => ("x2-elite", "Snapdragon X2 Elite", 88, 81),
            Self::Gen3 => ("8-gen-3", "Snapdragon 8 Gen 3", 57, 75),
            Self::Elite => ("8-elite", "Snapdragon 8 Elite", 69, 79),
            Self::EliteGen5 => ("8-elite-gen-5", "Snapdragon 8 Elite Gen 5", 87, 81),
        };
        QnnChipSpec { name, title, soc_model, htp_arch, vtcm_mb: 8, part_bytes: 1 << 30 }
    }
}

/// An Intel chip with an NPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IntelChip {
    /// Core Ultra, series 1.
    MeteorLake,
    /// Core Ultra 200S, 200H and 200HX.
    ArrowLake,
    /// Core Ultra 200V.
    LunarLake,
    /// Core Ultra, series 3.
    PantherLake,
    /// A chip that Intel's compiler knows by number alone.
    Npu5020,
}

/// Properties of a chip that Intel's compiler needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntelChipSpec {
    /// Name in a [`Target`].
    pub name: &'static str,
    /// Product name.
    pub title: &'static str,
    /// OpenVINO's number of the NPU (`NPU_PLATFORM`). Chips with the same number run the same compiled graphs.
    pub platform: u32,
}

impl IntelChip {
    /// Every chip.
    pub const ALL: [Self; 5] =
        [Self::MeteorLake, Self::ArrowLake, Self::LunarLake, Self::PantherLake, Self::Npu5020];

    /// Returns the chip's row in the table of chips.
    pub const fn spec(self) -> IntelChipSpec {
        let (name, title, platform) = match self {
            Self::MeteorLake => ("meteor-lake", "Meteor Lake", 3720),
            Self::ArrowLake => ("arrow-lake", "Arrow Lake", 3720),
            Self::LunarLake => ("lunar-lake", "Lunar Lake", 4000),
            Self::PantherLake => ("panther-lake", "Panther Lake", 5010),
            Self::Npu5020 => ("npu-5020", "NPU 5020", 5020),
        };
        IntelChipSpec { name, title, platform }
    }
}

impl From<IntelChip> for &'static str {
    fn from(chip: IntelChip) -> Self {
        chip.spec().name
    }
}

impl From<QnnChip> for &'static str {
    fn from(chip: QnnChip) -> Self {
        chip.spec().name
    }
}

impl Target {
    /// Returns the execution provider that runs it.
    pub fn ep(&self) -> Ep {
        match self {
            Self::Qnn(_) => Ep::Qnn,
            Self::OpenVino(_) | Self::IntelNpu(_) => Ep::OpenVino,
        }
    }

    /// Returns `true` for Intel's NPUs. The graphs of their packages have one form.
    pub fn is_intel_npu(&self) -> bool {
        matches!(self, Self::OpenVino(OpenVinoDevice::Npu) | Self::IntelNpu(_))
    }

    /// Returns `true` if graphs for `other` have the form that this target needs.
    pub fn has_form_of(&self, other: &Self) -> bool {
        self == other || (self.is_intel_npu() && other.is_intel_npu())
    }

    /// Returns the maximum size of the weights of one compiled context in bytes: the minimum over its chips.
    pub fn part_bytes(&self) -> u64 {
        match self {
            Self::Qnn(chips) => chips.iter().map(|chip| chip.spec().part_bytes).min().unwrap_or(1 << 30),
            Self::OpenVino(_) | Self::IntelNpu(_) => 4 << 30,
        }
    }

    /// Returns the name for files and folders: `qnn-x-elite`.
    pub fn file_stem(&self) -> String {
        self.to_string().replace([':', ','], "-")
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = match self {
            Self::Qnn(chips) => chips.iter().map(|chip| chip.spec().name).collect::<Vec<_>>().join(","),
            Self::OpenVino(device) => device.as_str().to_owned(),
            Self::IntelNpu(chip) => chip.spec().name.to_owned(),
        };
        write!(f, "{}:{devices}", self.ep())
    }
}

/// A string that is not a [`Target`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}, or {}", self.of_qualcomm(), of_openvino(&OpenVinoDevice::ALL))]
pub struct UnknownTarget {
    /// The string, shortened.
    pub found: String,
}

impl UnknownTarget {
    /// Returns the message for compiles. OpenVINO's other devices load the same graphs as without a target.
    pub fn of_compiles(&self) -> String {
        format!("{}, or {}", self.of_qualcomm(), of_openvino(&[OpenVinoDevice::Npu]))
    }

    fn of_qualcomm(&self) -> String {
        let chips = alternatives(QnnChip::ALL.map(|chip| chip.spec().name.to_owned()));
        format!("unknown target {:?}: expected {}:CHIP[,CHIP…] with {chips}", self.found, Ep::Qnn)
    }
}

/// Returns these devices of OpenVINO and every chip of Intel, as a list for sentences.
fn of_openvino(devices: &[OpenVinoDevice]) -> String {
    let names = devices.iter().map(|device| device.as_str().to_owned());
    let chips = IntelChip::ALL.map(|chip| chip.spec().name.to_owned());
    format!("{}:DEVICE with {}", Ep::OpenVino, alternatives(names.chain(chips)))
}

impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        let unknown = || UnknownTarget { found: text.chars().take(120).collect() };
        let name = text.trim().to_ascii_lowercase();
        let (provider, devices) = name.split_once(':').ok_or_else(unknown)?;
        match Ep::ALL.into_iter().find(|ep| ep.as_str() == provider) {
            Some(Ep::Qnn) => {
                let mut chips = devices
                    .split(',')
                    .map(|name| UnknownName::find("chip", name, &QnnChip::ALL))
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|_| unknown())?;
                chips.sort_unstable();
                chips.dedup();
                Ok(Self::Qnn(chips))
            }
            Some(Ep::OpenVino) => {
                let device = UnknownName::find("device", devices, &OpenVinoDevice::ALL).map(Self::OpenVino);
                let chip = || UnknownName::find("chip", devices, &IntelChip::ALL).map(Self::IntelNpu);
                device.or_else(|_| chip()).map_err(|_| unknown())
            }
            _ => Err(unknown()),
        }
    }
}

string_form!(Target);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_as_they_are_written() {
        let check = |text: &str, written: Option<&str>| {
            let target = text.parse::<Target>().ok();
            assert_eq!(target.map(|target| target.to_string()).as_deref(), written, "{text}");
        };
        check("qnn:x-elite", Some("qnn:x-elite"));
        check("QNN:8-elite,x-elite,8-elite", Some("qnn:x-elite,8-elite"));
        check("openvino:npu", Some("openvino:npu"));
        check("OpenVINO:Lunar-Lake", Some("openvino:lunar-lake"));
        check("openvino:arrow-lake", Some("openvino:arrow-lake"));
        check("openvino:npu-5020", Some("openvino:npu-5020"));
        check("openvino:lunar-lake,meteor-lake", None);
        check("qnn", None);
        check("qnn:", None);
        check("qnn:x-elite,", None);
        check("qnn:x9", None);
        check("openvino:npu,cpu", None);
        check("cuda:0", None);
        let error = "toaster".parse::<Target>().unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown target \"toaster\": expected qnn:CHIP[,CHIP…] with x-elite, x2-elite, 8-gen-3, 8-elite or \
             8-elite-gen-5, or openvino:DEVICE with npu, gpu, cpu, meteor-lake, arrow-lake, lunar-lake, panther-lake \
             or npu-5020"
        );
    }

    #[test]
    fn each_chip_has_a_name_of_its_own() {
        let ids: std::collections::BTreeSet<_> = QnnChip::ALL.map(|chip| chip.spec().name).into();
        let socs: std::collections::BTreeSet<_> = QnnChip::ALL.map(|chip| chip.spec().soc_model).into();
        assert_eq!((ids.len(), socs.len()), (QnnChip::ALL.len(), QnnChip::ALL.len()));
        assert_eq!(Target::Qnn(vec![QnnChip::XElite, QnnChip::Elite]).file_stem(), "qnn-x-elite-8-elite");
        let names: std::collections::BTreeSet<_> = IntelChip::ALL.map(|chip| chip.spec().name).into();
        assert_eq!(names.len(), IntelChip::ALL.len());
        let target = Target::IntelNpu(IntelChip::LunarLake);
        assert_eq!((target.file_stem().as_str(), target.ep()), ("openvino-lunar-lake", Ep::OpenVino));
    }

    #[test]
    fn chips_of_intel_have_graphs_of_one_form() {
        let check = |one: &str, other: &str, expect: bool| {
            let [first, second] = [one, other].map(|name| name.parse::<Target>().unwrap());
            assert_eq!(first.has_form_of(&second), expect, "{one} {other}");
        };
        check("openvino:npu", "openvino:lunar-lake", true);
        check("openvino:meteor-lake", "openvino:panther-lake", true);
        check("openvino:gpu", "openvino:lunar-lake", false);
        check("openvino:gpu", "openvino:gpu", true);
        check("qnn:x-elite", "qnn:8-elite", false);
    }
}
