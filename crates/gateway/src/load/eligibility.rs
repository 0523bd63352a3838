//! Rules that exclude a device before it is opened: the machine's facts, the NPU policy, and packages that are made for
//! other devices.

use narthex_device::ep::{self, Cause, Device, Facts, Refusal};
use narthex_spec::{
    DeviceKind, DeviceName, DevicePlacement, ModelName, NpuPolicy, PlacementChoice, Scheme, Target, Variant,
    arch::Structure,
    manifest::{BoundDevice, Manifest},
    recipe::FixedShapes,
    target::QnnChip,
};

use crate::{
    config::Config,
    error::Error,
    library::package_key::PackageKey,
    report::{fallback::FallbackNodes, models::DeviceRefusal},
};

/// Note of a package that only its own device runs.
pub(crate) const UNVERIFIED_NOTE: &str =
    "its placement and its results are not verified, because the CPU cannot run the compiled graphs";

/// Returns the refusal of a device by the NPU policy.
pub(crate) fn policy_refusal(config: &Config, name: DeviceName) -> Option<Refusal> {
    let reason = match (config.npu, name.kind()) {
        (NpuPolicy::Off, DeviceKind::Npu) => "NPUs are disabled (--npu off)".to_owned(),
        (NpuPolicy::Require, DeviceKind::StandIn) => {
            format!("an NPU is required, and {} is not an NPU", name.describe())
        }
        (NpuPolicy::Require, DeviceKind::Gpu | DeviceKind::Cpu) => {
            "an NPU is required, and this device is not an NPU".to_owned()
        }
        _ => return None,
    };
    Some(Refusal { cause: Cause::Absent, reason, fix: None })
}

/// Returns the refusal of a device by the NPU policy or by the machine's facts.
pub(crate) fn refusal(config: &Config, name: DeviceName, facts: &Facts) -> Option<Refusal> {
    policy_refusal(config, name).or_else(|| ep::probe(name, facts).err())
}

/// Returns the entry of a refused device.
pub(crate) fn device_refusal(config: &Config, device: DeviceName, refusal: Refusal) -> DeviceRefusal {
    let Refusal { cause, reason, fix } = refusal;
    // An absent device, and one that is made for other packages, are worth a warning only if the user named them.
    let Config { place, providers, device_map, .. } = config;
    let placed = device_map.is_some()
        || matches!(place, Some(PlacementChoice::Fixed(place)) if place.devices().contains(&device));
    let is_expected = matches!(cause, Cause::Absent | Cause::OtherPackages);
    let announced = !is_expected || placed || providers.is_explicit();
    DeviceRefusal { device, reason, fix, announced, fallback: FallbackNodes::default() }
}

/// Returns whether a load on this machine would use static graphs: on the first usable device, on a device to be
/// measured, or on the devices of the configured division.
pub(crate) fn needs_static_graphs(config: &Config, scheme: Scheme, facts: &Facts) -> bool {
    if let Some(map) = &config.device_map {
        return any_runs_static_graphs(config, scheme, map.placements(&config.providers), facts);
    }

    let mut order = config
        .providers
        .devices()
        .iter()
        .copied()
        .map(DevicePlacement::Single)
        .filter(|place| is_usable(config, scheme, *place, facts));
    match config.place {
        Some(PlacementChoice::Auto) => any_runs_static_graphs(config, scheme, order, facts),
        Some(PlacementChoice::Fixed(place)) => {
            any_runs_static_graphs(config, scheme, [place].into_iter().chain(order.next()), facts)
        }
        None => any_runs_static_graphs(config, scheme, order.next(), facts),
    }
}

/// Returns whether one of these places is usable on this machine and runs static graphs with weights in this scheme.
pub(crate) fn any_runs_static_graphs(
    config: &Config,
    scheme: Scheme,
    places: impl IntoIterator<Item = DevicePlacement>,
    facts: &Facts,
) -> bool {
    places.into_iter().any(|place| {
        let is_static = matches!(place, DevicePlacement::Head(_))
            || place.devices().into_iter().any(uses_compiled_static_graphs);
        is_static && is_usable(config, scheme, place, facts)
    })
}

/// Returns whether a device runs static graphs that this program compiles. AMD's NPU runs packages with graphs of AMD's tools.
fn uses_compiled_static_graphs(device: DeviceName) -> bool {
    device.variant() == Variant::Static && device != DeviceName::VitisAi
}

fn is_usable(config: &Config, scheme: Scheme, place: DevicePlacement, facts: &Facts) -> bool {
    place.devices().into_iter().all(|name| name.supports(scheme) && refusal(config, name, facts).is_none())
}

