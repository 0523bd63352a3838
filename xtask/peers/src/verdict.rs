//! Comparison of the results with the bounds.

use crate::{
    drafts::DraftResult,
    embeddings::{EmbeddingRatio, Embeddings},
    report::{Report, SideResult, SpeedRun},
    side::TargetRatios,
    spread::Spread,
};

/// Minimum share of a bare loop's speed that Narthex should reach.
const LOOP_WANTED: TargetRatios = TargetRatios { prefill: 0.95, decode: 0.95 };

/// Minimum shares of the machine's limits that Narthex should reach in the standard run.
const SHARES_WANTED: TargetRatios = TargetRatios { prefill: 0.45, decode: 0.5 };

/// Maximum time of a load in the standard run, in milliseconds.
const LOAD_BOUND_MS: f64 = 300.0;

/// Maximum of the gateway's time per token divided by that of the engine.
const TOKEN_BOUND: f64 = 1.03;

/// Maximum overhead of the gateway per request, in milliseconds.
const REQUEST_BOUND_MS: f64 = 1.0;

/// Maximum cold start, in milliseconds.
const COLD_BOUND_MS: f64 = 1500.0;

/// Minimum rate of the slowest client divided by the median of all clients.
const SLOWEST_WANTED: f64 = 0.5;

/// Minimum ratios of Narthex's embeddings to those of the fastest peer, in a batch and one by one.
const EMBEDDINGS_WANTED: (f64, f64) = (1.5, 1.2);

/// Minimum cosine of Narthex's embeddings to those of ONNX Runtime in f32.
const COSINE_BOUND: f64 = 0.999;

/// A bound and the result.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) what: String,
    pub(super) wanted: String,
    pub(super) found: String,
    pub(super) met: bool,
}

/// Compares the results of a report with the bounds.
pub(super) fn verdicts(report: &Report) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for run in &report.speeds {
        verdicts.extend(run_verdicts(run));
    }
    for ratio in &report.servers.ratios {
        let Some(wanted) = ratio.wanted else { continue };
        let what = format!("{} over {}, {} clients", ratio.of, ratio.to, ratio.clients);
        verdicts.push(at_least(what, &ratio.ratio, wanted));
    }
    for result in report.servers.results.iter().filter(|result| result.server.starts_with("narthex")) {
        let what =
            format!("{}, {} clients: rate of the slowest over the median", result.server, result.clients);
        verdicts.push(at_least(what, &result.slowest_share, SLOWEST_WANTED));
    }
    verdicts.extend(report.drafts.iter().flat_map(draft_verdicts));
    verdicts.extend(report.embeddings.iter().flat_map(embedding_verdicts));
    if let Some(cold) = &report.cold_start_ms {
        verdicts.push(at_most("narthex-w8: cold start, ms".to_owned(), cold, COLD_BOUND_MS, 0));
    }
    for footprint in &report.footprints {
        let what = format!("narthex serve, {}: peak memory over its parts", footprint.scheme);
        verdicts.push(at_most(what, &footprint.ratio, footprint.wanted, 3));
    }
    for comparison in &report.perplexity {
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

fn run_verdicts(run: &SpeedRun) -> Vec<Verdict> {
    let (mut verdicts, suffix) = (Vec::new(), run.suffix());
    // At depth, only llama.cpp is a reference.
    let is_deep = run.prompt_tokens >= 4096;
    for ratio in run.ratios.iter().filter(|ratio| !is_deep || ratio.to.starts_with("llama")) {
        let wanted = if ratio.to.starts_with("loop") { LOOP_WANTED } else { run.wanted };
        let phases = [("prefill", &ratio.prefill, wanted.prefill), ("decode", &ratio.decode, wanted.decode)];
        for (phase, spread, wanted) in phases {
            let what = format!("{} over {}, {phase}{suffix}", ratio.of, ratio.to);
            verdicts.push(at_least(what, spread, wanted));
        }
    }
    for side in run.sides.iter().filter(|side| side.side.starts_with("narthex")) {
        if run.is_standard() {
            verdicts.extend(standard_verdicts(side));
        }
        let Some(gateway) = &side.gateway else { continue };
        let what = |what: &str| format!("{}: {what}{suffix}", side.side);
        let ratio = &gateway.token_ratio;
        verdicts.push(at_most(what("gateway's time per token over the engine's"), ratio, TOKEN_BOUND, 3));
        let request = &gateway.request_ms;
        verdicts.push(at_most(what("gateway's part of a request, ms"), request, REQUEST_BOUND_MS, 2));
    }
    verdicts
}

/// Compares shares and load time of a side of Narthex with their bounds.
fn standard_verdicts(side: &SideResult) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    let what = |what: &str| format!("{}: {what}", side.side);
    if let Some(shares) = &side.shares {
        let prefill = what("share of the multiply-accumulates, prefill");
        verdicts.push(at_least(prefill, &shares.prefill, SHARES_WANTED.prefill));
        verdicts.push(at_least(what("share of the bandwidth, decode"), &shares.decode, SHARES_WANTED.decode));
    }
    let load = side.load_ms.as_ref();
    verdicts.extend(load.map(|load| at_most(what("warm load, ms"), load, LOAD_BOUND_MS, 0)));
    verdicts
}

