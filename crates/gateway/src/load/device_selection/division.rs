//! A decoder on two devices: divided by phases, or into layers and head.

use narthex_device::{
    ep::{Cause, Refusal},
    split::{SplitExecutor, SplitOptions},
};
use narthex_engine::supervise::{NumericsMonitor, SupervisedExecutor};
use narthex_spec::{DeviceName, HeadSplit, NpuPolicy, PhaseSplit, Variant};

use super::{
    FailedAttempt,
    attempt::{self, AttemptError},
};
use crate::{
    config::Config,
    load::{auto, eligibility, open_model::OpenModel, request::LoadRequest, sessions::Model},
    report::{models::NumericsCheck, placement::PlacementReport},
};

/// Opens a decoder on one device for prefill and one for decode.
pub(super) fn open_phases(request: &LoadRequest<'_>, split: PhaseSplit) -> Result<OpenModel, FailedAttempt> {
    let prefill =
        open_phase(request, split.prefill).map_err(|error| FailedAttempt { device: split.prefill, error })?;
    let decode =
        open_phase(request, split.decode).map_err(|error| FailedAttempt { device: split.decode, error })?;
    // Without a measured break-even length, the prefill device reads every prompt.
    let options = SplitOptions { break_even: auto::break_even(request, split).unwrap_or(0) };
    let joined = SplitExecutor::new(Box::new(prefill.executor), Box::new(decode.executor), options)
        .map_err(|error| FailedAttempt { device: split.prefill, error: error.into() })?;
    let report = PlacementReport {
        why: auto::explain_break_even(split, options.break_even),
        ..PlacementReport::joined(prefill.report, decode.report)
    };

    let mut numerics = prefill.numerics;
    numerics.extend(decode.numerics);
    let mut monitors = prefill.monitors;
    monitors.extend(decode.monitors);
    Ok(OpenModel {
        model: Model::Decoder(Box::new(joined).into()),
        report,
        passed_over: Vec::new(),
        numerics,
        monitors,
    })
}

/// A decoder on the device of one phase.
struct Phase {
    executor: SupervisedExecutor,
    report: PlacementReport,
    numerics: Vec<NumericsCheck>,
    monitors: Vec<NumericsMonitor>,
}

fn open_phase(request: &LoadRequest<'_>, device: DeviceName) -> Result<Phase, AttemptError> {
    check_enabled(&request.config, device).map_err(AttemptError::Refused)?;
    let OpenModel { model, report, numerics, monitors, .. } = attempt::open(request, device, None)?;
    let executor = model.decoder(&request.manifest().name)?;
    Ok(Phase { executor, report, numerics, monitors })
}

/// Opens a decoder's layers on one device and its head on another.
pub(super) fn open_parts(request: &LoadRequest<'_>, parts: HeadSplit) -> Result<OpenModel, FailedAttempt> {
    for device in [parts.layers, parts.head] {
        let outcome = check_enabled(&request.config, device).and_then(|()| check_parts(device, parts));
        outcome.map_err(|refusal| FailedAttempt { device, error: AttemptError::Refused(refusal) })?;
    }
    let (head, _) =
        attempt::prepare(request, parts.head).map_err(|error| FailedAttempt { device: parts.head, error })?;
    attempt::open(request, parts.layers, Some(head))
        .map_err(|error| FailedAttempt { device: parts.layers, error })
}

/// Refuses an NPU that is switched off. If an NPU is required, the share of the whole model decides later.
fn check_enabled(config: &Config, name: DeviceName) -> Result<(), Refusal> {
    match eligibility::policy_refusal(config, name).filter(|_| config.npu == NpuPolicy::Off) {
        Some(refusal) => Err(Refusal { cause: Cause::Refused, ..refusal }),
        None => Ok(()),
    }
}

/// Refuses a device that runs a model only as one graph.
fn check_parts(name: DeviceName, HeadSplit { layers, head }: HeadSplit) -> Result<(), Refusal> {
    if name == DeviceName::Cpu || name.variant() == Variant::Static {
        return Ok(());
    }
    let reason = "it runs a model as one graph, and only static graphs have parts".to_owned();
    let fix = format!("divide the phases instead: --place prefill={layers},decode={head}");
    Err(Refusal { cause: Cause::Refused, reason, fix: Some(fix) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_parts_suggests_a_phase() {
        let parts = HeadSplit { layers: DeviceName::WebGpu, head: DeviceName::Cpu };
        let refusal = check_parts(parts.layers, parts).unwrap_err();
        assert!(refusal.fix.unwrap().ends_with("--place prefill=webgpu,decode=cpu"));
        assert_eq!(check_parts(parts.head, parts), Ok(()));
    }
}
