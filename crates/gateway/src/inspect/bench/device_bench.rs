//! Benchmark of one model on several devices: all are loaded, and each round runs on every device in turn.

use std::{
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{
    energy::{Meter, Reading},
    ep::Facts,
    memory,
    runtime::Runtime,
};
use narthex_spec::{
    Date, DeviceName, DevicePlacement, DevicePlacements, ProgressSink,
    progress::{JobSteps, Stage, Unit},
};

use super::{
    BenchOptions, Machine, check, check_room,
    comparison::{ComparedDevice, Comparison, Figures, LoadFigures, MeteredRound, Outcome},
    refuse_stand_in, round, run_round,
};
use crate::{
    cancel::Cancel,
    compile::package_build::{self, ModelSource, RequiredGraphs},
    error::Error,
    gateway::Gateway,
    library::{
        Library,
        package::Package,
        package_key::{PackageKey, split_scheme},
    },
    load::{
        device_selection, eligibility, loaded_model::LoadedModel, request::LoadRequest,
        runtime_choice::RuntimeChoice, tokenizer_reader::TokenizerReader,
    },
    report::models::DeviceRefusal,
};

impl Gateway {
    /// Measures a chat model on several devices and divisions. A device that is not usable, or fails during the
    /// benchmark, is listed with its reason. Unloads the models afterwards.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a place uses software that stands in for an NPU, whose times have no meaning.
    /// [`Error::NoDevice`] if no device ran.
    pub fn compare(
        &self,
        model: &str,
        places: &DevicePlacements,
        options: BenchOptions,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Comparison, Error> {
        check(options)?;
        refuse_stand_in("devices", places.devices())?;
        let library = self.library();
        let key = library.key(model)?;
        let not_cpu = places.devices().filter(|&device| device != DeviceName::Cpu);
        let mut choice = RuntimeChoice::for_devices(library, not_cpu);
        choice.verify(library, progress, cancel)?;
        choice.load_early(library)?;
        let all = places.as_slice().iter().copied();
        let needs_static =
            eligibility::any_runs_static_graphs(&library.config, key.scheme, all, &choice.facts);
        let graphs = RequiredGraphs::of(needs_static, &choice.facts);
        let reference = library.reference(split_scheme(model).0)?;
        let source = ModelSource::operator(&reference);
        let steps = JobSteps::new(progress);
        steps.plan(2);
        let folder = package_build::package_for_load(library, &key, graphs, source, &steps, cancel)?;
        let runtime = choice.load(library, progress, cancel)?;
        let facts = Arc::new(choice.facts);
        steps.begin(format!("Loading {} on every device", key.name));

        let bench = DeviceBench { library, key, folder, runtime, facts, options, progress, cancel };
        let meter = Meter::here().and_then(IdleMeter::measure);
        let stage = Stage::start(progress, "Loading", Unit::Items, Some(places.as_slice().len() as u64));

        let mut devices = Vec::new();
        for (number, &place) in places.as_slice().iter().enumerate() {
            devices.push(BenchedDevice { place, state: bench.prepare(place)?, rounds: Vec::new() });
            stage.advance(number as u64 + 1);
        }

        drop(stage);
        steps.begin("Measuring every device in turn");
        bench.run(&mut devices, meter.as_ref())?;
        bench.report(devices, meter.as_ref(), self)
    }
}

/// Time in which the power of the idle machine is measured.
const IDLE_TIME: Duration = Duration::from_secs(2);

/// Counters of energy, and the power of the idle machine, which does not count.
struct IdleMeter {
    meter: Meter,
    idle_watts: f64,
}

impl IdleMeter {
    /// Measures the power of the idle machine; `None` if the counters can no longer be read.
    fn measure(meter: Meter) -> Option<Self> {
        let before = meter.read()?;
        thread::sleep(IDLE_TIME);
        let after = meter.read()?;
        let idle_watts = meter.watts(&before, &after)?;
        Some(Self { meter, idle_watts })
    }

    /// Returns the joules since a reading without those of the idle machine.
    fn joules_since(&self, before: &Reading) -> Option<f64> {
        let now = self.meter.read()?;
        Some(self.meter.joules_above(self.idle_watts, before, &now))
    }

    fn describe(&self) -> String {
        format!("{}, above the {:.1} W of the idle machine", self.meter.describe(), self.idle_watts)
    }
}

/// Settings that are equal for every device.
struct DeviceBench<'a> {
    library: &'a Library,
    key: PackageKey,
    folder: PathBuf,
    runtime: &'static Runtime,
    facts: Arc<Facts>,
    options: BenchOptions,
    progress: &'a dyn ProgressSink,
    cancel: &'a Cancel,
}

/// A device or division with its rounds.
struct BenchedDevice {
    place: DevicePlacement,
    state: Result<BenchedModel, DeviceRefusal>,
    rounds: Vec<MeteredRound>,
}

/// A model that is loaded for the benchmark.
struct BenchedModel {
    model: LoadedModel,
    load_ms: f64,
    memory_bytes: Option<u64>,
}

impl DeviceBench<'_> {
    /// Loads the model at a place and runs a warm-up round. The outer error ends the benchmark.
    fn prepare(&self, place: DevicePlacement) -> Result<Result<BenchedModel, DeviceRefusal>, Error> {
        separate(place, self.measured_load(place))
    }

    fn measured_load(&self, place: DevicePlacement) -> Result<BenchedModel, Error> {
        let before = memory::rss();
        // The first load verifies the device and compiles for it.
        drop(self.load(place)?);
        let is_reset = memory::reset_peak_rss();
        let begun = Instant::now();
        let model = self.load(place)?;
        let load_ms = begun.elapsed().as_secs_f64() * 1e3;
        let engine = model.engine()?;
        check_room(engine, self.options)?;
        run_round(engine, self.options, 0)?;
        let after = is_reset.and_then(|()| memory::peak_rss()).or_else(memory::rss);
        let memory_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok(BenchedModel { model, load_ms, memory_bytes })
    }

    fn load(&self, place: DevicePlacement) -> Result<LoadedModel, Error> {
        self.cancel.check()?;
        let Self { library, key, folder, progress, cancel, .. } = self;
        let package = Arc::new(Package::open_verified(&library.store, key, folder, *progress, cancel)?);
        let tokenizer = TokenizerReader::start(&package)?;
        let request = LoadRequest {
            package,
            runtime: self.runtime,
            facts: self.facts.clone(),
            config: self.library.config.clone(),
            store: self.library.store.clone(),
            reservation: None,
            progress: self.progress,
            cancel: self.cancel.clone(),
        };
        LoadedModel::load(&request, tokenizer, None, None, |request: &LoadRequest<'_>| {
            device_selection::open_first(request, [place])
        })
    }

    /// Runs the rounds. The first device of a round becomes the last of the next, so that a machine that warms up
    /// slows all devices alike.
    fn run(&self, devices: &mut [BenchedDevice], meter: Option<&IdleMeter>) -> Result<(), Error> {
        let all = (self.options.rounds * devices.len()) as u64;
        let stage = Stage::start(self.progress, "Measuring", Unit::Items, Some(all));
        let mut done = 0;
        for number in 1..=self.options.rounds {
            for device in devices.iter_mut() {
                self.cancel.check()?;
                if let Ok(benched) = &device.state {
                    round::cool_down();
                    match separate(device.place, self.run_metered(benched, number, meter))? {
                        Ok(round) => device.rounds.push(round),
                        Err(passed_over) => device.state = Err(passed_over),
                    }
                }
                done += 1;
                stage.advance(done);
            }
            devices.rotate_left(1);
        }
        Ok(())
    }

    fn run_metered(
        &self,
        benched: &BenchedModel,
        number: usize,
        meter: Option<&IdleMeter>,
    ) -> Result<MeteredRound, Error> {
        let before = meter.and_then(|meter| meter.meter.read());
        let round = run_round(benched.model.engine()?, self.options, number)?;
        let joules = meter.and_then(|meter| meter.joules_since(&before?));
        Ok(MeteredRound { round, joules })
    }

    fn report(
        &self,
        mut devices: Vec<BenchedDevice>,
        meter: Option<&IdleMeter>,
        gateway: &Gateway,
    ) -> Result<Comparison, Error> {
        let Self { library, options, .. } = self;
        // Each round moved the first device to the end. This restores the order of the request.
        let rotation = options.rounds % devices.len().max(1);
        devices.rotate_right(rotation);
        if devices.iter().all(|device| device.state.is_err()) {
            let passed_over = devices.into_iter().filter_map(|device| device.state.err()).collect();
            let name = self.key.name.clone();
            let policy = library.config.npu;
            return Err(Error::NoDevice { name, policy, passed_over });
        }

        let cpu = devices
            .iter()
            .find(|device| device.place == DevicePlacement::Single(DeviceName::Cpu) && device.state.is_ok())
            .map(|device| device.rounds.clone());
        let installed = runtimes::all().filter_map(|package| {
            let info = runtimes::locate(&library.store, package.kind)?;
            Some(format!("{} {}", package.name, info.version))
        });

        Ok(Comparison {
            model: self.key.name.to_string(),
            scheme: self.key.scheme,
            package: Store::package_digest(&self.folder)?,
            date: Date::today().to_string(),
            machine: Machine::here(self.runtime, library.config.threads),
            devices: gateway.devices(),
            runtimes: installed.collect(),
            prompt_tokens: options.prompt_tokens,
            generate_tokens: options.generate_tokens,
            rounds: options.rounds,
            energy_counter: meter.map(IdleMeter::describe),
            contenders: devices.into_iter().map(|device| device.compared(cpu.as_deref(), *options)).collect(),
        })
    }
}

