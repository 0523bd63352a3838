//! Which device of the order a package is loaded on. Every device that is passed over leaves its reason; none is
//! replaced by a slower one without a word.

mod beforehand;
mod bound;
mod candidate;
mod divided;

use narthex_device::ep::{self, Cause, Device, Facts, Refusal};
use narthex_engine::{executor::Executor, supervise::NumericsMonitor};
use narthex_spec::{
    DeviceKind, DeviceName, DevicePlacement, HeadSplit, ModelName, NpuPolicy, PhaseSplit, PlacementChoice,
    Variant, manifest::Manifest, recipe::FixedShapes,
};

use crate::{
    config::Config,
    error::{Error, ErrorKind},
    load::{
        auto,
        cache_key::Circumstances,
        contexts,
        fallback::Fallen,
        loaded_model::Worker,
        placement::{self, PlacementReport},
        sessions::{Model, Opening},
        supervise::{monitored, supervised},
        verify,
    },
    report::models::PassedOver,
};

pub(crate) use beforehand::{check_possible, run_fixed, wants_fixed};
pub(crate) use candidate::Candidate;

/// A model on its device.
pub(crate) struct Placed {
    pub(crate) worker: Worker,
    pub(crate) report: PlacementReport,
    /// The devices that came before it in the order.
    pub(crate) passed_over: Vec<PassedOver>,
    /// Raised when a device gives nonsense.
    pub(crate) monitors: Vec<NumericsMonitor>,
}

/// Loads a package where the settings say: a decoder as it is to be divided, if at all, and everything else on the first
/// device of the order that takes it.
pub(crate) fn place(opening: &Opening<'_>, facts: &Facts) -> Result<Placed, Error> {
    let Config { place, providers, .. } = opening.config;
    let decoder = opening.manifest.architecture.is_decoder();
    let (mut wanted, mut chosen) = (None, None);
    match place.filter(|_| decoder) {
        None => {}
        Some(PlacementChoice::Fixed(place)) => wanted = Some(place),
        Some(PlacementChoice::Auto) => {
            chosen = auto::choose(opening, facts)?;
            wanted = chosen.as_ref().map(|(choice, _)| choice.place);
        }
    }
    let order = providers
        .devices()
        .iter()
        .copied()
        .map(DevicePlacement::Single)
        .filter(|place| Some(*place) != wanted);
    let mut placed = first(opening, wanted.into_iter().chain(order), facts)?;
    if let Some((choice, refused)) = chosen
        && choice.place == placed.report.place()
    {
        let told = std::iter::once(choice.why).chain(placed.report.why.take());
        placed.report.why = Some(told.collect::<Vec<_>>().join("; "));
        placed.passed_over.splice(0..0, refused);
    }
    placed.announce(&opening.manifest.name);
    Ok(placed)
}

/// Loads a package at the first of these places that takes it.
pub(crate) fn first(
    opening: &Opening<'_>,
    places: impl IntoIterator<Item = DevicePlacement>,
    facts: &Facts,
) -> Result<Placed, Error> {
    let config = opening.config;
    let mut turn = Turn { config, passed_over: Vec::new(), failed: Vec::new() };
    for place in places {
        let (name, outcome) = match at(opening, place, facts) {
            Ok(ready) => (ready.report.device, Ok(ready)),
            Err((name, attempt)) => (name, Err(attempt)),
        };
        if let Some(ready) = turn.hear(name, outcome)? {
            return ready.start(opening, turn.passed_over);
        }
    }
    Err(turn.end(&opening.manifest.name, config.npu))
}

/// Tries one place; a failure names its device.
fn at(opening: &Opening<'_>, place: DevicePlacement, facts: &Facts) -> Result<Ready, (DeviceName, Attempt)> {
    match place {
        DevicePlacement::Phases(split) => divided::in_phases(opening, split, facts),
        DevicePlacement::Head(parts) => divided::in_parts(opening, parts, facts),
        DevicePlacement::Single(name) => match barred(opening.config, name) {
            Some(reason) => Err(Attempt::Refused(Refusal { cause: Cause::Absent, reason, fix: None })),
            None => attempt(opening, name, facts),
        }
        .map_err(|attempt| (name, attempt)),
    }
}

