//! `--place auto`: measures prefill and decode once on every device of this machine, and chooses the fastest device or
//! pair. The measurements are stored next to the verification records. Start at [`estimate`].

mod estimate;
mod measure;

use std::time::Instant;

use narthex_device::ep::{self, Cause, Facts, Refusal};
use narthex_engine::executor::Executor;
use narthex_spec::{DeviceKind, DeviceName, PhaseSplit};
use serde::{Deserialize, Serialize};

use crate::{
    config::Config,
    error::Error,
    load::{
        cache_key::{CacheKey, to_json},
        eligibility,
        request::{LoadRequest, SelectedDevice},
    },
    report::models::DeviceRefusal,
};
pub(crate) use estimate::explain_break_even;
use estimate::{DeviceChoice, Handover, Measurements};
use measure::Clock;

/// Folder of the record, in the place of a device's name.
const FOLDER: &str = "auto";

/// Returns the file name of the record. Power presets and NPU options change the times, so each has its own.
fn record_name(Config { power, npu_options, .. }: &Config) -> String {
    let options = npu_options.to_string().replace([',', '='], "-");
    let options = if options.is_empty() { options } else { format!("-{options}") };
    format!("placement-{power}{options}.json")
}

/// Version of the measurement. Records of other versions are measured again.
const MEASUREMENT_VERSION: u32 = 1;

/// Measurements of a package, and the keys of the measured devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasurementRecord {
    version: u32,
    /// Keys of every device that seemed usable.
    keys: Vec<CacheKey>,
    /// Configured CPU threads; 0 for the default.
    threads: usize,
    #[serde(flatten)]
    pub(crate) outcome: MeasurementOutcome,
}

/// Measurements, and the devices that refused the package.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasurementOutcome {
    pub(crate) measured: Measurements,
    refused: Vec<DeviceRefusal>,
}

/// Result of opening a decoder on one device.
pub(crate) enum DecoderAttempt {
    /// The device runs the decoder.
    Opened(Box<dyn Executor>),
    /// The device refuses the package.
    Refused(DeviceRefusal),
}

/// Opens a decoder on a device. An error ends the measurement of all devices.
pub(crate) type OpenDecoder<'a> = &'a mut dyn FnMut(DeviceName) -> Result<DecoderAttempt, Error>;

/// Returns the fastest place for a decoder, and the devices that were not measured. Measures the devices of the order
/// that this machine has, unless a record under the same keys exists. Returns `None` if fewer than two devices are
/// usable. Stand-ins are never chosen.
///
/// # Errors
/// [`Error::Cancelled`]; a device that fails is listed as refused.
pub(crate) fn choose(
    request: &LoadRequest<'_>,
    open: OpenDecoder<'_>,
) -> Result<Option<(DeviceChoice, Vec<DeviceRefusal>)>, Error> {
    let (usable, mut passed_over) = usable(&request.config, &request.facts);
    if usable.len() < 2 {
        return Ok(None);
    }
    let MeasurementOutcome { measured, refused } = measure_or_read(request, &usable, open)?;
    passed_over.extend(refused);
    Ok(measured.choose().map(|choice| (choice, passed_over)))
}

/// Returns the measurements of these devices, from the record if it is valid.
fn measure_or_read(
    request: &LoadRequest<'_>,
    usable: &[DeviceName],
    open: OpenDecoder<'_>,
) -> Result<MeasurementOutcome, Error> {
    let keys = cache_keys(request, usable);
    let threads = request.config.threads;
    if let Some(record) = read_record(request)
        && record.is_valid(&keys, threads)
        && record.keys.len() == keys.len()
    {
        return Ok(record.outcome);
    }
    let names: Vec<&str> = usable.iter().map(|device| device.as_str()).collect();
    tracing::info!("measuring {} on {}, once", request.manifest().name, names.join(" and "));
    let begun = Instant::now();
    let outcome = measure_all(usable, open, &mut || begun.elapsed())?;
    let record = MeasurementRecord { version: MEASUREMENT_VERSION, keys, threads, outcome: outcome.clone() };
    if let Err(error) = write_record(request, &record) {
        tracing::warn!("the measurements cannot be stored and will be repeated: {error}");
    }
    Ok(outcome)
}

