//! Packages that were made for one kind of device: what every other one says of them.

use narthex_device::ep::{Cause, Device, Refusal};
use narthex_spec::{
    DeviceName, Target,
    manifest::{Bound, Manifest},
    target::QnnChip,
};

/// What is said where such a package runs.
pub(super) const UNCHECKED: &str =
    "what was compiled for it is neither weighed nor checked, because the CPU runs no graph of it";

/// Refuses a device whose provider does not take the package.
pub(super) fn other_device(manifest: &Manifest, name: DeviceName) -> Result<(), Refusal> {
    let other = manifest.bound.as_ref().filter(|bound| bound.ep != name.ep());
    other.map_or(Ok(()), |bound| Err(elsewhere(bound, None)))
}

/// Refuses a chip that the package was not made for, where both are known.
pub(super) fn other_chip(manifest: &Manifest, device: &Device) -> Result<(), Refusal> {
    let (Some(bound), Device::Qnn(options)) = (&manifest.bound, device) else { return Ok(()) };
    match (&bound.target, options.chips.first()) {
        (Some(Target::Qnn(chips)), Some(chip)) if !chips.contains(chip) => Err(elsewhere(bound, Some(*chip))),
        _ => Ok(()),
    }
}

/// The refusal of a package that was made for another device than this, of which the chip may be known.
fn elsewhere(bound: &Bound, chip: Option<QnnChip>) -> Refusal {
    let here = chip.map(|chip| format!(", and this is {}", chip.facts().title)).unwrap_or_default();
    let reason = format!("the package runs on {} alone{here}", bound.device);
    let fix = "load it on that device; for others import an export for CPUs or GPUs, or compile the checkpoint: \
               narthex compile";
    Refusal { cause: Cause::Refused, reason, fix: Some(fix.to_owned()) }
}