/// Why the policy keeps a load from a device.
fn barred(config: &Config, name: DeviceName) -> Option<String> {
    match (config.npu, name.kind()) {
        (NpuPolicy::Off, DeviceKind::Npu) => Some("NPUs are switched off".to_owned()),
        (NpuPolicy::Require, DeviceKind::StandIn) => {
            Some(format!("an NPU is required, and {} is none", name.describe()))
        }
        (NpuPolicy::Require, DeviceKind::Gpu | DeviceKind::Cpu) => {
            Some("an NPU is required, and this is none".to_owned())
        }
        _ => None,
    }
}

/// Why a load does not even try a device.
pub(crate) fn refusal(config: &Config, name: DeviceName, facts: &Facts) -> Option<Refusal> {
    match barred(config, name) {
        Some(reason) => Some(Refusal { cause: Cause::Absent, reason, fix: None }),
        None => ep::probe(name, facts).err(),
    }
}

/// A device that is not taken, and whether that is news.
pub(crate) fn passed_over(config: &Config, device: DeviceName, refusal: Refusal) -> PassedOver {
    let Refusal { cause, reason, fix } = refusal;
    // A machine without some device is no news, unless a person asked for just that device.
    let Config { place, providers, .. } = config;
    let divided = matches!(place, Some(PlacementChoice::Fixed(place)) if place.devices().contains(&device));
    let announced = cause != Cause::Absent || divided || providers.is_explicit();
    PassedOver { device, reason, fix, announced, fallen: Fallen::default() }
}

/// A device on which a placement is not enough for the policy.
fn short_of(config: &Config, device: DeviceName, report: &PlacementReport) -> Option<PassedOver> {
    let short = config.npu == NpuPolicy::Require && report.npu_share < config.npu_share;
    short.then(|| {
        let fallen = report.fallen.clone();
        let nodes = if fallen.is_empty() { String::new() } else { format!(": {fallen}") };
        let reason = format!(
            "{} run on the NPU, and {:.2} % are required{nodes}",
            report.share_in_words(),
            config.npu_share * 100.0
        );
        PassedOver { device, reason, fix: fallen.fix(), announced: true, fallen }
    })
}

/// How a device did not take a model.
enum Attempt {
    /// It is not there, or cannot be used.
    Refused(Refusal),
    /// Loading failed.
    Failed(Box<Error>),
}

impl<E: Into<Error>> From<E> for Attempt {
    fn from(error: E) -> Self {
        Self::Failed(Box::new(error.into()))
    }
}

/// A model on a device, before it serves.
struct Ready {
    model: Model,
    report: PlacementReport,
    monitors: Vec<NumericsMonitor>,
}

impl Ready {
    fn start(self, opening: &Opening<'_>, passed_over: Vec<PassedOver>) -> Result<Placed, Error> {
        let Self { model, report, monitors } = self;
        let worker = model.start(opening.config)?;
        Ok(Placed { worker, report, passed_over, monitors })
    }
}

/// Loads a decoder on one device, to be measured.
///
/// # Errors
/// [`Error::Cancelled`]; every other failure is the device's.
pub(crate) fn executor(
    opening: &Opening<'_>,
    name: DeviceName,
    facts: &Facts,
) -> Result<Result<Box<dyn Executor>, PassedOver>, Error> {
    let ready = attempt(opening, name, facts);
    let decoder = ready.and_then(|ready| Ok(ready.model.decoder(&opening.manifest.name)?));
    match decoder {
        Ok(executor) => Ok(Ok(Box::new(executor))),
        Err(Attempt::Refused(refusal)) => Ok(Err(passed_over(opening.config, name, refusal))),
        Err(Attempt::Failed(error)) if is_interrupt(&error) => Err(Error::Cancelled),
        Err(Attempt::Failed(error)) => Ok(Err(PassedOver::failed(name, &error))),
    }
}