/// Returns the number of tokens from which prefill on the other device is faster; `None` if that was not measured under
/// the current keys, or is never the case.
pub(crate) fn break_even(request: &LoadRequest<'_>, split: PhaseSplit) -> Option<usize> {
    let keys = cache_keys(request, &[split.prefill, split.decode]);
    let record = read_record(request).filter(|record| record.is_valid(&keys, request.config.threads))?;
    record.outcome.measured.break_even(split)
}

/// Divides the devices of the order into those that may be chosen and those that may not.
fn usable(config: &Config, facts: &Facts) -> (Vec<DeviceName>, Vec<DeviceRefusal>) {
    let mut usable = Vec::new();
    let mut passed_over = Vec::new();
    for &name in config.providers.devices() {
        let refusal = match name.kind() {
            DeviceKind::StandIn => {
                let reason = "it is software that stands in for an NPU, which is never measured".to_owned();
                Some(Refusal { cause: Cause::Absent, reason, fix: None })
            }
            _ => eligibility::refusal(config, name, facts),
        };
        match refusal {
            None => usable.push(name),
            Some(refusal) => passed_over.push(eligibility::device_refusal(config, name, refusal)),
        }
    }
    (usable, passed_over)
}

/// Returns the keys of those devices that this machine has.
fn cache_keys(request: &LoadRequest<'_>, devices: &[DeviceName]) -> Vec<CacheKey> {
    devices
        .iter()
        .filter_map(|&name| {
            let device = ep::probe(name, &request.facts).ok()?;
            Some(CacheKey::new(&SelectedDevice { name, device }, request.runtime, &request.facts))
        })
        .collect()
}

/// Opens one device after the other, so that one model is in memory at a time, and then the best two for their
/// handover.
fn measure_all(
    devices: &[DeviceName],
    open: OpenDecoder<'_>,
    clock: Clock<'_>,
) -> Result<MeasurementOutcome, Error> {
    let mut outcome = MeasurementOutcome::default();
    for &device in devices {
        match open(device)? {
            DecoderAttempt::Opened(mut executor) => match measure::phases(device, executor.as_mut(), clock) {
                Ok(times) => outcome.measured.devices.push(times),
                Err(error) => outcome.refused.push(Error::from(error).to_refusal(device)),
            },
            DecoderAttempt::Refused(refusal) => outcome.refused.push(refusal),
        }
    }

    if let Some(PhaseSplit { prefill, decode }) = outcome.measured.best_pair()
        && let DecoderAttempt::Opened(mut from) = open(prefill)?
        && let DecoderAttempt::Opened(mut to) = open(decode)?
    {
        match measure::handover(from.as_mut(), to.as_mut(), clock) {
            Ok(token_ms) => outcome.measured.handover = Some(Handover { prefill, decode, token_ms }),
            Err(error) => tracing::warn!("the handover from {prefill} to {decode} failed: {error}"),
        }
    }
    Ok(outcome)
}

impl MeasurementRecord {
    /// Returns whether the record covers all these devices under the same keys.
    fn is_valid(&self, keys: &[CacheKey], threads: usize) -> bool {
        self.version == MEASUREMENT_VERSION
            && self.threads == threads
            && keys.iter().all(|key| self.keys.contains(key))
    }
}

/// Reads the record, if there is a readable one.
fn read_record(request: &LoadRequest<'_>) -> Option<MeasurementRecord> {
    let machine = request.store.machine(&request.package.folder, FOLDER).ok()?;
    let name = record_name(&request.config);
    serde_json::from_slice(&machine.read(&name).ok()??).ok()
}

fn write_record(request: &LoadRequest<'_>, record: &MeasurementRecord) -> Result<(), Error> {
    let machine = request.store.machine(&request.package.folder, FOLDER)?;
    Ok(machine.write(&record_name(&request.config), &to_json(record)?)?)
}

#[cfg(test)]
mod tests;
