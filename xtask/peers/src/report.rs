//! Results of a run, in the form in which they are recorded.

use std::collections::BTreeMap;

use serde::Serialize;
use xtask_tools::record;

use crate::{
    Part, PeersArgs,
    drafts::DraftResult,
    embeddings::Embeddings,
    footprint::Footprint,
    limits::LimitSpreads,
    measurement::Measurement,
    quality::Comparison,
    servers::Servers,
    setup::{MODEL, Setup},
    side::{PAIRS, Side, SpeedPair, TargetRatios},
    spread::Spread,
    turns::Turns,
    workload::{STANDARD, Workload},
};

/// One run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) date: String,
    pub(super) commit: String,
    pub(super) command: String,
    /// Measured parts, if they were selected.
    #[serde(skip)]
    pub(super) parts: Vec<Part>,
    pub(super) machine: Machine,
    /// Number of measurements of each side.
    pub(super) rounds: u64,
    pub(super) speeds: Vec<SpeedRun>,
    /// Time from the start of `narthex chat` to its first byte, with its files in the system's file cache.
    pub(super) cold_start_ms: Option<Spread>,
    /// Memory of servers with one request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) footprints: Vec<Footprint>,
    pub(super) perplexity: Vec<Comparison>,
    pub(super) servers: Servers,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) turns: Option<Turns>,
    /// Effect of drafts from earlier text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) drafts: Vec<DraftResult>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) embeddings: Option<Embeddings>,
}

/// Speeds of all sides with one model and one workload.
#[derive(Debug, Serialize)]
pub(super) struct SpeedRun {
    pub(super) model: &'static str,
    pub(super) prompt_tokens: usize,
    pub(super) decode_tokens: usize,
    /// Number of repetitions within a measurement. The result is their median.
    pub(super) repeat: usize,
    pub(super) wanted: TargetRatios,
    /// The machine's limits, measured in each round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limits: Option<LimitSpreads>,
    pub(super) sides: Vec<SideResult>,
    pub(super) ratios: Vec<Ratio>,
}

/// Machine of the run.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) threads: usize,
    pub(super) platform: String,
    /// Load average of the minute before the run, if the system reports it.
    pub(super) load: Option<f64>,
}

impl Machine {
    fn of(setup: &Setup<'_>) -> anyhow::Result<Self> {
        let platform = record::platform();
        Ok(Self { cpu: setup.cpu()?, threads: setup.threads, platform, load: setup.load })
    }
}

/// Results of one side, or the reason why it could not be measured.
#[derive(Debug, Serialize)]
pub(super) struct SideResult {
    pub(super) side: &'static str,
    pub(super) about: &'static str,
    pub(super) versions: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) speed: Option<Speed>,
    /// Shares of the machine's limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shares: Option<Speed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) weight_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) load_ms: Option<Spread>,
    /// Peak of the process's resident memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) peak_bytes: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gateway: Option<GatewayOverhead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

/// Tokens per second, or their shares of the machine's limits.
#[derive(Debug, Serialize)]
pub(super) struct Speed {
    pub(super) prefill: Spread,
    pub(super) decode: Spread,
}

/// Overhead of Narthex's gateway in comparison with its engine.
#[derive(Debug, Serialize)]
pub(super) struct GatewayOverhead {
    pub(super) token_ratio: Spread,
    pub(super) request_ms: Spread,
}

/// Speed of one side divided by another's, round by round.
#[derive(Debug, Serialize)]
pub(super) struct Ratio {
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    pub(super) prefill: Spread,
    pub(super) decode: Spread,
}

