//! What is known of a model before it is compiled, or even downloaded: its architecture is compiled on paper, and the
//! graphs that come out are checked like any others.

use std::{collections::BTreeMap, path::PathBuf};

use narthex_graph::Graph;
use narthex_spec::{
    Recipe, Scheme, Target, Variant,
    arch::Architecture,
    manifest::{self, GraphEntry},
    recipe::FixedShapes,
};

use super::{
    Options, check,
    facts::{Facts, Sessions},
    finding,
    report::{Finding, Fix, Report, Rule, Score, Severity, Verdict},
    view::Part,
};
use crate::{
    lower::parts,
    paper::{self, Paper},
    pipeline::DATA_FILE,
};

/// Checks what `narthex compile` would make of an architecture for NPUs, with its usual shapes.
pub fn check_architecture(
    subject: &str,
    architecture: &Architecture,
    scheme: Scheme,
    options: &Options,
) -> Report {
    let paper = match fixed(architecture, scheme) {
        Ok(paper) => paper,
        Err(error) => return refused(subject, error.to_string(), options),
    };
    let mut report = check_paper(subject, &paper, options);
    report.findings.push(note(match architecture {
        Architecture::Decoder(_) => format!("a decoder that Narthex compiles: {}", architecture.describe()),
        Architecture::Encoder(_) => format!("an encoder that Narthex compiles: {}", architecture.describe()),
    }));
    if paper.token_bytes() > 0 {
        report.findings.push(cache(paper.token_bytes(), architecture.longest()));
    }
    if scheme == Scheme::W8
        && matches!(report.verdict, Verdict::Refused { .. })
        && let Ok(small) = fixed(architecture, Scheme::W4)
        && !matches!(check_paper(subject, &small, options).verdict, Verdict::Refused { .. })
    {
        let message = "in w4 the target takes it".to_owned();
        let fix = Fix::you(format!("narthex compile --scheme w4 --target {}", options.target));
        report.findings.push(finding(Rule::PartSize, Severity::Notes, Vec::new(), message, Some(fix)));
    }
    report
}

/// An architecture compiled on paper, with the usual shapes for NPUs.
///
/// # Errors
/// As [`paper::compile`].
pub(crate) fn fixed(architecture: &Architecture, scheme: Scheme) -> Result<Paper, crate::CompileError> {
    let shapes = FixedShapes::new(FixedShapes::USUAL_CONTEXT);
    let recipe = Recipe { fixed: Some(shapes), ..Recipe::new(scheme) };
    let fixed = parts::shapes(architecture, &recipe, architecture.longest());
    paper::compile("model", architecture, &Recipe { fixed, ..recipe })
}

/// Checks the graphs of fixed shape of a compile on paper.
pub(crate) fn check_paper(subject: &str, paper: &Paper, options: &Options) -> Report {
    let part = |(graph, entry): &(Graph, GraphEntry)| Part {
        name: entry.file.clone(),
        folder: PathBuf::new(),
        graph: graph.clone(),
        files: BTreeMap::from([(DATA_FILE.to_owned(), Some(paper.data_bytes))]),
    };
    let parts: Vec<Part> = paper.fixed().map(part).collect();
    check(subject, &parts, options)
}

/// Bytes of weights that one graph may have on a target's NPU.
pub fn limit(target: &Target) -> u64 {
    Facts::of(target).part_limit
}

/// Bytes of weights that a program's graphs may have together on a target's NPU, where its driver sets a bound.
pub(crate) fn program_limit(target: &Target) -> Option<u64> {
    Facts::of(target).sessions.map(Sessions::all)
}

/// Whether all that is known of two targets is the same, so that a check says the same of both.
pub(crate) fn alike(one: &Target, other: &Target) -> bool {
    Facts::of(one) == Facts::of(other)
}

impl Paper {
    /// The graphs of fixed shape.
    pub(crate) fn fixed(&self) -> impl Iterator<Item = &(Graph, GraphEntry)> {
        self.graphs.iter().filter(|(_, entry)| entry.variant == Variant::Static)
    }

    /// Bytes that a token takes in the cache of these graphs, whichever part of the layers they have.
    pub(crate) fn token_bytes(&self) -> u64 {
        let single = |entry: &GraphEntry| matches!(entry.part, manifest::Part::Layers { tokens: 1, .. });
        let layers = self.fixed().filter(|(_, entry)| single(entry)).flat_map(|(_, entry)| &entry.kv);
        layers.map(|layer| layer.bytes_per_token() as u64).sum()
    }
}

/// The report on a model that Narthex cannot compile.
pub fn refused(subject: &str, reason: String, options: &Options) -> Report {
    let fix = Fix::you("check an ONNX export of it instead: narthex check FILE.onnx");
    let refusal = finding(Rule::Architecture, Severity::Refuses, Vec::new(), reason.clone(), Some(fix));
    Report {
        subject: subject.to_owned(),
        target: options.target.clone(),
        verdict: Verdict::Refused { reason },
        score: Score { total: 0.0, components: Vec::new() },
        assumed: BTreeMap::new(),
        parts: Vec::new(),
        npu_weight_bytes: 0,
        findings: vec![refusal],
        after_fix: None,
    }
}

fn note(message: String) -> Finding {
    finding(Rule::Architecture, Severity::Notes, Vec::new(), message, None)
}

fn cache(per_token: u64, longest: usize) -> Finding {
    let message = format!(
        "its cache takes {:.1} MB for 1000 tokens in half precision (longest: {longest} tokens)",
        per_token as f64 / 1e3,
    );
    finding(Rule::DecoderLoop, Severity::Notes, Vec::new(), message, None)
}
