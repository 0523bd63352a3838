//! A decoder on two devices: its phases, or its parts.

use narthex_device::{
    ep::{Cause, Facts, Refusal},
    split::{SplitExecutor, SplitOptions},
};
use narthex_spec::{DeviceName, HeadSplit, NpuPolicy, PhaseSplit, Variant};

use super::{Attempt, Ready, attempt, barred, ready_device};
use crate::{
    config::Config,
    load::{
        auto,
        placement::PlacementReport,
        sessions::{Model, Opening},
    },
};

/// Loads a decoder on two devices: one reads prompts, the other writes answers.
pub(super) fn in_phases(
    opening: &Opening<'_>,
    split: PhaseSplit,
    facts: &Facts,
) -> Result<Ready, (DeviceName, Attempt)> {
    let side = |name| {
        switched_on(opening.config, name).map_err(|refusal| (name, Attempt::Refused(refusal)))?;
        let ready = attempt(opening, name, facts).map_err(|attempt| (name, attempt))?;
        let Ready { model, report, monitors } = ready;
        let executor = model.decoder(&opening.manifest.name).map_err(|error| (name, error.into()))?;
        Ok((executor, report, monitors))
    };
    let (prefill, report, mut monitors) = side(split.prefill)?;
    let (decode, decode_report, more) = side(split.decode)?;
    monitors.extend(more);
    // Where nobody has measured from which length on the faster prefill is worth its handover, it reads everything.
    let break_even = auto::break_even(opening, facts, split).unwrap_or(0);
    let options = SplitOptions { break_even };
    let joined = SplitExecutor::new(Box::new(prefill), Box::new(decode), options)
        .map_err(|error| (split.prefill, error.into()))?;
    let joint = PlacementReport::joined(report, decode_report);
    let report = PlacementReport { why: auto::below(split, break_even), ..joint };
    Ok(Ready { model: Model::Decoder(Box::new(joined).into()), report, monitors })
}

/// Loads a decoder's layers on one device and its head on another.
pub(super) fn in_parts(
    opening: &Opening<'_>,
    parts: HeadSplit,
    facts: &Facts,
) -> Result<Ready, (DeviceName, Attempt)> {
    for name in [parts.layers, parts.head] {
        let outcome = switched_on(opening.config, name).and_then(|()| runs_parts(name, parts));
        outcome.map_err(|refusal| (name, Attempt::Refused(refusal)))?;
    }
    let (head, _) = ready_device(opening, parts.head, facts).map_err(|attempt| (parts.head, attempt))?;
    let opening = Opening { head: Some((parts.head, &head)), ..*opening };
    attempt(&opening, parts.layers, facts).map_err(|attempt| (parts.layers, attempt))
}

/// Refuses a part of the work to an NPU that is switched off. Of a divided model the whole counts where one is required.
fn switched_on(config: &Config, name: DeviceName) -> Result<(), Refusal> {
    match barred(config, name).filter(|_| config.npu == NpuPolicy::Off) {
        Some(reason) => Err(Refusal { cause: Cause::Refused, reason, fix: None }),
        None => Ok(()),
    }
}

/// Refuses a device that runs a whole model as one graph; it may have a phase of its own.
fn runs_parts(name: DeviceName, HeadSplit { layers, head }: HeadSplit) -> Result<(), Refusal> {
    if name == DeviceName::Cpu || name.variant() == Variant::Static {
        return Ok(());
    }
    let reason = "it runs a model as one graph, and only graphs of fixed shape have parts".to_owned();
    let fix = format!("divide the phases instead: --place prefill={layers},decode={head}");
    Err(Refusal { cause: Cause::Refused, reason, fix: Some(fix) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_parts_is_told_to_take_a_phase() {
        let parts = HeadSplit { layers: DeviceName::WebGpu, head: DeviceName::Cpu };
        let refusal = runs_parts(parts.layers, parts).unwrap_err();
        assert!(refusal.fix.unwrap().ends_with("--place prefill=webgpu,decode=cpu"));
        assert_eq!(runs_parts(parts.head, parts), Ok(()));
    }
}
