//! `--place auto`: both phases are measured once, on every device that this machine has, and the fastest device or pair
//! is taken. What was measured is kept beside the records of the check against the CPU. Start at [`choice`].

mod choice;
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
        cache_key::{Circumstances, to_json},
        device_selection,
        sessions::Opening,
    },
    report::models::PassedOver,
};
pub(crate) use choice::below;
use choice::{Choice, Handover, Measured};
use measure::Clock;

/// What a record is kept under, in a device's place.
const FOLDER: &str = "auto";

/// The record of what was measured: one for each preset of power and settings of an NPU, since those decide times.
fn record_name(Config { power, npu_options, .. }: &Config) -> String {
    let told = npu_options.to_string().replace([',', '='], "-");
    let told = if told.is_empty() { told } else { format!("-{told}") };
    format!("placing-{power}{told}.json")
}

/// Changes when what is measured does; records of other editions are made again.
const EDITION: u32 = 1;

/// What was measured of a package, and under which circumstances.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Record {
    edition: u32,
    /// Of every device that seemed usable.
    circumstances: Vec<Circumstances>,
    /// Threads on the CPU that were asked for; 0 is as many as it has.
    threads: usize,
    #[serde(flatten)]
    found: Found,
}

/// What came of measuring.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Found {
    measured: Measured,
    /// The devices that did not take the package.
    refused: Vec<PassedOver>,
}

/// Where a decoder runs fastest, and the devices of the order that were not measured. Measures those of the order that this
/// machine has, unless that was done before under the same circumstances. `None` where fewer than two can be used, so
/// that there is nothing to choose. A stand-in is never chosen.
///
/// # Errors
/// [`Error::Cancelled`]; a device that fails is one that is refused.
pub(crate) fn choose(
    opening: &Opening<'_>,
    facts: &Facts,
) -> Result<Option<(Choice, Vec<PassedOver>)>, Error> {
    let (usable, mut passed_over) = usable(opening.config, facts);
    if usable.len() < 2 {
        return Ok(None);
    }
    let Found { measured, refused } = found(opening, facts, &usable)?;
    passed_over.extend(refused);
    Ok(measured.choose().map(|choice| (choice, passed_over)))
}

/// What was measured of these devices, now or before.
fn found(opening: &Opening<'_>, facts: &Facts, usable: &[DeviceName]) -> Result<Found, Error> {
    let now = circumstances(opening, facts, usable);
    let threads = opening.config.threads;
    if let Some(record) = kept(opening)
        && record.holds(&now, threads)
        && record.circumstances.len() == now.len()
    {
        return Ok(record.found);
    }
    let names: Vec<&str> = usable.iter().map(|device| device.as_str()).collect();
    tracing::info!("measuring {} on {}, once", opening.manifest.name, names.join(" and "));
    let begun = Instant::now();
    let mut load = |device| device_selection::executor(opening, device, facts);
    let found = measure_all(usable, &mut load, &mut || begun.elapsed())?;
    keep(opening, &Record { edition: EDITION, circumstances: now, threads, found: found.clone() });
    Ok(found)
}

/// From how many tokens on a span is read on the prefill device of a split; `None` where that was not measured under
/// these circumstances, or never pays.
pub(crate) fn break_even(opening: &Opening<'_>, facts: &Facts, split: PhaseSplit) -> Option<usize> {
    let now = circumstances(opening, facts, &[split.prefill, split.decode]);
    let record = kept(opening).filter(|record| record.holds(&now, opening.config.threads))?;
    record.found.measured.break_even(split)
}

/// The devices of the order that may be chosen, and those that may not.
fn usable(config: &Config, facts: &Facts) -> (Vec<DeviceName>, Vec<PassedOver>) {
    let (mut usable, mut passed_over) = (Vec::new(), Vec::new());
    for &name in config.providers.devices() {
        let refusal = match name.kind() {
            DeviceKind::StandIn => {
                let reason =
                    "it is software in an NPU's place, and measurements never choose that".to_owned();
                Some(Refusal { cause: Cause::Absent, reason, fix: None })
            }
            _ => device_selection::refusal(config, name, facts),
        };
        match refusal {
            None => usable.push(name),
            Some(refusal) => passed_over.push(device_selection::passed_over(config, name, refusal)),
        }
    }
    (usable, passed_over)
}

/// Those of devices which this machine has.
fn circumstances(opening: &Opening<'_>, facts: &Facts, devices: &[DeviceName]) -> Vec<Circumstances> {
    let now = |&name: &DeviceName| {
        let device = ep::probe(name, facts).ok()?;
        Some(Circumstances::now((name, &device), opening.runtime, facts))
    };
    devices.iter().filter_map(now).collect()
}

/// Loads device after device, so that one at a time is in memory, and then the best two for their handover.
fn measure_all(
    devices: &[DeviceName],
    load: &mut dyn FnMut(DeviceName) -> Result<Result<Box<dyn Executor>, PassedOver>, Error>,
    clock: Clock<'_>,
) -> Result<Found, Error> {
    let mut found = Found::default();
    for &device in devices {
        let timed = load(device)?.and_then(|mut executor| {
            let phases = measure::phases(device, executor.as_mut(), clock);
            phases.map_err(|error| PassedOver::failed(device, &error.into()))
        });
        match timed {
            Ok(phases) => found.measured.devices.push(phases),
            Err(passed) => found.refused.push(passed),
        }
    }
    if let Some(PhaseSplit { prefill, decode }) = found.measured.best_pair()
        && let (Ok(mut from), Ok(mut to)) = (load(prefill)?, load(decode)?)
    {
        match measure::handover((from.as_mut(), to.as_mut()), clock) {
            Ok(token_ms) => found.measured.handover = Some(Handover { prefill, decode, token_ms }),
            Err(error) => tracing::warn!("{prefill} hands nothing over to {decode}: {error}"),
        }
    }
    Ok(found)
}

impl Record {
    /// Whether it was made under circumstances that hold still, of all these devices.
    fn holds(&self, now: &[Circumstances], threads: usize) -> bool {
        let same = |now: &Circumstances| self.circumstances.iter().any(|made| made.outdated(now).is_none());
        self.edition == EDITION && self.threads == threads && now.iter().all(same)
    }
}

/// The record, if there is one that can be read.
fn kept(opening: &Opening<'_>) -> Option<Record> {
    let machine = opening.store.machine(opening.folder, FOLDER).ok()?;
    let name = record_name(opening.config);
    serde_json::from_slice(&machine.read(&name).ok()??).ok()
}

fn keep(opening: &Opening<'_>, record: &Record) {
    let write = || {
        let machine = opening.store.machine(opening.folder, FOLDER)?;
        Ok::<(), Error>(machine.write(&record_name(opening.config), &to_json(record)?)?)
    };
    if let Err(error) = write() {
        tracing::warn!("what was measured is not kept and will be measured again: {error}");
    }
}

#[cfg(test)]
mod tests;