/// Compares the effect of drafts on a text with its bound.
fn draft_verdicts(result: &DraftResult) -> Vec<Verdict> {
    let what = |what: &str| format!("narthex serve, {}, {}: {what}", result.scheme, result.text);
    let speed = what("decode with drafts over decode without");
    let mut verdicts = vec![at_least(speed, &result.ratio, result.wanted)];
    if let Some(equal) = result.equal_answers {
        let pairs = result.ratio.rounds.len();
        verdicts.push(Verdict {
            what: what("greedy answers with drafts equal those without"),
            wanted: "all".to_owned(),
            found: format!("{equal} of {pairs}"),
            met: equal == pairs,
        });
    }
    verdicts
}

/// Compares Narthex's embeddings with the bounds.
fn embedding_verdicts(embeddings: &Embeddings) -> Vec<Verdict> {
    let (batch, single) = EMBEDDINGS_WANTED;
    let mut verdicts = Vec::new();
    let mut add = |name: &str, wanted: f64, speed: fn(&EmbeddingRatio) -> &Spread| {
        let Some(ratio) = embeddings.over_best(speed) else { return };
        let what = format!("{} over {}, the fastest peer, embeddings, {name}", ratio.of, ratio.to);
        verdicts.push(at_least(what, speed(ratio), wanted));
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

fn at_least(what: String, spread: &Spread, bound: f64) -> Verdict {
    Verdict {
        what,
        wanted: format!("at least {bound:.2}"),
        found: spread.format(3),
        met: spread.median >= bound,
    }
}

fn at_most(what: String, spread: &Spread, bound: f64, digits: usize) -> Verdict {
    Verdict {
        what,
        wanted: format!("at most {bound}"),
        found: spread.format(digits),
        met: spread.median <= bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    #[test]
    fn bounds_are_held_against_medians() {
        let verdicts = verdicts(&report());
        let met: Vec<(&str, bool)> = verdicts.iter().map(|v| (v.what.as_str(), v.met)).collect();
        let expect = [
            ("narthex-w8 over loop-w8, prefill", true),
            ("narthex-w8 over loop-w8, decode", false),
            ("narthex-w8: share of the multiply-accumulates, prefill", false),
            ("narthex-w8: share of the bandwidth, decode", true),
            ("narthex-w8: warm load, ms", true),
            ("narthex-w8: gateway's time per token over the engine's", true),
            ("narthex-w8: gateway's part of a request, ms", false),
            ("narthex serve, w4, quotes: decode with drafts over decode without", true),
            ("narthex serve, w4, quotes: greedy answers with drafts equal those without", false),
            ("narthex-w8 over openvino, the fastest peer, embeddings, batch", false),
            ("narthex-w8 over onnxruntime-f32, the fastest peer, embeddings, one by one", false),
            ("narthex-w8: minimum cosine of an embedding to that in f32", true),
            ("narthex-w8: cold start, ms", true),
            ("narthex serve, w8: peak memory over its parts", false),
            ("perplexity of package w4 over llama.cpp Q4_0", true),
        ];
        assert_eq!(met, expect);
        assert_eq!(verdicts[0].found, "0.960 (0.960 to 0.960)");
    }
}
