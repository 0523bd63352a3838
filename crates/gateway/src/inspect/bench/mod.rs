//! `narthex bench`: speed of a chat model's prefill, decode and load on this machine, and the gateway's overhead.
//!
//! Every figure is measured several times and reported as minimum, median and maximum.
//! [`Gateway::compare`] measures one model on several devices.

mod comparison;
mod device_bench;
mod machine;
mod overhead;
mod pictures;
mod round;

use std::time::Instant;

use narthex_device::runtime::Runtime;
use narthex_engine::worker::Engine;
use narthex_spec::{
    DeviceKind, DeviceName, PlacementChoice, ProgressSink, Scheme,
    progress::{JobSteps, Stage, Unit},
};
use serde::Serialize;

pub use comparison::{ComparedDevice, Comparison, Figures, Outcome, Ratios};
pub use machine::Machine;
pub use overhead::Overhead;
pub use pictures::PictureReport;

use crate::{
    cancel::Cancel,
    compile::package_build::{self, ModelSource, RequiredGraphs},
    error::Error,
    gateway::Gateway,
    library::package_key::{PackageKey, split_scheme},
    load::{residency::ReadyModel, runtime_choice::RuntimeChoice},
};
use round::{Round, RoundRequest};

/// Settings of a benchmark.
///
/// ```
/// use narthex_gateway::{Cancel, Config, Gateway, bench::BenchOptions};
/// use narthex_spec::progress::Quiet;
///
/// # fn main() -> Result<(), narthex_gateway::Error> {
/// # let home = tempfile::tempdir().unwrap();
/// # let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
/// let gateway = Gateway::open(config)?;
/// let options = BenchOptions { prompt_tokens: 512, generate_tokens: 1, rounds: 5, engine_only: false };
/// let error = gateway.bench("smollm2:135m", options, &Quiet, &Cancel::new()).unwrap_err();
/// assert_eq!(error.param(), Some("generate_tokens"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BenchOptions {
    /// Tokens in each prompt.
    pub prompt_tokens: usize,
    /// Tokens generated after each prompt; at least 2.
    pub generate_tokens: usize,
    /// Measured rounds after a warm-up.
    pub rounds: usize,
    /// Skips the overhead of the gateway, whose measurement takes two thirds of the time.
    pub engine_only: bool,
}

/// Figures of one model.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    /// Name of the package.
    pub model: String,
    /// Weight scheme.
    pub scheme: Scheme,
    /// Device.
    pub device: String,
    /// Machine and versions.
    pub machine: Machine,
    /// Tokens in each prompt.
    pub prompt_tokens: usize,
    /// Tokens generated after each prompt.
    pub generate_tokens: usize,
    /// Measured rounds.
    pub rounds: usize,
    /// Prompt tokens per second, up to the first generated token.
    pub prefill_tokens_per_second: Spread,
    /// Generated tokens per second after the first.
    pub decode_tokens_per_second: Spread,
    /// Milliseconds from submission to the first token.
    pub first_token_ms: Spread,
    /// Overhead of the gateway; `None` if it is omitted, for a model without a chat template, and if the measured
    /// conversation does not fit the context.
    pub gateway: Option<Overhead>,
    /// Milliseconds to load the compiled package; nearly 0 if it was already in memory.
    pub load_ms: f64,
    /// Peak resident memory of the process in bytes, if the system reports it.
    pub peak_rss_bytes: Option<u64>,
}

/// Distribution of a figure over several rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Median.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// Returns the distribution of at least one figure.
    pub(super) fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        let median = match figures.len() {
            0 => 0.0,
            n if n % 2 == 1 => figures[middle],
            _ => (figures[middle - 1] + figures[middle]) / 2.0,
        };
        let min = figures.first().copied().unwrap_or(0.0);
        Self { min, median, max: figures.last().copied().unwrap_or(0.0) }
    }
}

impl Gateway {
    /// Measures a chat model, which stays in memory. Fetches and compiles it first if it is not installed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the settings use software that stands in for an NPU, whose times have no meaning.
    pub fn bench(
        &self,
        model: &str,
        options: BenchOptions,
        progress: &dyn ProgressSink,
        cancel: &Cancel,
    ) -> Result<BenchReport, Error> {
        check(options)?;
        let steps = JobSteps::new(progress);
        let LoadedForBench { key, id, model, runtime, load_ms } =
            self.load_for_bench(model, progress, &steps, cancel)?;
        let loaded = &model.loaded;
        let engine = loaded.engine()?;
        check_room(engine, options)?;
        steps.begin(format!("Measuring {}", key.name));
        let rounds = measure(engine, options, progress, cancel)?;
        let gateway = match options.engine_only {
            true => None,
            false => overhead::measure(self, &id, loaded, options, cancel)?,
        };

        Ok(BenchReport {
            model: key.name.to_string(),
            scheme: key.scheme,
            device: loaded.ran_on().device,
            machine: Machine::here(runtime, self.library().config.threads),
            prompt_tokens: options.prompt_tokens,
            generate_tokens: options.generate_tokens,
            rounds: options.rounds,
            prefill_tokens_per_second: spread(&rounds, |round| round.prefill_rate(options)),
            decode_tokens_per_second: spread(&rounds, |round| round.decode_rate(options)),
            first_token_ms: spread(&rounds, Round::first_ms),
            gateway,
            load_ms,
            peak_rss_bytes: narthex_device::memory::peak_rss(),
        })
    }

