//! The figures of one model on several devices, as `narthex bench --devices --json` prints them: fields are added in
//! later versions, never renamed. How they are measured is in [`super::device_bench`].

use narthex_spec::{DevicePlacement, Scheme, Sha256};
use serde::Serialize;

use super::{BenchOptions, Machine, Spread, round::Round};
use crate::{inspect::devices::DeviceStatus, report::placement::PlacementReport};

/// One model on several devices.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The model, as named by its package.
    pub model: String,
    /// Its weight scheme.
    pub scheme: Scheme,
    /// What the package is known by: the digest of its manifest.
    pub package: Sha256,
    /// The day in UTC, as `2026-11-21`.
    pub date: String,
    /// The machine and the versions.
    pub machine: Machine,
    /// Every device that this version knows.
    pub devices: Vec<DeviceStatus>,
    /// The libraries of devices that are installed, with their versions.
    pub runtimes: Vec<String>,
    /// Tokens of each prompt.
    pub prompt_tokens: usize,
    /// Tokens generated after each prompt.
    pub generate_tokens: usize,
    /// Measured rounds; in each, every contender had its turn.
    pub rounds: usize,
    /// What the joules come from; `None` where this machine has no counter that can be read.
    pub energy_counter: Option<String>,
    /// The contenders, in the order in which they were named.
    pub contenders: Vec<Contender>,
}

/// One device or split, and what came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Contender {
    /// The device, or both as `prefill=qnn,decode=cpu` or `layers=qnn,head=cpu`.
    pub place: DevicePlacement,
    /// What came of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What came of a contender.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It ran.
    Ran(Box<Figures>),
    /// It cannot be used, or failed on the way.
    Refused {
        /// Why.
        reason: String,
        /// The next step, where there is one.
        fix: Option<String>,
    },
}

/// The figures of one contender.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Milliseconds from submission to the first token.
    pub first_token_ms: Spread,
    /// Prompt tokens per second, up to the first generated token.
    pub prefill_tokens_per_second: Spread,
    /// Generated tokens per second after the first.
    pub decode_tokens_per_second: Spread,
    /// Its rates over the CPU's, round by round; `None` where the CPU did not run.
    pub to_cpu: Option<Ratios>,
    /// Milliseconds of a load whose files are in memory, after a first one that made and checked what the device needs.
    pub load_ms: f64,
    /// The most resident memory of the process, during its load and first round, less that of before, in bytes; `None`
    /// where the system does not tell. Memory that a driver keeps to itself is not in it.
    pub memory_bytes: Option<u64>,
    /// Joules of one prompt and answer; see [`Comparison::energy_counter`].
    pub energy_joules: Option<Spread>,
    /// Where its nodes ran.
    pub placement: PlacementReport,
}

/// Rates over those of the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratios {
    /// Of reading prompts.
    pub prefill: Spread,
    /// Of writing answers.
    pub decode: Spread,
}

/// A round, and the joules that it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeteredRound {
    pub(super) round: Round,
    pub(super) joules: Option<f64>,
}

/// What is known of a contender besides its rounds.
pub(super) struct LoadFigures {
    pub(super) load_ms: f64,
    pub(super) memory_bytes: Option<u64>,
    pub(super) placement: PlacementReport,
}

impl Figures {
    /// The figures of a contender's laps; the CPU's laps of the same rounds, if it ran.
    pub(super) fn new(
        load: LoadFigures,
        laps: &[MeteredRound],
        cpu: Option<&[MeteredRound]>,
        options: BenchOptions,
    ) -> Self {
        let LoadFigures { load_ms, memory_bytes, placement } = load;
        let spread =
            |figure: &dyn Fn(&Round) -> f64| Spread::of(laps.iter().map(|lap| figure(&lap.round)).collect());
        let ratio = |cpu: &[MeteredRound], rate: &dyn Fn(&Round) -> f64| {
            let pairs = laps.iter().zip(cpu);
            Spread::of(pairs.map(|(own, cpu)| rate(&own.round) / rate(&cpu.round).max(1e-9)).collect())
        };
        let (prefill, decode) =
            (|round: &Round| round.prefill_rate(options), |round: &Round| round.decode_rate(options));
        let joules: Option<Vec<f64>> = laps.iter().map(|lap| lap.joules).collect();
        Self {
            first_token_ms: spread(&Round::first_ms),
            prefill_tokens_per_second: spread(&prefill),
            decode_tokens_per_second: spread(&decode),
            to_cpu: cpu.map(|cpu| Ratios { prefill: ratio(cpu, &prefill), decode: ratio(cpu, &decode) }),
            load_ms,
            memory_bytes,
            energy_joules: joules.map(Spread::of),
            placement,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use narthex_spec::DeviceName;

    use crate::FallbackNodes;

    use super::*;

    #[test]
    fn ratios_are_of_the_same_round() {
        let ms = Duration::from_millis;
        let lap = |first, rest, joules| MeteredRound {
            round: Round { total: ms(first + rest), first: ms(first), rest: ms(rest), tokens: 5 },
            joules,
        };
        let placement = PlacementReport {
            device: DeviceName::Qnn,
            decode: None,
            head: None,
            multiply_accumulates: 1,
            npu_share: 1.0,
            phases: None,
            lines: Vec::new(),
            fallback: FallbackNodes::default(),
            why: None,
            notes: Vec::new(),
        };
        let standing = LoadFigures { load_ms: 3.0, memory_bytes: None, placement };
        let options = BenchOptions { prompt_tokens: 100, generate_tokens: 5, rounds: 3 };
        // The machine was twice as slow in the second round, for both.
        let own = [lap(100, 40, Some(2.0)), lap(200, 80, Some(4.0)), lap(100, 40, Some(2.0))];
        let cpu = [lap(400, 20, None), lap(800, 40, None), lap(400, 20, None)];
        let figures = Figures::new(standing, &own, Some(&cpu), options);
        let same = |x: f64| Spread { min: x, median: x, max: x };
        assert_eq!(figures.to_cpu, Some(Ratios { prefill: same(4.0), decode: same(0.5) }));
        assert_eq!(figures.first_token_ms, Spread { min: 100.0, median: 100.0, max: 200.0 });
        assert_eq!(figures.prefill_tokens_per_second.median, 1000.0);
        assert_eq!(figures.decode_tokens_per_second.median, 100.0);
        assert_eq!(figures.energy_joules, Some(Spread { min: 2.0, median: 2.0, max: 4.0 }));
    }
}
