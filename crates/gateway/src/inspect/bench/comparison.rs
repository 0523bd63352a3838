//! Figures of one model on several devices, as `narthex bench --devices --json` prints them. Later versions add fields
//! and never rename them. [`super::device_bench`] measures the figures.

use narthex_spec::{DevicePlacement, Scheme, Sha256};
use serde::Serialize;

use super::{BenchOptions, Machine, Spread, round::Round};
use crate::{inspect::devices::DeviceStatus, report::placement::PlacementReport};

/// Figures of one model on several devices.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// Name of the package.
    pub model: String,
    /// Weight scheme.
    pub scheme: Scheme,
    /// Digest of the package's manifest.
    pub package: Sha256,
    /// Date in UTC, such as `2026-11-21`.
    pub date: String,
    /// Machine and versions.
    pub machine: Machine,
    /// Every device that this version supports.
    pub devices: Vec<DeviceStatus>,
    /// Installed runtimes with their versions.
    pub runtimes: Vec<String>,
    /// Tokens in each prompt.
    pub prompt_tokens: usize,
    /// Tokens generated after each prompt.
    pub generate_tokens: usize,
    /// Number of measured rounds. Every device runs once in each round.
    pub rounds: usize,
    /// Source of the joules; `None` if this machine has no readable energy counter.
    pub energy_counter: Option<String>,
    /// Devices in the order of the request.
    pub contenders: Vec<ComparedDevice>,
}

/// A device or split with its outcome.
#[derive(Debug, Clone, Serialize)]
pub struct ComparedDevice {
    /// Device, or both as `prefill=qnn,decode=cpu` or `layers=qnn,head=cpu`.
    pub place: DevicePlacement,
    /// Outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// Outcome of a device.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The device ran.
    #[serde(rename = "ran")]
    Measured(Box<Figures>),
    /// The device is not usable, or failed during the benchmark.
    Refused {
        /// Reason.
        reason: String,
        /// The next step, if it is known.
        fix: Option<String>,
    },
}

/// Figures of a device.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// Milliseconds from submission to the first token.
    pub first_token_ms: Spread,
    /// Prompt tokens per second, up to the first generated token.
    pub prefill_tokens_per_second: Spread,
    /// Generated tokens per second after the first.
    pub decode_tokens_per_second: Spread,
    /// Ratios to the CPU's rates in the same rounds; `None` if the CPU did not run.
    pub to_cpu: Option<Ratios>,
    /// Milliseconds of a warm load, after a first one that compiled and verified for the device.
    pub load_ms: f64,
    /// Peak increase of the process's resident memory in bytes, during its load and first round; `None` if the system
    /// does not report it. Memory inside a driver is not included.
    pub memory_bytes: Option<u64>,
    /// Joules for one prompt and answer; see [`Comparison::energy_counter`].
    pub energy_joules: Option<Spread>,
    /// Placement of its nodes.
    pub placement: PlacementReport,
}

/// Ratios of rates to the CPU's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratios {
    /// Ratio in prefill.
    pub prefill: Spread,
    /// Ratio in decode.
    pub decode: Spread,
}

/// A round with its energy.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeteredRound {
    pub(super) round: Round,
    pub(super) joules: Option<f64>,
}

/// Returns the rates of prefill and decode in each round.
fn rates(rounds: &[MeteredRound], options: BenchOptions) -> [Vec<f64>; 2] {
    let rounds = rounds.iter().map(|metered| &metered.round);
    let prefill = rounds.clone().map(|round| round.prefill_rate(options)).collect();
    [prefill, rounds.map(|round| round.decode_rate(options)).collect()]
}

/// Returns the ratio of a device's rates to those of the CPU, round by round.
fn ratio(device: &[f64], cpu: &[f64]) -> Spread {
    Spread::of(device.iter().zip(cpu).map(|(device, cpu)| device / cpu.max(1e-9)).collect())
}

/// Figures of a device's load.
pub(super) struct LoadFigures {
    pub(super) load_ms: f64,
    pub(super) memory_bytes: Option<u64>,
    pub(super) placement: PlacementReport,
}

impl Figures {
    /// Returns the figures of a device. `cpu` has the same rounds on the CPU, if it ran.
    pub(super) fn new(
        load: LoadFigures,
        rounds: &[MeteredRound],
        cpu: Option<&[MeteredRound]>,
        options: BenchOptions,
    ) -> Self {
        let LoadFigures { load_ms, memory_bytes, placement } = load;
        let joules: Option<Vec<f64>> = rounds.iter().map(|metered| metered.joules).collect();
        let [prefill, decode] = rates(rounds, options);
        let to_cpu = cpu.map(|cpu| {
            let [cpu_prefill, cpu_decode] = rates(cpu, options);
            Ratios { prefill: ratio(&prefill, &cpu_prefill), decode: ratio(&decode, &cpu_decode) }
        });

        Self {
            first_token_ms: Spread::of(rounds.iter().map(|metered| metered.round.first_ms()).collect()),
            prefill_tokens_per_second: Spread::of(prefill),
            decode_tokens_per_second: Spread::of(decode),
            to_cpu,
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
            towers: Vec::new(),
            fallback: FallbackNodes::default(),
            why: None,
            notes: Vec::new(),
        };
        let load = LoadFigures { load_ms: 3.0, memory_bytes: None, placement };
        let options = BenchOptions { prompt_tokens: 100, generate_tokens: 5, rounds: 3, engine_only: true };
        // The machine was twice as slow in the second round, for both.
        let own = [lap(100, 40, Some(2.0)), lap(200, 80, Some(4.0)), lap(100, 40, Some(2.0))];
        let cpu = [lap(400, 20, None), lap(800, 40, None), lap(400, 20, None)];
        let figures = Figures::new(load, &own, Some(&cpu), options);
        let same = |x: f64| Spread { min: x, median: x, max: x };
        assert_eq!(figures.to_cpu, Some(Ratios { prefill: same(4.0), decode: same(0.5) }));
        assert_eq!(figures.first_token_ms, Spread { min: 100.0, median: 100.0, max: 200.0 });
        assert_eq!(figures.prefill_tokens_per_second.median, 1000.0);
        assert_eq!(figures.decode_tokens_per_second.median, 100.0);
        assert_eq!(figures.energy_joules, Some(Spread { min: 2.0, median: 2.0, max: 4.0 }));
    }
}