fn is_interrupt(error: &Error) -> bool {
    error.kind() == ErrorKind::Cancelled
}

/// A device that is there, with its provider loaded, and the circumstances there.
fn ready_device(
    opening: &Opening<'_>,
    name: DeviceName,
    facts: &Facts,
) -> Result<(Device, Circumstances), Attempt> {
    let Config { power, npu_options, .. } = opening.config;
    let device = there(opening, name, facts)
        .and_then(|device| device.with_power(*power).with_npu_options(*npu_options));
    let device = device.map_err(Attempt::Refused)?;
    if let Some(library) = facts.libraries.get(&name.ep()) {
        opening.runtime.register(name.ep(), library)?;
    }
    let now = Circumstances::now((name, &device), opening.runtime, facts);
    let machine = opening.store.machine(opening.folder, name.as_str())?;
    // Where compiled graphs are kept is none of the circumstances.
    Ok((contexts::keeping(device, &machine, &now), now))
}

/// A device that is there and takes the package's weights.
fn there(opening: &Opening<'_>, name: DeviceName, facts: &Facts) -> Result<Device, Refusal> {
    let device = ep::probe(name, facts)?;
    let Manifest { name: model, recipe, .. } = opening.manifest;
    bound::other_scheme(name, model, recipe.scheme)?;
    Ok(device)
}

fn attempt(opening: &Opening<'_>, name: DeviceName, facts: &Facts) -> Result<Ready, Attempt> {
    bound::other_device(opening.manifest, name).map_err(Attempt::Refused)?;
    let variant = opening.variant(name);
    if !opening.manifest.graphs.iter().any(|graph| graph.variant == variant) {
        there(opening, name, facts).map_err(Attempt::Refused)?;
        return Err(Attempt::Refused(lacking(opening, variant)));
    }
    let (device, mut now) = ready_device(opening, name, facts)?;
    bound::other_chip(opening.manifest, &device).map_err(Attempt::Refused)?;
    let mut notes = Vec::new();
    notes.extend(opening.manifest.bound.is_some().then(|| bound::UNCHECKED.to_owned()));
    let mut kept_as = name.to_string();
    if let Some((head, device)) = opening.head {
        kept_as = HeadSplit { layers: name, head }.to_string();
        now = now.with_head(Circumstances::now((head, device), opening.runtime, facts));
    }
    let machine = opening.store.machine(opening.folder, &kept_as)?;
    let candidate = Candidate { opening, name, device, machine, now };
    let mut opened = candidate.open(&mut notes)?;
    let report = placement::report(opening, (name, &candidate.device), &opened.graphs, notes)?;
    if name.kind() == DeviceKind::Cpu && opening.head.is_none() {
        // It is the reference itself.
        return Ok(Ready { model: opened.model, report, monitors: Vec::new() });
    }
    // Of two devices the NPU is the one to take turns on.
    let shared = opening.head.map(|(head, _)| head).filter(|head| head.kind() == DeviceKind::Npu);
    opened.model = supervised(opened.model, shared.unwrap_or(name), candidate.again());
    if let Some(refusal) = verify::check(&candidate, &mut opened)? {
        return Err(Attempt::Refused(refusal));
    }
    let Candidate { machine, now, .. } = candidate;
    let model = opening.manifest.name.clone();
    let monitor = NumericsMonitor::new(move |reason| {
        tracing::error!(
            "{model} on {}: {reason}; the next request loads it on another device",
            name.describe()
        );
        verify::quarantine(&machine, now.clone(), reason);
    });
    Ok(Ready { model: monitored(opened.model, &monitor), report, monitors: vec![monitor] })
}

