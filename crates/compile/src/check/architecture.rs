//! What is known of a model before it is compiled: from its architecture, or from its number of parameters alone.
//!
//! Nothing is downloaded for it. What Narthex compiles itself has fixed shapes and operators that NPUs take, so what
//! remains to be told is whether the family is known, how much a token costs, and how much memory the model needs.

use std::collections::BTreeMap;

use narthex_spec::{
    Recipe, Scheme,
    arch::{Architecture, DecoderArch},
};

use super::{
    Options,
    facts::Facts,
    finding,
    report::{Component, Finding, Fix, Report, Rule, Score, Severity, Verdict},
    score::{count, plural},
};
use crate::quant::Plan;

/// Columns of the past that memory is told for.
const CONTEXT: usize = 4096;

/// Checks an architecture for a target: what `narthex compile` would make of it.
pub fn check_architecture(subject: &str, architecture: &Architecture, options: &Options) -> Report {
    let weights: BTreeMap<Scheme, u64> =
        Scheme::ALL.into_iter().map(|scheme| (scheme, weight_bytes(architecture, scheme))).collect();
    let plan = Plan::new(architecture, &Recipe::new(Scheme::W8));
    let linear: u64 = plan.weights.iter().map(|weight| weight.rows as u64 * weight.cols as u64).sum();
    let mut findings = vec![note(match architecture {
        Architecture::Decoder(arch) => format!(
            "a decoder that Narthex compiles: {} layers, width {}, vocabulary {}",
            arch.layers.len(),
            arch.hidden,
            arch.vocab
        ),
        Architecture::Encoder(arch) => format!(
            "an encoder that Narthex compiles: {} layers, width {}, {}",
            arch.layers,
            arch.hidden,
            arch.gives()
        ),
    })];
    let work = match architecture {
        Architecture::Decoder(arch) => {
            let context = arch.context.min(CONTEXT);
            let attention = attention_work(arch, context);
            findings.push(cache(arch, context));
            findings.push(note(format!(
                "{} multiply-accumulates a token in linear layers, and {} in attention over {context} tokens",
                count(linear),
                count(attention)
            )));
            linear.saturating_add(attention)
        }
        Architecture::Encoder(_) => {
            findings.push(note(format!("{} multiply-accumulates a token in linear layers", count(linear))));
            linear
        }
    };
    let detail = format!("{0} of {0} multiply-accumulates a token", count(work));
    predicted(subject, options, weights, findings, detail)
}

/// Checks a model of which the catalogue knows the number of parameters alone.
pub fn check_parameters(
    subject: &str,
    parameters: Option<u64>,
    unsupported: Option<&str>,
    options: &Options,
) -> Report {
    if let Some(reason) = unsupported {
        let fix = Fix::you("check an ONNX export of it instead: narthex check FILE.onnx");
        let refusal =
            finding(Rule::Architecture, Severity::Refuses, Vec::new(), reason.to_owned(), Some(fix));
        return Report {
            subject: subject.to_owned(),
            target: options.target.clone(),
            verdict: Verdict::Refused { reason: reason.to_owned() },
            score: Score { total: 0.0, components: Vec::new() },
            assumed: BTreeMap::new(),
            parts: Vec::new(),
            findings: vec![refusal],
            after_fix: None,
        };
    }
    let count_of = parameters.unwrap_or(0);
    // 8 and 4 bits, and half a byte to three bytes a block of 32 for scales and zero points.
    let weights = BTreeMap::from([
        (Scheme::W8, count_of.saturating_mul(35) / 32),
        (Scheme::W4, count_of.saturating_mul(37) / 64),
        (Scheme::F32, count_of.saturating_mul(4)),
    ]);
    let text = "a family that Narthex compiles; the figures are from the catalogue's number of parameters, to a few percent";
    let detail = format!("about {0} of {0} multiply-accumulates a token", count(count_of));
    predicted(subject, options, weights, vec![note(text.to_owned())], detail)
}

