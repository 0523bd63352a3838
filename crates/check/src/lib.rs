//! `narthex check`: predicts whether an ONNX model runs on an NPU, which nodes do not, and which changes help.
//!
//! The rules have no side effects: they examine graphs, the lengths of data files and the facts about a target. They
//! neither run a model nor load weights. Start at [`check`]. [`fix`] rewrites graphs, and [`Report::record`] adds the
//! results of a vendor's compiler to a report.

mod compiler;
mod dim_bindings;
mod error;
mod facts;
pub mod fix;
mod fix_command;
mod numbers;
mod options;
mod placement;
mod reasons;
mod report;
mod rules;
mod score;
mod view;
pub mod write;

use std::collections::{BTreeMap, BTreeSet};

use narthex_graph::{onnx::files::OnnxFile, patch::PatchError};
use narthex_spec::Target;

pub use compiler::compiler_result::{
    CompilerResult, ControlResult, Evidence, FallbackNode, FaultyNodes, ProcessEnd,
};
pub use compiler::{bisect, intel_errors, qnn_errors};
pub use error::CheckError;
pub use options::CheckOptions;
pub use reasons::{Reason, reasons};
pub use report::{
    AfterFix, Basis, Component, Factor, Finding, Fix, FixAuthor, PartSummary, Report, Rule, Score, Severity,
    Verdict,
};

use self::{
    compiler::compiler_result,
    dim_bindings::DimBindings,
    facts::{Facts, Sessions},
    placement::{placed_graph::PlacedGraph, problem::Problem},
    rules::{decoder_loop, shapes, storage, types},
};

/// Checks the graphs of one model.
pub fn check(subject: &str, parts: &[OnnxFile], options: &CheckOptions) -> Report {
    let nothing = BTreeMap::new();
    let mut report = check_graphs(subject, parts, options, &nothing);
    if let Ok((fixed, changes)) = fix::fixed(parts, options)
        && !changes.is_empty()
    {
        let after = check_graphs(subject, &fixed, options, &nothing);
        report.after_fix = Some(AfterFix { verdict: after.verdict, score: after.score.total, changes });
    }
    report
}

/// Returns the symbolic dimensions of a model's inputs, by name.
pub fn symbols(parts: &[OnnxFile]) -> BTreeSet<String> {
    parts.iter().flat_map(|part| dim_bindings::symbols(&part.graph)).collect()
}

/// Returns the graphs with the dimensions fixed that the user has set.
///
/// # Errors
/// A patch that does not fit its graph, which is a defect of Narthex.
pub fn bound(parts: &[OnnxFile], options: &CheckOptions) -> Result<Vec<OnnxFile>, PatchError> {
    let mut bound = parts.to_vec();
    for part in &mut bound {
        part.graph.apply(&fix::bindings(&part.graph, &|symbol| options.extents.get(symbol).copied()))?;
    }
    Ok(bound)
}

/// Returns the maximum number of bytes of weights that one graph may have on a target's NPU.
pub fn graph_limit(target: &Target) -> u64 {
    Facts::of(target).part_limit
}

/// Returns the maximum number of bytes of weights that a program's graphs may have together on a target's NPU, if its
/// driver sets one.
pub fn program_limit(target: &Target) -> Option<u64> {
    Facts::of(target).sessions.map(Sessions::all)
}

/// Returns whether all known facts about two targets are equal, so that a check has the same result for both.
pub fn same_facts(one: &Target, other: &Target) -> bool {
    Facts::of(one) == Facts::of(other)
}

impl Report {
    /// Records the results of a vendor's compiler, by the part's name. They replace the predictions for nodes. Findings
    /// on files and sizes stay, because a compile loads nothing on an NPU.
    pub fn record(
        &mut self,
        parts: &[OnnxFile],
        options: &CheckOptions,
        compiled: &BTreeMap<String, CompilerResult>,
    ) {
        let joined = check_graphs(&self.subject, parts, options, compiled);
        *self = Self {
            after_fix: self.after_fix.take(),
            fix_command: self.fix_command.take(),
            compiler: self.compiler.take(),
            ..joined
        };
    }

    /// Adds the command that writes the model with Narthex's own fixes, if they improve it. `parts` are the graphs before
    /// any dimension was fixed.
    pub fn suggest_fix(&mut self, parts: &[OnnxFile], options: &CheckOptions) {
        let is_better = |after: &AfterFix| {
            after.score > self.score.total
                || matches!(self.verdict, Verdict::Refused { .. }) && after.verdict == Verdict::Whole
        };
        if self.after_fix.as_ref().is_some_and(is_better) {
            self.fix_command = Some(fix_command::fix_command(&self.subject, parts, options));
        }
    }
}

/// Checks graphs, with results of a vendor's compiler for some of them.
fn check_graphs(
    subject: &str,
    parts: &[OnnxFile],
    options: &CheckOptions,
    compiled: &BTreeMap<String, CompilerResult>,
) -> Report {
    let facts = Facts::of(&options.target);
    let extents = DimBindings::new(&options.extents);
    let mut findings = Vec::new();
    let mut summaries = Vec::new();
    let is_compiled = !parts.is_empty() && parts.iter().all(|part| compiled.contains_key(&part.name));
    let mut tally = score::ScoreTotals::default();
    let mut weights = storage::Weights::default();
    for part in parts {
        let mut view = PlacedGraph::new(part, facts, &extents);
        let compiled = compiled.get(&part.name);
        compiled.iter().for_each(|compiled| view.overrule(compiled));
        let mut found = shapes::check(&view, &extents);
        found.extend(node_problems(&view));
        found.extend(types::check(&view));
        compiled.iter().for_each(|compiled| compiler_result::join(&mut found, compiled));
        found.extend(storage::check(&view));
        found.extend(decoder_loop::check(&view));
        for finding in &mut found {
            finding.part = Some(part.name.clone());
        }
        findings.extend(found);
        let summary = score::summary(&view);
        tally.add(&view);
        weights.add(&view);
        summaries.push(summary);
    }

    findings.extend(storage::check_layout(parts, &weights, &facts));
    findings.sort_by_key(|finding| finding.severity);
    let verdict = score::verdict(&findings, &summaries);

    Report {
        subject: subject.to_owned(),
        target: options.target.clone(),
        score: tally.score(&summaries, weights.npu_bytes(), &facts).within(&verdict),
        verdict,
        basis: if is_compiled { Basis::Compiled } else { Basis::Predicted },
        assumed: extents.assumed(),
        compiler: None,
        parts: summaries,
        npu_weight_bytes: weights.npu_bytes(),
        findings,
        after_fix: None,
        fix_command: None,
    }
}

/// Returns findings on the nodes that the NPU does not support, grouped by problem.
fn node_problems(view: &PlacedGraph<'_>) -> Vec<Finding> {
    let mut order = Vec::new();
    let mut groups: BTreeMap<(Rule, Severity, String, String), Finding> = BTreeMap::new();
    for (node, Problem { rule, severity, why, fix }) in view.problems() {
        let key = (rule, severity, node.operator(), why);
        let finding = groups.entry(key.clone()).or_insert_with(|| {
            let message = format!("{}: {}", key.2, key.3);
            order.push(key);
            Finding::new(rule, severity, message).fix(fix)
        });
        finding.places.push(node.path());
    }
    order.into_iter().filter_map(|key| groups.remove(&key)).collect()
}

#[cfg(test)]
mod tests;