/// Refuses a load that requires an NPU if every device of the settings is excluded, before anything is fetched or
/// compiled for it.
///
/// # Errors
/// [`Error::NoDevice`] with every device and its reason.
pub(crate) fn check_required_npu(config: &Config, key: &PackageKey, facts: &Facts) -> Result<(), Error> {
    // A device map states the devices itself.
    if config.npu != NpuPolicy::Require || config.device_map.is_some() {
        return Ok(());
    }
    let divided = match config.place {
        Some(PlacementChoice::Fixed(place)) => place.devices(),
        Some(PlacementChoice::Auto) | None => Vec::new(),
    };
    // Another device may do part of the work of an NPU. The share is measured after the load.
    let refused = refusals(config, key, &divided, |name| ep::probe(name, facts).err());
    if !divided.is_empty() && refused.is_empty() {
        return Ok(());
    }
    let order = config.providers.devices();
    let refused_alone = refusals(config, key, order, |name| refusal(config, name, facts));
    if refused_alone.len() < order.len() {
        return Ok(());
    }
    let mut passed_over = refused;
    let listed: Vec<DeviceName> = passed_over.iter().map(|passed| passed.device).collect();
    passed_over.extend(refused_alone.into_iter().filter(|passed| !listed.contains(&passed.device)));
    Err(Error::NoDevice { name: key.name.clone(), policy: config.npu, passed_over })
}

/// Returns the devices that refuse a package by `refusal` or by its scheme.
fn refusals(
    config: &Config,
    key: &PackageKey,
    devices: &[DeviceName],
    refusal: impl Fn(DeviceName) -> Option<Refusal>,
) -> Vec<DeviceRefusal> {
    let mut refusals = Vec::new();
    for &name in devices {
        let reason = refusal(name).or_else(|| check_scheme(name, &key.name, key.scheme).err());
        refusals.extend(reason.map(|reason| device_refusal(config, name, reason)));
    }
    refusals
}

/// Refuses a device when the package is bound to another provider.
pub(crate) fn check_bound_provider(manifest: &Manifest, name: DeviceName) -> Result<(), Refusal> {
    let other = manifest.bound.as_ref().filter(|bound| bound.ep != name.ep());
    other.map_or(Ok(()), |bound| Err(bound_refusal(bound, None)))
}

/// Refuses AMD's NPU for a chat model that AMD's tools have not compiled. Without this, the user would be asked to install
/// AMD's software, and the package would be refused after that. A machine with this NPU counts as one that refuses. One
/// without it gets no advice about AMD's tools.
pub(crate) fn check_amd_tools(manifest: &Manifest, name: DeviceName, facts: &Facts) -> Result<(), Refusal> {
    if name != DeviceName::VitisAi || manifest.bound.is_some() || !manifest.architecture.is_decoder() {
        return Ok(());
    }
    let reason = "AMD's NPU runs only chat models that AMD's tools have compiled".to_owned();
    if ep::probe(name, facts).is_err_and(|refusal| refusal.cause == Cause::Absent) {
        return Err(Refusal { cause: Cause::OtherPackages, reason, fix: None });
    }
    let fix = "`narthex export MODEL DIR --format quark` prepares a checkpoint for AMD's model_generate, whose result \
               `narthex import` reads";
    Err(Refusal { cause: Cause::Refused, reason, fix: Some(fix.to_owned()) })
}

/// Refuses GPUs for a model that transcribes speech. The CPU runs the dynamic variant, and devices with static graphs
/// the static variant.
pub(crate) fn check_speech(manifest: &Manifest, name: DeviceName) -> Result<(), Refusal> {
    let is_speech = matches!(manifest.architecture, Structure::Speech(_));
    if !is_speech || name == DeviceName::Cpu || name.variant() == Variant::Static {
        return Ok(());
    }
    let reason = "this version runs models that transcribe speech on the CPU and on NPUs".to_owned();
    Err(Refusal { cause: Cause::OtherPackages, reason, fix: None })
}

/// Refuses a device when the package is bound to other chips and both chips are known.
pub(crate) fn check_bound_chip(manifest: &Manifest, device: &Device) -> Result<(), Refusal> {
    let (Some(bound), Device::Qnn(options)) = (&manifest.bound, device) else { return Ok(()) };
    match (&bound.target, options.chips.first()) {
        (Some(Target::Qnn(chips)), Some(chip)) if !chips.contains(chip) => {
            Err(bound_refusal(bound, Some(*chip)))
        }
        _ => Ok(()),
    }
}

/// Refuses a device that does not support the weight scheme.
pub(crate) fn check_scheme(name: DeviceName, model: &ModelName, scheme: Scheme) -> Result<(), Refusal> {
    if name.supports(scheme) {
        return Ok(());
    }
    let weights = scheme.of_weights();
    let (suggested, unsupported) = if name.supports(weights) {
        (weights, "integer activations such as those of")
    } else {
        (Scheme::F16, "block-quantised weights such as")
    };
    let reason = format!("it does not support {unsupported} {scheme}; it needs {suggested}");
    let context = FixedShapes::USUAL_CONTEXT;
    let fix = format!(
        "narthex compile {model} --scheme {suggested} --context {context}, then request {model}@{suggested}"
    );
    Err(Refusal { cause: Cause::Refused, reason, fix: Some(fix) })
}

/// The refusal of a bound package by another device, whose chip may be known.
fn bound_refusal(bound: &BoundDevice, chip: Option<QnnChip>) -> Refusal {
    let here = chip.map(|chip| format!(", but this is {}", chip.spec().title)).unwrap_or_default();
    let reason = format!("the package runs only on {}{here}", bound.device);
    let fix = "load it on that device; for other devices, import an export for CPUs or GPUs, or compile the checkpoint: \
               narthex compile";
    Refusal { cause: Cause::Refused, reason, fix: Some(fix.to_owned()) }
}