impl SideResult {
    /// Summarises the measurements of a side.
    pub(super) fn of(side: Side, measurements: anyhow::Result<Vec<Measurement>>) -> Self {
        let (measurements, failed) = match measurements {
            Ok(measurements) => (measurements, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        let spread = |figure: fn(&Measurement) -> f64| Spread::of(measurements.iter().map(figure).collect());
        let speed = spread(|measurement| measurement.prefill).zip(spread(|measurement| measurement.decode));
        let peaks = measurements.iter().filter_map(|measurement| measurement.peak_bytes);
        let added: Vec<_> = measurements.iter().filter_map(|measurement| measurement.gateway).collect();
        let ratios = Spread::of(added.iter().map(|added| added.token_ratio).collect());
        let requests = Spread::of(added.iter().map(|added| added.request_ms).collect());
        Self {
            side: side.name(),
            about: side.about(),
            versions: measurements
                .first()
                .map(|measurement| measurement.versions.clone())
                .unwrap_or_default(),
            speed: speed.map(|(prefill, decode)| Speed { prefill, decode }),
            shares: None,
            weight_bytes: None,
            load_ms: spread(|measurement| measurement.load_ms),
            peak_bytes: Spread::of(peaks.map(|bytes| bytes as f64).collect()),
            gateway: ratios
                .zip(requests)
                .map(|(token_ratio, request_ms)| GatewayOverhead { token_ratio, request_ms }),
            failed,
        }
    }

    /// Computes the shares of the limits from the multiply-accumulates of a prompt's token and the bytes of the weights,
    /// which are read for each generated token. Attention is not included.
    pub(super) fn with_shares(
        self,
        side: Side,
        limits: Option<&LimitSpreads>,
        multiply_accumulates: u64,
        weight_bytes: u64,
    ) -> Self {
        let shares = limits.zip(self.speed.as_ref()).and_then(|(limits, speed)| {
            let prefill = speed.prefill.times(multiply_accumulates as f64);
            let decode = speed.decode.times(weight_bytes as f64);
            Some(Speed {
                prefill: prefill.over(limits.multiply_accumulates(side))?,
                decode: decode.over(&limits.bytes_per_second)?,
            })
        });
        Self { shares, weight_bytes: Some(weight_bytes), ..self }
    }
}

impl SpeedRun {
    /// Computes the ratios of measured sides. There are no limits yet.
    pub(super) fn new(
        setup: &Setup<'_>,
        model: &'static str,
        work: Workload,
        wanted: TargetRatios,
        mut sides: Vec<SideResult>,
    ) -> Self {
        for reason in sides.iter_mut().filter_map(|side| side.failed.as_mut()) {
            *reason = setup.without_folders(reason);
        }
        let Workload { prompt, decode, repeat } = work;
        let ratios = ratios(&sides);
        let (prompt_tokens, decode_tokens, limits) = (prompt, decode, None);
        Self { model, prompt_tokens, decode_tokens, repeat, wanted, limits, sides, ratios }
    }

    /// Returns true for the standard model and workload.
    pub(super) fn is_standard(&self) -> bool {
        self.model == MODEL && (self.prompt_tokens, self.decode_tokens) == (STANDARD.prompt, STANDARD.decode)
    }

    /// Returns the model and the workload, as in `, random-1b, 256 + 64`. Nothing is returned for the standard ones.
    pub(super) fn suffix(&self) -> String {
        if self.is_standard() {
            return String::new();
        }
        format!(", {}, {} + {}", self.model, self.prompt_tokens, self.decode_tokens)
    }
}

impl Report {
    /// Creates an empty report for this machine.
    pub(super) fn new(setup: &Setup<'_>, args: &PeersArgs) -> anyhow::Result<Self> {
        Ok(Self {
            date: record::today(),
            commit: record::commit(setup.session.workspace)?,
            command: args.command(),
            parts: args.parts.clone(),
            machine: Machine::of(setup)?,
            rounds: args.rounds,
            speeds: Vec::new(),
            cold_start_ms: None,
            footprints: Vec::new(),
            perplexity: Vec::new(),
            servers: Servers::default(),
            turns: None,
            drafts: Vec::new(),
            embeddings: None,
        })
    }
}

/// Returns the ratios of the sides that were measured.
fn ratios(sides: &[SideResult]) -> Vec<Ratio> {
    let speed = |side: Side| sides.iter().find(|m| m.side == side.name()).and_then(|m| m.speed.as_ref());
    let ratio = |pair: &SpeedPair| {
        let (of, to) = speed(pair.of).zip(speed(pair.to))?;
        Some(Ratio {
            of: pair.of.name(),
            to: pair.to.name(),
            prefill: of.prefill.over(&to.prefill)?,
            decode: of.decode.over(&to.decode)?,
        })
    };
    PAIRS.iter().filter_map(ratio).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::{limits::MachineLimits, measurement::Overhead, quality::Perplexities};

    fn measurement(prefill: f64, decode: f64, gateway: Option<Overhead>) -> Measurement {
        let versions = [("onnxruntime".to_owned(), "1.31.1".to_owned())].into();
        Measurement { prefill, decode, load_ms: 80.0, peak_bytes: Some(300_000_000), versions, gateway }
    }

    /// Returns a run of three sides, one of which failed.
    pub(crate) fn report() -> Report {
        let added = Some(Overhead { token_ratio: 1.01, request_ms: 1.5 });
        let limits = [1e9, 5e8].map(|multiply_accumulates| MachineLimits {
            multiply_accumulates,
            multiply_accumulates_4_bit: 2.0 * multiply_accumulates,
            bytes: 1e10,
        });
        let limits = LimitSpreads::of(&limits);
        let narthex = SideResult::of(
            Side::NarthexW8,
            Ok(vec![measurement(96.0, 47.0, added), measurement(48.0, 47.0, added)]),
        );
        let sides = vec![
            narthex.with_shares(Side::NarthexW8, limits.as_ref(), 2_500_000, 150_000_000),
            SideResult::of(
                Side::LoopW8,
                Ok(vec![measurement(100.0, 50.0, None), measurement(50.0, 50.0, None)]),
            ),
            SideResult::of(Side::OpenVino, Err(anyhow!("no wheel | for this machine"))),
        ];
        let found = Perplexities {
            ours: 20.1,
            theirs: 20.0,
            ratio: 1.005,
            windows: 4,
            window_tokens: 256,
            predicted_tokens: 508,
        };
        Report {
            date: "2026-11-21".to_owned(),
            commit: "0123456789ab".to_owned(),
            command: "cargo xtask peers --rounds 2".to_owned(),
            parts: Vec::new(),
            machine: Machine {
                cpu: "Some CPU (R)".to_owned(),
                threads: 2,
                platform: "linux x86_64".to_owned(),
                load: Some(0.07),
            },
            rounds: 2,
            speeds: vec![SpeedRun {
                model: "smollm2:135m",
                prompt_tokens: 256,
                decode_tokens: 64,
                repeat: 2,
                wanted: TargetRatios { prefill: 1.7, decode: 2.0 },
                limits,
                ratios: ratios(&sides),
                sides,
            }],
            footprints: crate::footprint::tests::footprints(),
            servers: Servers::default(),
            turns: Some(crate::turns::tests::turns()),
            drafts: crate::drafts::tests::results(),
            embeddings: Some(crate::embeddings::embeddings()),
            cold_start_ms: Spread::of(vec![900.0]),
            perplexity: vec![Comparison {
                ours: "package w4".to_owned(),
                theirs: "llama.cpp Q4_0".to_owned(),
                found: Some(found),
                failed: None,
                bound: Some(1.02),
            }],
        }
    }

    #[test]
    fn only_measured_sides_have_ratios() {
        let report = &report().speeds[0];
        let pairs: Vec<_> = report.ratios.iter().map(|ratio| (ratio.of, ratio.to)).collect();
        assert_eq!(pairs, [("narthex-w8", "loop-w8")]);
        assert!(report.sides[2].failed.is_some() && report.sides[2].speed.is_none());
    }

    #[test]
    fn shares_are_computed_round_by_round() {
        let report = &report().speeds[0];
        let shares = report.sides[0].shares.as_ref().unwrap();
        // The machine is half as fast in the second round, which does not change the share.
        assert_eq!((&shares.prefill.rounds[..], shares.decode.median), (&[0.24, 0.24][..], 0.705));
        assert!(report.sides[1].shares.is_none());
    }
}
