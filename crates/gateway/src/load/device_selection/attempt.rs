//! An attempt to open a package on one device, or on one device with a separate device for the head.

use narthex_catalog::store::Guard;
use narthex_device::{
    DeviceError,
    ep::{self, Cause, Device, Refusal},
    static_shapes::Form,
};
use narthex_engine::supervise::NumericsMonitor;
use narthex_spec::{
    DeviceKind, DeviceName, HeadSplit, Recipe, Target, Variant, manifest::Manifest, recipe::FixedShapes,
};

use crate::{
    config::Config,
    error::{Error, ErrorKind},
    library::package::Package,
    load::{
        cache_key::{CacheKey, DeviceCache},
        contexts, eligibility, fallback, kv_precision,
        open_model::OpenModel,
        placement,
        request::{DeviceAssignment, LoadRequest, SelectedDevice},
        run_record::RunRecord,
        sessions::{self, Model, Sessions},
        supervise::{monitored, supervised},
        verify::{self, CheckResult},
    },
};

/// Reason why a device did not open a model.
pub(super) enum AttemptError {
    /// The device is absent or cannot be used.
    Refused(Refusal),
    /// The load failed.
    Failed(Box<Error>),
}

impl<E: Into<Error>> From<E> for AttemptError {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error.into()))
    }
}

/// Opens a package on a device. `head` is the device of a decoder's head, if it is another one.
pub(super) fn open(
    request: &LoadRequest<'_>,
    name: DeviceName,
    head: Option<SelectedDevice>,
) -> Result<OpenModel, AttemptError> {
    let manifest = request.manifest();
    eligibility::check_bound_provider(manifest, name).map_err(AttemptError::Refused)?;
    eligibility::check_amd_tools(manifest, name, &request.facts).map_err(AttemptError::Refused)?;
    eligibility::check_speech(manifest, name).map_err(AttemptError::Refused)?;
    let variant = request.variant(name, head.as_ref());
    if !manifest.graphs.iter().any(|graph| graph.variant == variant) {
        probe(request, name).map_err(AttemptError::Refused)?;
        return Err(AttemptError::Refused(missing_graphs(&request.package, variant)));
    }

    let (main, mut key) = prepare(request, name)?;
    eligibility::check_bound_chip(manifest, &main.device).map_err(AttemptError::Refused)?;
    let mut notes = Vec::new();
    notes.extend(manifest.bound.is_some().then(|| eligibility::UNVERIFIED_NOTE.to_owned()));

    let mut folder = name.to_string();
    if let Some(head) = &head {
        folder = HeadSplit { layers: name, head: head.name }.to_string();
        key = key.with_head(CacheKey::new(head, request.runtime, &request.facts));
    }

    let cache = DeviceCache { folder: request.store.machine(&request.package.folder, &folder)?, key };
    let devices = DeviceAssignment { main, head };
    let Sessions { mut model, placements } = open_sessions(request, &devices, &cache, &mut notes)?;
    let report = placement::report(request, &devices, &placements, notes)?;
    if name.kind() == DeviceKind::Cpu && devices.head.is_none() {
        // The CPU is the reference.
        return Ok(OpenModel {
            model,
            report,
            passed_over: Vec::new(),
            numerics: Vec::new(),
            monitors: Vec::new(),
        });
    }

    // If one of the two devices is an NPU, models take turns on that one.
    let shared = devices.head.as_ref().map(|head| head.name).filter(|head| head.kind() == DeviceKind::Npu);
    let reopen = reopen(request, &devices, &cache);
    model = supervised(model, shared.unwrap_or(name), reopen);
    let numerics = match verify::check(request, &devices, &cache, &mut model)? {
        CheckResult::NotCompared => Vec::new(),
        CheckResult::Passed(check) => vec![check],
        CheckResult::Quarantined(refusal) => return Err(AttemptError::Refused(refusal)),
    };
    RunRecord::store(&cache, &report);

    let model_name = manifest.name.clone();
    let monitor = NumericsMonitor::new(move |reason| {
        tracing::error!(
            "{model_name} on {}: {reason}; the next request loads it on another device",
            name.describe()
        );
        verify::quarantine(&cache, reason);
    });

    let model = monitored(model, &monitor);
    Ok(OpenModel { model, report, passed_over: Vec::new(), numerics, monitors: vec![monitor] })
}

/// Probes a device, loads its provider and returns it with its cache key.
pub(super) fn prepare(
    request: &LoadRequest<'_>,
    name: DeviceName,
) -> Result<(SelectedDevice, CacheKey), AttemptError> {
    let LoadRequest { runtime, facts, .. } = request;
    let Config { power, npu_options, .. } = *request.config;
    let device =
        probe(request, name).and_then(|device| device.with_power(power).with_npu_options(npu_options));
    let device = device.map_err(AttemptError::Refused)?;
    if let Some(library) = facts.libraries.get(&name.ep()) {
        runtime.register(name.ep(), library)?;
    }
    let selected = SelectedDevice { name, device };
    let key = CacheKey::new(&selected, runtime, facts);
    Ok((selected, key))
}