/// The refusal of a package without the graphs that a device runs.
fn lacking(opening: &Opening<'_>, variant: Variant) -> Refusal {
    if opening.manifest.architecture.architecture().is_none() {
        let reason = "it was imported, and its graph has no fixed shapes".to_owned();
        let fix = "compile the checkpoint that it was exported from: narthex compile".to_owned();
        return Refusal { cause: Cause::Refused, reason, fix: Some(fix) };
    }
    let reason = match variant {
        Variant::Static => "the package has no graphs of fixed shape",
        Variant::Dynamic => "the package has only graphs of fixed shape",
    };
    let (name, scheme) = (&opening.manifest.name, opening.manifest.recipe.scheme);
    let context = FixedShapes::USUAL_CONTEXT;
    let fix = format!("narthex compile {name} --scheme {scheme} --context {context}");
    Refusal { cause: Cause::Refused, reason: reason.to_owned(), fix: Some(fix) }
}

/// The devices that were tried so far.
struct Turn<'a> {
    config: &'a Config,
    passed_over: Vec<PassedOver>,
    failed: Vec<Error>,
}

impl Turn<'_> {
    /// Gives the model where a device took it and the policy agrees, else notes why not; an interrupt ends it all.
    fn hear(&mut self, device: DeviceName, outcome: Result<Ready, Attempt>) -> Result<Option<Ready>, Error> {
        match outcome {
            Ok(ready) => match short_of(self.config, device, &ready.report) {
                None => return Ok(Some(ready)),
                Some(short) => self.note(short),
            },
            Err(Attempt::Refused(refusal)) => self.note(passed_over(self.config, device, refusal)),
            Err(Attempt::Failed(error)) if is_interrupt(&error) => return Err(Error::Cancelled),
            Err(Attempt::Failed(error)) => self.fail(device, *error),
        }
        Ok(None)
    }

    fn fail(&mut self, device: DeviceName, error: Error) {
        self.note(PassedOver::failed(device, &error));
        self.failed.push(error);
    }

    /// Notes a device that is not taken. One that is asked again as part of another place may say the same again.
    fn note(&mut self, passed: PassedOver) {
        if !self.passed_over.contains(&passed) {
            self.passed_over.push(passed);
        }
    }

    /// No device took the model. Where only one was really tried, its own error says most.
    fn end(mut self, name: &ModelName, policy: NpuPolicy) -> Error {
        match self.failed.pop() {
            Some(error) if self.failed.is_empty() && policy != NpuPolicy::Require => error,
            _ => Error::NoDevice { name: name.clone(), policy, passed_over: self.passed_over },
        }
    }
}

impl Placed {
    /// Says in the log where the model runs, and loudly if a device before that refused.
    fn announce(&self, name: &ModelName) {
        let device = self.report.device;
        for passed in &self.passed_over {
            if passed.announced {
                let fix = passed.fix.as_deref().map(|fix| format!(" ({fix})")).unwrap_or_default();
                tracing::warn!("{name} does not run on {}: {}{fix}", passed.device.describe(), passed.reason);
            } else {
                tracing::debug!("{name} does not run on {}: {}", passed.device.describe(), passed.reason);
            }
        }
        for note in &self.report.notes {
            tracing::warn!("{name} on {}: {note}", device.describe());
        }
        if !self.report.fallen.is_empty() {
            tracing::info!("{name} on {} leaves nodes to the CPU: {}", device.describe(), self.report.fallen);
        }
        if let Some(why) = &self.report.why {
            tracing::info!("{name} on {}: {why}", self.report.name());
        }
        match self.report.place() {
            DevicePlacement::Single(device) => tracing::info!("{name} runs on {}", device.describe()),
            DevicePlacement::Phases(PhaseSplit { prefill, decode }) => {
                tracing::info!("{name} reads on {} and writes on {}", prefill.describe(), decode.describe());
            }
            DevicePlacement::Head(HeadSplit { layers, head }) => {
                tracing::info!("{name} runs on {}, its head on {}", layers.describe(), head.describe());
            }
        }
    }
}

#[cfg(test)]
mod tests;