/// The report on a model that Narthex would compile.
fn predicted(
    subject: &str,
    options: &Options,
    weights: BTreeMap<Scheme, u64>,
    mut findings: Vec<Finding>,
    compute: String,
) -> Report {
    let facts = Facts::of(&options.target);
    let sizes: Vec<String> =
        weights.iter().map(|(scheme, bytes)| format!("{scheme} {:.1} MB", *bytes as f64 / 1e6)).collect();
    findings.push(finding(
        Rule::Quantisation,
        Severity::Notes,
        Vec::new(),
        format!("weights: {}", sizes.join(", ")),
        None,
    ));
    let usual = weights.get(&Scheme::W8).copied().unwrap_or(0);
    let parts = usual.div_ceil(facts.part_caution).max(1);
    if parts > 1 {
        let small = weights.get(&Scheme::W4).copied().unwrap_or(0);
        let message = format!(
            "in w8 its weights need {parts} parts of {:.0} MB, in w4 {}",
            facts.part_caution as f64 / 1e6,
            small.div_ceil(facts.part_caution).max(1)
        );
        let fix = (small <= facts.part_caution).then(|| Fix::you("compile it with --scheme w4"));
        findings.push(finding(Rule::PartSize, Severity::Costs, Vec::new(), message, fix));
    }
    findings.sort_by_key(|finding| finding.severity);
    let score = predicted_score(&facts, usual, parts, compute);
    Report {
        subject: subject.to_owned(),
        target: options.target.clone(),
        verdict: Verdict::Whole,
        score,
        assumed: BTreeMap::new(),
        parts: Vec::new(),
        findings,
        after_fix: None,
    }
}

/// The score of what Narthex would write: every product on the NPU, every shape fixed, as its packages are tested to be.
fn predicted_score(facts: &Facts, usual: u64, parts: u64, compute: String) -> Score {
    let fits = if usual == 0 { 1.0 } else { (facts.part_caution as f64 / usual as f64).min(1.0) };
    let component = |name, value, weight, detail| Component { name, value, weight, detail };
    let components = vec![
        component("compute on the NPU", 1.0, 65.0, compute),
        component("in one piece", 1.0 / parts as f64, 15.0, plural(parts, "part")),
        component("fixed shapes", 1.0, 10.0, "Narthex fixes them when it compiles".to_owned()),
        component("fits in memory", fits, 10.0, format!("{:.1} MB of weights in w8", usual as f64 / 1e6)),
    ];
    Score { total: components.iter().map(|part| part.value * part.weight).sum(), components }
}

fn note(message: String) -> Finding {
    finding(Rule::Architecture, Severity::Notes, Vec::new(), message, None)
}

/// Bytes of the linear weights with their scales and zero points; norms and biases are small beside them.
fn weight_bytes(architecture: &Architecture, scheme: Scheme) -> u64 {
    let recipe = Recipe::new(scheme);
    Plan::new(architecture, &recipe).weights.iter().map(|weight| weight.bytes(recipe.block)).sum()
}

/// Scores and their product with the values, for one new token after a past.
fn attention_work(arch: &DecoderArch, context: usize) -> u64 {
    let seen = |window: Option<usize>| window.map_or(context, |window| window.min(context)) as u64;
    let layers = arch.layers.iter().map(|layer| &layer.attention);
    layers.map(|a| 2 * (a.heads * a.head_size) as u64 * seen(a.window)).sum()
}

fn cache(arch: &DecoderArch, context: usize) -> Finding {
    let layers = arch.layers.iter().map(|layer| &layer.attention);
    let per_token: u64 = layers.map(|a| 2 * 2 * (a.kv_heads * a.head_size) as u64).sum();
    let message = format!(
        "its cache takes {:.1} MB for a context of {context} tokens in half precision (longest: {} tokens)",
        (per_token * context as u64) as f64 / 1e6,
        arch.context
    );
    finding(Rule::DecoderLoop, Severity::Notes, Vec::new(), message, None)
}
