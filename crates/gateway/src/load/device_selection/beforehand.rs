//! What can be said of a load before there is a package.

use narthex_device::ep::{self, Facts, Refusal};
use narthex_spec::{DeviceName, DevicePlacement, NpuPolicy, PlacementChoice, Scheme, Variant};

use super::{bound, passed_over, refusal};
use crate::{config::Config, error::Error, library::names::PackageKey, report::models::PassedOver};

/// Whether a load on this machine would use graphs of fixed shape: on the device that is next in turn, on one of those to
/// be measured, or where the settings put it.
pub(crate) fn wants_fixed(config: &Config, scheme: Scheme, facts: &Facts) -> bool {
    let usable = |place: &DevicePlacement| is_usable(config, scheme, *place, facts);
    let mut order = config.providers.devices().iter().copied().map(DevicePlacement::Single).filter(usable);
    match config.place {
        Some(PlacementChoice::Auto) => run_fixed(config, scheme, order, facts),
        Some(PlacementChoice::Fixed(place)) => {
            run_fixed(config, scheme, [place].into_iter().chain(order.next()), facts)
        }
        None => run_fixed(config, scheme, order.next(), facts),
    }
}

/// Whether one of these places can be used on this machine, and runs graphs of fixed shape with weights of a scheme.
pub(crate) fn run_fixed(
    config: &Config,
    scheme: Scheme,
    places: impl IntoIterator<Item = DevicePlacement>,
    facts: &Facts,
) -> bool {
    let fixed = |place: DevicePlacement| {
        matches!(place, DevicePlacement::Head(_))
            || place.devices().iter().any(|device| device.variant() == Variant::Static)
    };
    places.into_iter().any(|place| fixed(place) && is_usable(config, scheme, place, facts))
}

fn is_usable(config: &Config, scheme: Scheme, place: DevicePlacement, facts: &Facts) -> bool {
    place.devices().into_iter().all(|name| name.supports(scheme) && refusal(config, name, facts).is_none())
}

/// Refuses a load that requires an NPU where every device of the place and the order refuses it already, so that nothing
/// is fetched or compiled for it.
///
/// # Errors
/// [`Error::NoDevice`] with every device and its reason.
pub(crate) fn check_possible(config: &Config, key: &PackageKey, facts: &Facts) -> Result<(), Error> {
    if config.npu != NpuPolicy::Require {
        return Ok(());
    }
    let divided = match config.place {
        Some(PlacementChoice::Fixed(place)) => place.devices(),
        Some(PlacementChoice::Auto) | None => Vec::new(),
    };
    // Beside an NPU another device may have a part of the work: how much, is weighed once it is loaded.
    let beside = |name| ep::probe(name, facts).err();
    let refused = refusals(config, key, divided.iter().copied(), beside);
    if !divided.is_empty() && refused.is_empty() {
        return Ok(());
    }
    let order = config.providers.devices();
    let alone = refusals(config, key, order.iter().copied(), |name| refusal(config, name, facts));
    if alone.len() < order.len() {
        return Ok(());
    }
    let mut passed_over = refused;
    let told: Vec<DeviceName> = passed_over.iter().map(|passed| passed.device).collect();
    passed_over.extend(alone.into_iter().filter(|passed| !told.contains(&passed.device)));
    Err(Error::NoDevice { name: key.name.clone(), policy: config.npu, passed_over })
}

/// Those of some devices that refuse a package, by what is known of them or by its scheme.
fn refusals(
    config: &Config,
    key: &PackageKey,
    devices: impl Iterator<Item = DeviceName>,
    refusal: impl Fn(DeviceName) -> Option<Refusal>,
) -> Vec<PassedOver> {
    let of = |name| refusal(name).or_else(|| bound::other_scheme(name, &key.name, key.scheme).err());
    devices.filter_map(|name| Some(passed_over(config, name, of(name)?))).collect()
}