/// Returns a device that is present and supports the package's weight scheme.
fn probe(request: &LoadRequest<'_>, name: DeviceName) -> Result<Device, Refusal> {
    let device = ep::probe(name, &request.facts)?;
    let Manifest { name: model, recipe, .. } = request.manifest();
    eligibility::check_scheme(name, model, recipe.scheme)?;
    Ok(device)
}

/// The refusal of a package without the graphs that a device runs.
fn missing_graphs(package: &Package, variant: Variant) -> Refusal {
    let Manifest { name, recipe, architecture, .. } = &package.manifest;
    if architecture.architecture().is_none() {
        let reason = "the package was imported, and its graph has no static shapes".to_owned();
        let fix = "compile the checkpoint that it was exported from: narthex compile".to_owned();
        return Refusal { cause: Cause::Refused, reason, fix: Some(fix) };
    }
    let reason = match variant {
        Variant::Static => "the package has no static graphs",
        Variant::Dynamic => "the package has only static graphs",
    };
    let context = FixedShapes::USUAL_CONTEXT;
    let fix = format!("narthex compile {name} --scheme {} --context {context}", recipe.scheme);
    Refusal { cause: Cause::Refused, reason: reason.to_owned(), fix: Some(fix) }
}

/// Opens the sessions, with compiled contexts where the provider makes them. Adds events for the user to `notes`.
fn open_sessions(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    cache: &DeviceCache,
    notes: &mut Vec<String>,
) -> Result<Sessions, Error> {
    let lock = match lock_provider_caches(request, devices) {
        Err(error) if error.kind() != ErrorKind::Cancelled => {
            notes.push(format!("compiled graphs are not stored for the next load: {error}"));
            None
        }
        other => other?,
    };

    let with_caches = lock.is_some().then(|| with_provider_caches(request, devices)).transpose()?;
    let devices = with_caches.as_ref().unwrap_or(devices);
    let DeviceAssignment { main, head } = devices;
    let sessions = match devices.compiler() {
        Some(compiler) if request.manifest().bound.is_none() => {
            contexts::open(request, devices, compiler, cache, notes)
        }
        _ => {
            let variant = request.variant(main.name, head.as_ref());
            if main.name != DeviceName::Cpu || variant != Variant::Dynamic {
                sessions::open(request, devices, variant, Form::Graph)
            } else if request.manifest().architecture.is_decoder() {
                kv_precision::open(request, cache, notes)
            } else {
                sessions::open_on_cpu(request, &cache.folder)
            }
        }
    };
    sessions.map_err(|error| explain(request, devices, error))
}

/// Excludes other loads while a provider fills its own cache folder. They find it filled afterwards.
fn lock_provider_caches(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
) -> Result<Option<Guard>, Error> {
    if !devices.iter().any(|selected| selected.device.clone().cache().is_some()) {
        return Ok(None);
    }
    let Manifest { name, recipe, .. } = request.manifest();
    let lock = format!("compiled-{}-{}", name.file_stem(), recipe.scheme);
    Ok(Some(request.store.lock(&lock, request.progress, request.cancel.flag())?))
}

/// Sets the cache folders of providers that store their own compiled graphs. Files under another key are removed, so the
/// caller must hold the lock of these folders.
fn with_provider_caches(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
) -> Result<DeviceAssignment, Error> {
    let mut devices = devices.clone();
    for selected in std::iter::once(&mut devices.main).chain(&mut devices.head) {
        // The cache folder is not part of the key.
        let key = CacheKey::new(selected, request.runtime, &request.facts);
        let folder = request.store.machine(&request.package.folder, selected.name.as_str())?;
        selected.device = contexts::with_provider_cache(selected.device.clone(), &folder, &key);
    }
    Ok(devices)
}

/// Adds the reasons of refused nodes to an error.
fn explain(request: &LoadRequest<'_>, devices: &DeviceAssignment, error: Error) -> Error {
    let main = &devices.main.device;
    let head = devices.head.as_ref().map(|head| &head.device);
    let device = match (&error, head) {
        (Error::Device(DeviceError::NotWhole { ep, .. }), Some(head))
            if head.ep() == *ep && main.ep() != *ep =>
        {
            head
        }
        _ => main,
    };
    let Manifest { name, recipe: Recipe { scheme, .. }, .. } = request.manifest();
    fallback::explain(&request.package.folder, device, error, |target: &Target| {
        format!("`narthex check {name}@{scheme} --target {target}` bisects the graph to the failing nodes")
    })
}

/// Returns a function that opens the same sessions again.
fn reopen(
    request: &LoadRequest<'_>,
    devices: &DeviceAssignment,
    cache: &DeviceCache,
) -> impl FnMut() -> Result<Model, Error> + Send + use<> {
    let request = request.to_quiet();
    let devices = devices.clone();
    let cache = cache.clone();
    move || {
        let device = devices.main.name.describe();
        let name = &request.manifest().name;
        tracing::warn!("{device} was lost; loading {name} there again");
        let mut notes = Vec::new();
        let sessions = open_sessions(&request, &devices, &cache, &mut notes)?;
        notes.iter().for_each(|note| tracing::warn!("{note}"));
        Ok(sessions.model)
    }
}
