//! Results of a run, in the form in which they are recorded.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    peers::{
        Part, PeersArgs,
        embeddings::{EmbeddingRatio, Embeddings},
        measurement::Measurement,
        quality::Comparison,
        servers::Servers,
        setup::{MODEL, Setup},
        side::{PAIRS, Side, SpeedPair, TargetRatios},
        spread::Spread,
        workload::{STANDARD, Workload},
    },
    record,
};

/// Minimum share of a bare loop's speed that Narthex should reach.
const LOOP_WANTED: TargetRatios = TargetRatios { prefill: 0.95, decode: 0.95 };

/// Maximum of the gateway's time per token divided by that of the engine.
const TOKEN_BOUND: f64 = 1.03;

/// Maximum overhead of the gateway per request, in milliseconds.
const REQUEST_BOUND_MS: f64 = 1.0;

/// Maximum cold start, in milliseconds.
const COLD_BOUND_MS: f64 = 1500.0;

/// Minimum ratios of Narthex's embeddings to those of the fastest peer, in a batch and one by one.
const EMBEDDINGS_WANTED: (f64, f64) = (1.5, 1.2);

/// Minimum cosine of Narthex's embeddings to those of ONNX Runtime in f32.
const COSINE_BOUND: f64 = 0.999;

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
    pub(super) perplexity: Vec<Comparison>,
    pub(super) servers: Servers,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gateway: Option<GatewayOverhead>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
}

/// Tokens per second.
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

/// A bound and the result.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) what: String,
    pub(super) wanted: String,
    pub(super) found: String,
    pub(super) met: bool,
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
            gateway: ratios
                .zip(requests)
                .map(|(token_ratio, request_ms)| GatewayOverhead { token_ratio, request_ms }),
            failed,
        }
    }
}

impl SpeedRun {
    /// Computes the ratios of measured sides.
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
        Self { model, prompt_tokens: prompt, decode_tokens: decode, repeat, wanted, sides, ratios }
    }

    /// Returns the model and the workload, as in `, random-1b, 256 + 64`. Nothing is returned for the standard ones.
    pub(super) fn suffix(&self) -> String {
        if self.model == MODEL
            && (self.prompt_tokens, self.decode_tokens) == (STANDARD.prompt, STANDARD.decode)
        {
            return String::new();
        }
        format!(", {}, {} + {}", self.model, self.prompt_tokens, self.decode_tokens)
    }

    fn verdicts(&self, suffix: &str) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        // At depth, only llama.cpp is a reference.
        let is_deep = self.prompt_tokens >= 4096;
        for ratio in self.ratios.iter().filter(|ratio| !is_deep || ratio.to.starts_with("llama")) {
            let wanted = if ratio.to.starts_with("loop") { LOOP_WANTED } else { self.wanted };
            let phases =
                [("prefill", &ratio.prefill, wanted.prefill), ("decode", &ratio.decode, wanted.decode)];
            for (phase, spread, wanted) in phases {
                verdicts.push(Verdict {
                    what: format!("{} over {}, {phase}{suffix}", ratio.of, ratio.to),
                    wanted: format!("at least {wanted:.2}"),
                    found: spread.format(3),
                    met: spread.median >= wanted,
                });
            }
        }
        for side in &self.sides {
            let Some(gateway) = &side.gateway else { continue };
            let what = |what: &str| format!("{}: {what}{suffix}", side.side);
            let ratio = &gateway.token_ratio;
            verdicts.push(at_most(what("gateway's time per token over the engine's"), ratio, TOKEN_BOUND, 3));
            let request = &gateway.request_ms;
            verdicts.push(at_most(what("gateway's part of a request, ms"), request, REQUEST_BOUND_MS, 2));
        }
        verdicts
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
            perplexity: Vec::new(),
            servers: Servers::default(),
            embeddings: None,
        })
    }

    /// Compares the results with the bounds.
    pub(super) fn verdicts(&self) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        verdicts.extend(self.speeds.iter().flat_map(|run| run.verdicts(&run.suffix())));
        for ratio in &self.servers.ratios {
            let Some(wanted) = ratio.wanted else { continue };
            verdicts.push(Verdict {
                what: format!("{} over {}, {} clients", ratio.of, ratio.to, ratio.clients),
                wanted: format!("at least {wanted:.2}"),
                found: ratio.ratio.format(3),
                met: ratio.ratio.median >= wanted,
            });
        }
        verdicts.extend(self.embeddings.iter().flat_map(embedding_verdicts));
        if let Some(cold) = &self.cold_start_ms {
            verdicts.push(at_most("narthex-w8: cold start, ms".to_owned(), cold, COLD_BOUND_MS, 0));
        }
        for comparison in &self.perplexity {
            let (Some(bound), Some(found)) = (comparison.bound, &comparison.found) else { continue };
            verdicts.push(Verdict {
                what: format!("perplexity of {} over {}", comparison.ours, comparison.theirs),
                wanted: format!("at most {bound:.2}"),
                found: format!("{:.4}", found.ratio),
                met: found.ratio <= bound,
            });
        }
        verdicts
    }
}

