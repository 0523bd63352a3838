//! Choice of the device that a package is opened on. Every device that is passed over has a reason, and no model falls
//! back to a slower device without a report.

mod attempt;
mod division;

use narthex_spec::{DeviceMap, DeviceName, DevicePlacement, ModelName, NpuPolicy, PlacementChoice};

use crate::{
    config::Config,
    error::{Error, ErrorKind},
    load::{
        auto::{self, DecoderAttempt},
        eligibility,
        open_model::OpenModel,
        request::LoadRequest,
    },
    report::{models::DeviceRefusal, placement::PlacementReport},
};
use attempt::AttemptError;

/// A device that did not open a model.
struct FailedAttempt {
    device: DeviceName,
    error: AttemptError,
}

impl FailedAttempt {
    /// Returns the entry of the device, and the error if the device was present and tried.
    ///
    /// # Errors
    /// [`Error::Cancelled`].
    fn into_refusal(self, config: &Config) -> Result<(DeviceRefusal, Option<Error>), Error> {
        match self.error {
            AttemptError::Refused(refusal) => {
                Ok((eligibility::device_refusal(config, self.device, refusal), None))
            }
            AttemptError::Failed(error) if error.kind() == ErrorKind::Cancelled => Err(Error::Cancelled),
            AttemptError::Failed(error) => Ok((error.to_refusal(self.device), Some(*error))),
        }
    }
}

/// Opens a package according to the settings: on the devices of the device map if there is one. Else a decoder first on the
/// configured or measured division; then any model on the first device of the order that accepts it.
pub(crate) fn select(request: &LoadRequest<'_>) -> Result<OpenModel, Error> {
    let Config { place, ref providers, ref device_map, .. } = *request.config;
    if let Some(map) = device_map {
        let open = open_mapped(request, map)?;
        open.log(&request.manifest().name, &request.store);
        return Ok(open);
    }

    let mut preferred = None;
    let mut measured = None;
    match place.filter(|_| request.manifest().architecture.is_decoder()) {
        None => {}
        Some(PlacementChoice::Fixed(place)) => preferred = Some(place),
        Some(PlacementChoice::Auto) => {
            measured = auto::choose(request, &mut |device| open_decoder(request, device))?;
            preferred = measured.as_ref().map(|(choice, _)| choice.place);
        }
    }

    let order = providers
        .devices()
        .iter()
        .copied()
        .map(DevicePlacement::Single)
        .filter(|place| Some(*place) != preferred);

    let mut open = open_first(request, preferred.into_iter().chain(order))?;
    if let Some((choice, refused)) = measured
        && choice.place == open.report.place()
    {
        open.report.add_reason(choice.why);
        open.passed_over.splice(0..0, refused);
    }

    open.log(&request.manifest().name, &request.store);
    Ok(open)
}

/// Opens a package on the devices of a map, and nowhere else.
fn open_mapped(request: &LoadRequest<'_>, map: &DeviceMap) -> Result<OpenModel, Error> {
    if map.is_divided() && !request.manifest().architecture.is_decoder() {
        return Err(Error::DeviceMap {
            name: request.manifest().name.clone(),
            map: map.clone(),
            reason: "only chat and text models have phases and a head of their own".to_owned(),
            fix: "name one device for all layers, as in layers=npu".to_owned(),
        });
    }
    let mut open = open_first(request, map.placements(&request.config.providers))?;
    open.report.add_reason(format!("required by the device map {map}"));
    Ok(open)
}

/// Opens a package at the first of these places that accepts it.
pub(crate) fn open_first(
    request: &LoadRequest<'_>,
    places: impl IntoIterator<Item = DevicePlacement>,
) -> Result<OpenModel, Error> {
    let config = &request.config;
    let mut failures = Failures::default();
    for place in places {
        match open_at(request, place) {
            Ok(open) => match insufficient_share(config, &open.report) {
                None => return Ok(OpenModel { passed_over: failures.passed_over, ..open }),
                Some(passed_over) => failures.add(passed_over),
            },
            Err(failed) => {
                let (refusal, error) = failed.into_refusal(config)?;
                failures.add(refusal);
                failures.errors.extend(error);
            }
        }
    }
    Err(failures.into_error(&request.manifest().name, config.npu))
}

fn open_at(request: &LoadRequest<'_>, place: DevicePlacement) -> Result<OpenModel, FailedAttempt> {
    match place {
        DevicePlacement::Phases(split) => division::open_phases(request, split),
        DevicePlacement::Head(parts) => division::open_parts(request, parts),
        DevicePlacement::Single(device) => match eligibility::policy_refusal(&request.config, device) {
            Some(refusal) => Err(AttemptError::Refused(refusal)),
            None => attempt::open(request, device, None),
        }
        .map_err(|error| FailedAttempt { device, error }),
    }
}

/// Opens a decoder on one device, to be measured.
///
/// # Errors
/// [`Error::Cancelled`]; every other failure is a refusal of the device.
fn open_decoder(request: &LoadRequest<'_>, device: DeviceName) -> Result<DecoderAttempt, Error> {
    let open = attempt::open(request, device, None);
    match open.and_then(|open| Ok(open.model.decoder(&request.manifest().name)?)) {
        Ok(executor) => Ok(DecoderAttempt::Opened(Box::new(executor))),
        Err(error) => {
            let (refusal, _) = FailedAttempt { device, error }.into_refusal(&request.config)?;
            Ok(DecoderAttempt::Refused(refusal))
        }
    }
}

/// Returns the entry of a device whose NPU share is lower than required.
fn insufficient_share(config: &Config, report: &PlacementReport) -> Option<DeviceRefusal> {
    if config.npu != NpuPolicy::Require || report.npu_share >= config.npu_share {
        return None;
    }
    let fallback = report.fallback.clone();
    let nodes = if fallback.is_empty() { String::new() } else { format!(": {fallback}") };
    let reason = format!(
        "{} run on the NPU, and {:.2} % are required{nodes}",
        report.share_in_words(),
        config.npu_share * 100.0
    );
    Some(DeviceRefusal { device: report.device, reason, fix: fallback.fix(), announced: true, fallback })
}

/// Devices that refused a model.
#[derive(Default)]
struct Failures {
    passed_over: Vec<DeviceRefusal>,
    /// Errors of the devices that were present and tried.
    errors: Vec<Error>,
}

impl Failures {
    /// Adds a device, once for each reason.
    fn add(&mut self, passed_over: DeviceRefusal) {
        if !self.passed_over.contains(&passed_over) {
            self.passed_over.push(passed_over);
        }
    }

    /// Returns the error of a load that no device accepted. If only one device was tried, its own error is the most
    /// specific.
    fn into_error(mut self, name: &ModelName, policy: NpuPolicy) -> Error {
        match self.errors.pop() {
            Some(error) if self.errors.is_empty() && policy != NpuPolicy::Require => error,
            _ => Error::NoDevice { name: name.clone(), policy, passed_over: self.passed_over },
        }
    }
}

#[cfg(test)]
mod tests;
