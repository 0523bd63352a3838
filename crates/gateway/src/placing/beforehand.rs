//! What can be said of a load before there is a package.

use narthex_device::ep::Facts;
use narthex_spec::{Division, Place, Scheme, Variant};

use super::refusal;
use crate::config::Config;

/// Whether a load on this machine would use graphs of fixed shape: on the device that is next in turn, on one of those to
/// be measured, or where the settings put it.
pub(crate) fn wants_fixed(config: &Config, scheme: Scheme, facts: &Facts) -> bool {
    let usable = |place: &Place| is_usable(config, scheme, *place, facts);
    let mut order = config.providers.devices().iter().copied().map(Place::One).filter(usable);
    match config.place {
        Some(Division::Measured) => run_fixed(config, scheme, order, facts),
        Some(Division::Given(place)) => {
            run_fixed(config, scheme, [place].into_iter().chain(order.next()), facts)
        }
        None => run_fixed(config, scheme, order.next(), facts),
    }
}

/// Whether one of these places can be used on this machine, and runs graphs of fixed shape with weights of a scheme.
pub(crate) fn run_fixed(
    config: &Config,
    scheme: Scheme,
    places: impl IntoIterator<Item = Place>,
    facts: &Facts,
) -> bool {
    let fixed = |place: Place| {
        matches!(place, Place::Parts(_))
            || place.devices().iter().any(|device| device.variant() == Variant::Static)
    };
    places.into_iter().any(|place| fixed(place) && is_usable(config, scheme, place, facts))
}

fn is_usable(config: &Config, scheme: Scheme, place: Place, facts: &Facts) -> bool {
    place.devices().into_iter().all(|name| name.takes(scheme) && refusal(config, name, facts).is_none())
}