    /// Loads a model to be measured. Fetches and compiles it first if it is not installed.
    fn load_for_bench(
        &self,
        model: &str,
        progress: &dyn ProgressSink,
        steps: &JobSteps<'_>,
        cancel: &Cancel,
    ) -> Result<LoadedForBench, Error> {
        let library = self.library();
        refuse_stand_in("providers", library.config.providers.devices().iter().copied())?;
        if let Some(PlacementChoice::Fixed(place)) = library.config.place {
            refuse_stand_in("place", place.devices())?;
        }
        let key = library.key(model)?;
        let mut choice = RuntimeChoice::of(library);
        choice.verify(library, progress, cancel)?;
        choice.load_early(library)?;
        let reference = library.reference(split_scheme(model).0)?;
        let source = ModelSource::operator(&reference);
        steps.plan(2);
        package_build::package_for_load(library, &key, RequiredGraphs::Any, source, steps, cancel)?;
        steps.begin(format!("Loading {}", key.name));
        let runtime = choice.load(library, progress, cancel)?;

        let begun = Instant::now();
        let id = self.load(model, progress, cancel)?.id();
        let load_ms = begun.elapsed().as_secs_f64() * 1e3;
        let model = self.load_and_wait(&id)?;
        Ok(LoadedForBench { key, id, model, runtime, load_ms })
    }
}

/// A model to be measured.
struct LoadedForBench {
    key: PackageKey,
    /// Id of the loaded model.
    id: String,
    model: ReadyModel,
    runtime: &'static Runtime,
    /// Milliseconds to load the compiled package.
    load_ms: f64,
}

fn spread(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> Spread {
    Spread::of(rounds.iter().map(figure).collect())
}

fn check(options: BenchOptions) -> Result<(), Error> {
    match options {
        BenchOptions { prompt_tokens: 0, .. } => {
            Err(Error::invalid("prompt_tokens", "expected at least 1, found 0"))
        }
        BenchOptions { generate_tokens: 0 | 1, .. } => {
            Err(Error::invalid("generate_tokens", "expected at least 2"))
        }
        BenchOptions { rounds: 0, .. } => Err(Error::invalid("rounds", "expected at least 1, found 0")),
        _ => Ok(()),
    }
}

/// Refuses software that stands in for an NPU; `param` is the setting that names it.
fn refuse_stand_in(param: &'static str, devices: impl IntoIterator<Item = DeviceName>) -> Result<(), Error> {
    match devices.into_iter().find(|device| device.kind() == DeviceKind::StandIn) {
        None => Ok(()),
        Some(device) => Err(Error::invalid(
            param,
            format!(
                "{device} is software that stands in for an NPU ({}), so its times are meaningless; name devices of this \
                 machine, which `narthex doctor` lists",
                device.describe()
            ),
        )),
    }
}

fn check_room(engine: &Engine, options: BenchOptions) -> Result<(), Error> {
    let found = options.prompt_tokens.saturating_add(options.generate_tokens);
    let longest = engine.limits().longest();
    if found <= longest {
        return Ok(());
    }
    let message =
        format!("the context holds {longest} tokens for prompt and answer, found {found}; choose fewer");
    Err(Error::invalid("prompt_tokens", message))
}

fn measure(
    engine: &Engine,
    options: BenchOptions,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<Vec<Round>, Error> {
    let stage = Stage::start(progress, "Measuring", Unit::Items, Some(options.rounds as u64));
    let mut rounds = Vec::with_capacity(options.rounds);
    for number in 0..=options.rounds {
        cancel.check()?;
        round::cool_down();
        let round = run_round(engine, options, number)?;
        // The first round warms caches and grows buffers.
        if number > 0 {
            rounds.push(round);
            stage.advance(number as u64);
        }
    }
    Ok(rounds)
}

fn run_round(engine: &Engine, options: BenchOptions, number: usize) -> Result<Round, Error> {
    let vocab = engine.limits().vocab;
    // A different first token prevents the reuse of an earlier round's prefix.
    let prompt = (0..options.prompt_tokens).map(|i| ((i * 7919 + (number + 1) * 104_729) % vocab) as u32);
    round::run(
        engine,
        RoundRequest { prompt: prompt.collect(), tokens: options.generate_tokens, suppressed: Vec::new() },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0]), Spread { min: 1.0, median: 2.5, max: 4.0 });
    }
}