impl BenchedDevice {
    fn compared(self, cpu: Option<&[MeteredRound]>, options: BenchOptions) -> ComparedDevice {
        let outcome = match self.state {
            Ok(benched) => {
                let load = LoadFigures {
                    load_ms: benched.load_ms,
                    memory_bytes: benched.memory_bytes,
                    placement: benched.model.placement().clone(),
                };
                Outcome::Measured(Box::new(Figures::new(load, &self.rounds, cpu, options)))
            }
            Err(DeviceRefusal { device, reason, fix, .. }) => {
                // The reason of a division names the device that refused.
                let is_division = self.place != DevicePlacement::Single(device);
                let reason = if is_division { format!("{device}: {reason}") } else { reason };
                Outcome::Refused { reason, fix }
            }
        };
        ComparedDevice { place: self.place, outcome }
    }
}

/// Separates the failures of one device, which are the inner error, from those that end the benchmark.
fn separate<T>(place: DevicePlacement, outcome: Result<T, Error>) -> Result<Result<T, DeviceRefusal>, Error> {
    let error = match outcome {
        Ok(value) => return Ok(Ok(value)),
        Err(error) => error,
    };
    match error {
        Error::Cancelled | Error::WrongKind { .. } => Err(error),
        // Only one place was tried, so that the reason of one device is complete.
        Error::NoDevice { mut passed_over, .. } if passed_over.len() == 1 => Ok(Err(passed_over.remove(0))),
        _ => {
            let device = place.devices().first().copied().unwrap_or(DeviceName::Cpu);
            Ok(Err(error.to_refusal(device)))
        }
    }
}
