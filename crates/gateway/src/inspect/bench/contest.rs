//! Measures one model on several devices: all are loaded, then each has its turn in every round.

use std::{path::PathBuf, time::Instant};

use narthex_catalog::{runtimes, store::Store};
use narthex_device::{energy::Meter, ep::Facts, memory, runtime::Runtime};
use narthex_spec::{
    DeviceName, DevicePlacement, DevicePlacements, ProgressSink,
    progress::{Stage, Unit},
};

use super::{
    BenchOptions, Machine, check,
    comparison::{Comparison, Contender, Figures, Lap, Outcome, Standing},
    fits, no_stand_in, round, run_round,
};
use crate::{
    cancel::Cancel,
    compile::job::{self, Graphs},
    error::Error,
    gateway::{Gateway, Inner},
    library::names::PackageKey,
    load::{device_selection, loaded_model::Loaded, runtime_choice::Core},
    report::models::PassedOver,
    serve::date,
};

impl Gateway {
    /// Measures a chat model on several devices and splits. A device that cannot be used, or fails on the way, is a row
    /// with its reason. What is loaded is let go again.
    ///
    /// # Errors
    /// [`Error::Invalid`] where a place has a stand-in: its times say nothing of what it stands for.
    /// [`Error::NoDevice`] where none could run.
    pub fn compare(
        &self,
        model: &str,
        places: &DevicePlacements,
        options: BenchOptions,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<Comparison, Error> {
        check(options)?;
        no_stand_in("devices", places.devices())?;
        let (key, inner) = (self.key_of(model)?, self.inner());
        let core = Core::serving(inner, places.devices().filter(|&device| device != DeviceName::Cpu));
        let facts = core.facts.clone();
        core.claim(inner)?;
        let fixed =
            device_selection::run_fixed(&inner.config, key.scheme, places.as_slice().iter().copied(), &facts);
        let graphs = if fixed { Graphs::Both } else { Graphs::Any };
        let folder = job::package_for_load(inner, (&key, graphs), job::named(model), progress, cancel)?;
        let runtime = core.load(inner, progress, cancel)?;
        let contest = Contest { inner, key, folder, runtime, facts, options };
        let meter = Meter::here();
        let stage = Stage::start(progress, "Loading", Unit::Items, Some(places.as_slice().len() as u64));
        let mut runners = Vec::new();
        for (number, &place) in places.as_slice().iter().enumerate() {
            runners.push(Runner {
                place,
                state: contest.enter(place, (progress, cancel))?,
                laps: Vec::new(),
            });
            stage.advance(number as u64 + 1);
        }
        drop(stage);
        contest.run(&mut runners, meter.as_ref(), progress, cancel)?;
        contest.report(runners, meter.as_ref(), self)
    }
}

/// What every contender runs.
struct Contest<'a> {
    inner: &'a Inner,
    key: PackageKey,
    folder: PathBuf,
    runtime: &'static Runtime,
    facts: Facts,
    options: BenchOptions,
}

/// A contender under way.
struct Runner {
    place: DevicePlacement,
    state: Result<Runs, PassedOver>,
    laps: Vec<Lap>,
}

/// A contender that runs.
struct Runs {
    loaded: Loaded,
    load_ms: f64,
    memory_bytes: Option<u64>,
}