/// Compares Narthex's embeddings with the bounds.
fn embedding_verdicts(embeddings: &Embeddings) -> Vec<Verdict> {
    let (batch, single) = EMBEDDINGS_WANTED;
    let mut verdicts = Vec::new();
    let mut add = |name: &str, wanted: f64, speed: fn(&EmbeddingRatio) -> &Spread| {
        let Some(ratio) = embeddings.over_best(speed) else { return };
        verdicts.push(Verdict {
            what: format!("{} over {}, the fastest peer, embeddings, {name}", ratio.of, ratio.to),
            wanted: format!("at least {wanted:.2}"),
            found: speed(ratio).format(3),
            met: speed(ratio).median >= wanted,
        });
    };
    add("batch", batch, |ratio| &ratio.batch);
    add("one by one", single, |ratio| &ratio.single);
    for side in embeddings.sides.iter().filter(|side| side.side.starts_with("narthex")) {
        let Some(cosine) = side.cosine else { continue };
        verdicts.push(Verdict {
            what: format!("{}: minimum cosine of an embedding to that in f32", side.side),
            wanted: format!("at least {COSINE_BOUND}"),
            found: format!("{cosine:.5}"),
            met: cosine >= COSINE_BOUND,
        });
    }
    verdicts
}

fn at_most(what: String, spread: &Spread, bound: f64, digits: usize) -> Verdict {
    Verdict {
        what,
        wanted: format!("at most {bound}"),
        found: spread.format(digits),
        met: spread.median <= bound,
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
    use crate::peers::{measurement::Overhead, quality::Perplexities};

    fn measurement(prefill: f64, decode: f64, gateway: Option<Overhead>) -> Measurement {
        let versions = [("onnxruntime".to_owned(), "1.31.1".to_owned())].into();
        Measurement { prefill, decode, versions, gateway }
    }

    /// Returns a run of three sides, one of which failed.
    pub(in crate::peers) fn report() -> Report {
        let added = Some(Overhead { token_ratio: 1.01, request_ms: 1.5 });
        let sides = vec![
            SideResult::of(
                Side::NarthexW8,
                Ok(vec![measurement(96.0, 47.0, added), measurement(48.0, 47.0, added)]),
            ),
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
                ratios: ratios(&sides),
                sides,
            }],
            servers: Servers::default(),
            embeddings: Some(crate::peers::embeddings::embeddings()),
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
    fn bounds_are_held_against_medians() {
        let verdicts = report().verdicts();
        let met: Vec<(&str, bool)> = verdicts.iter().map(|v| (v.what.as_str(), v.met)).collect();
        let expect = [
            ("narthex-w8 over loop-w8, prefill", true),
            ("narthex-w8 over loop-w8, decode", false),
            ("narthex-w8: gateway's time per token over the engine's", true),
            ("narthex-w8: gateway's part of a request, ms", false),
            ("narthex-w8 over openvino, the fastest peer, embeddings, batch", false),
            ("narthex-w8 over onnxruntime-f32, the fastest peer, embeddings, one by one", false),
            ("narthex-w8: minimum cosine of an embedding to that in f32", true),
            ("narthex-w8: cold start, ms", true),
            ("perplexity of package w4 over llama.cpp Q4_0", true),
        ];
        assert_eq!(met, expect);
        assert_eq!(verdicts[0].found, "0.960 (0.960 to 0.960)");
    }

    #[test]
    fn only_measured_sides_have_ratios() {
        let report = &report().speeds[0];
        let pairs: Vec<_> = report.ratios.iter().map(|ratio| (ratio.of, ratio.to)).collect();
        assert_eq!(pairs, [("narthex-w8", "loop-w8")]);
        assert!(report.sides[2].failed.is_some() && report.sides[2].speed.is_none());
    }
}
