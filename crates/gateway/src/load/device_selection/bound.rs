//! Packages that some devices do not run: those that were made for one kind of device, and those in a scheme that a device
//! has no operators for.

use narthex_device::ep::{Cause, Device, Refusal};
use narthex_spec::{
    DeviceName, ModelName, Scheme, Target,
    manifest::{Bound, Manifest},
    recipe::FixedShapes,
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

/// Refuses a package whose weights are in a scheme that the device does not take.
pub(super) fn other_scheme(name: DeviceName, model: &ModelName, scheme: Scheme) -> Result<(), Refusal> {
    if name.supports(scheme) {
        return Ok(());
    }
    let whole = Scheme::F16;
    let reason = format!("it takes no weights in blocks, such as {scheme}, but those in {whole}");
    let context = FixedShapes::USUAL_CONTEXT;
    let fix =
        format!("narthex compile {model} --scheme {whole} --context {context}, and name it {model}@{whole}");
    Err(Refusal { cause: Cause::Refused, reason, fix: Some(fix) })
}

/// The refusal of a package that was made for another device than this, of which the chip may be known.
fn elsewhere(bound: &Bound, chip: Option<QnnChip>) -> Refusal {
    let here = chip.map(|chip| format!(", and this is {}", chip.spec().title)).unwrap_or_default();
    let reason = format!("the package runs on {} alone{here}", bound.device);
    let fix = "load it on that device; for others import an export for CPUs or GPUs, or compile the checkpoint: \
               narthex compile";
    Refusal { cause: Cause::Refused, reason, fix: Some(fix.to_owned()) }
}