impl Contest<'_> {
    /// Loads a contender and lets it run a round that is not counted. An interrupt alone is an error.
    fn enter(
        &self,
        place: DevicePlacement,
        watched: (&dyn ProgressSink, &Cancel),
    ) -> Result<Result<Runs, PassedOver>, Error> {
        let entered = || {
            let before = memory::rss();
            // The first load checks the device against the CPU and compiles for it, both once.
            drop(self.load(place, watched)?);
            let fresh = memory::reset_peak_rss();
            let begun = Instant::now();
            let loaded = self.load(place, watched)?;
            let load_ms = begun.elapsed().as_secs_f64() * 1e3;
            let engine = loaded.engine()?;
            fits(engine, self.options)?;
            run_round(engine, self.options, 0)?;
            let after = fresh.and_then(|()| memory::peak_rss()).or_else(memory::rss);
            let memory_bytes = before.zip(after).map(|(before, after)| after.saturating_sub(before));
            Ok(Runs { loaded, load_ms, memory_bytes })
        };
        settled(place, entered())
    }

    fn load(&self, place: DevicePlacement, watched: (&dyn ProgressSink, &Cancel)) -> Result<Loaded, Error> {
        watched.1.check()?;
        let Inner { config, store, .. } = self.inner;
        let settings: (_, &Store) = (config, store);
        Loaded::open_by(&self.key, &self.folder, self.runtime, settings, watched, |opening| {
            device_selection::first(opening, [place], &self.facts)
        })
    }

    /// Runs the rounds. Whoever comes first in a round comes last in the next, since the machine may grow warm.
    fn run(
        &self,
        runners: &mut [Runner],
        meter: Option<&Meter>,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        let all = (self.options.rounds * runners.len()) as u64;
        let stage = Stage::start(progress, "Measuring", Unit::Items, Some(all));
        let mut done = 0;
        for number in 1..=self.options.rounds {
            for runner in runners.iter_mut() {
                cancel.check()?;
                if let Ok(runs) = &runner.state {
                    round::rest();
                    match settled(runner.place, self.lap(runs, number, meter))? {
                        Ok(lap) => runner.laps.push(lap),
                        Err(passed) => runner.state = Err(passed),
                    }
                }
                done += 1;
                stage.advance(done);
            }
            runners.rotate_left(1);
        }
        Ok(())
    }

    fn lap(&self, runs: &Runs, number: usize, meter: Option<&Meter>) -> Result<Lap, Error> {
        let before = meter.and_then(Meter::read);
        let round = run_round(runs.loaded.engine()?, self.options, number)?;
        let joules = meter.and_then(|meter| Some(meter.joules(&before?, &meter.read()?)));
        Ok(Lap { round, joules })
    }

    fn report(
        &self,
        mut runners: Vec<Runner>,
        meter: Option<&Meter>,
        gateway: &Gateway,
    ) -> Result<Comparison, Error> {
        // Each round moved the first to the end.
        let turned = self.options.rounds % runners.len().max(1);
        runners.rotate_right(turned);
        if runners.iter().all(|runner| runner.state.is_err()) {
            let passed_over = runners.into_iter().filter_map(|runner| runner.state.err()).collect();
            let (name, policy) = (self.key.name.clone(), self.inner.config.npu);
            return Err(Error::NoDevice { name, policy, passed_over });
        }
        let is_cpu = |runner: &&Runner| {
            runner.place == DevicePlacement::Single(DeviceName::Cpu) && runner.state.is_ok()
        };
        let cpu = runners.iter().find(is_cpu).map(|runner| runner.laps.clone());
        let contender = |runner: Runner| runner.contender(cpu.as_deref(), self.options);
        let installed = runtimes::all().filter_map(|package| {
            let info = runtimes::locate(&self.inner.store, package.ep)?;
            Some(format!("{} {}", package.name, info.version))
        });
        let (year, month, day) = date::today();
        Ok(Comparison {
            model: self.key.name.to_string(),
            scheme: self.key.scheme,
            package: Store::package_digest(&self.folder)?,
            date: format!("{year:04}-{month:02}-{day:02}"),
            machine: Machine::here(self.runtime, self.inner.config.threads),
            devices: gateway.devices(),
            runtimes: installed.collect(),
            prompt_tokens: self.options.prompt_tokens,
            generate_tokens: self.options.generate_tokens,
            rounds: self.options.rounds,
            energy_counter: meter.map(|meter| meter.describe().to_owned()),
            contenders: runners.into_iter().map(contender).collect(),
        })
    }
}

impl Runner {
    fn contender(self, cpu: Option<&[Lap]>, options: BenchOptions) -> Contender {
        let outcome = match self.state {
            Ok(runs) => {
                let standing = Standing {
                    load_ms: runs.load_ms,
                    memory_bytes: runs.memory_bytes,
                    placement: runs.loaded.placement().clone(),
                };
                Outcome::Ran(Box::new(Figures::of(standing, &self.laps, cpu, options)))
            }
            Err(PassedOver { device, reason, fix, .. }) => {
                // Of two devices the one that refuses is named.
                let named = self.place != DevicePlacement::Single(device);
                let reason = if named { format!("{device}: {reason}") } else { reason };
                Outcome::Refused { reason, fix }
            }
        };
        Contender { place: self.place, outcome }
    }
}

/// What came of a step: a failure belongs to its contender; an interrupt, or a model that does not chat, ends all.
fn settled<T>(place: DevicePlacement, outcome: Result<T, Error>) -> Result<Result<T, PassedOver>, Error> {
    let error = match outcome {
        Ok(value) => return Ok(Ok(value)),
        Err(error) => error,
    };
    match error {
        Error::Cancelled | Error::WrongKind { .. } => Err(error),
        // There was one place to try, and at most one of its devices says why not.
        Error::NoDevice { mut passed_over, .. } if passed_over.len() == 1 => Ok(Err(passed_over.remove(0))),
        _ => {
            let device = place.devices().first().copied().unwrap_or(DeviceName::Cpu);
            Ok(Err(PassedOver::failed(device, &error)))
        }
    }
}
