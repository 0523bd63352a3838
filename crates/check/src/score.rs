//! The verdict and the score. Both are computed from the graph, and every figure that enters the score is printed.

use std::{collections::BTreeSet, fmt};

use crate::{
    facts::Facts,
    numbers::{count, plural},
    placement::{placed_graph::PlacedGraph, problem::NodePlacement},
    report::{Component, Factor, Finding, PartSummary, Rule, Score, Severity, Verdict},
    rules::{storage::npu_weight_bytes, types},
};

/// Returns the summary of one graph. If its weights exceed the NPU's limit, none of its nodes runs there.
pub(super) fn summary(view: &PlacedGraph<'_>) -> PartSummary {
    let npu_weight_bytes = npu_weight_bytes(view);
    let loads = npu_weight_bytes <= view.facts.part_limit;
    let mut summary = PartSummary {
        name: view.part.name.clone(),
        nodes: view.made,
        npu_nodes: 0,
        folded_nodes: 0,
        multiply_accumulates: 0,
        npu_multiply_accumulates: 0,
        uncounted_nodes: 0,
        weight_bytes: view.graph().weight_bytes(),
        npu_weight_bytes,
        io_bytes: io_bytes(view),
        npu_pieces: if loads { pieces(view) } else { 0 },
        scheme: types::scheme(view),
    };

    for (index, _, outcome) in view.placed() {
        if *outcome == NodePlacement::Folded {
            summary.folded_nodes += 1;
            continue;
        }
        summary.nodes += 1;
        let work = view.work.get(index).copied().flatten();
        summary.uncounted_nodes += usize::from(work.is_none());
        let work = work.unwrap_or(0);
        summary.multiply_accumulates = summary.multiply_accumulates.saturating_add(work);
        if loads && *outcome == NodePlacement::Npu {
            summary.npu_nodes += 1;
            summary.npu_multiply_accumulates = summary.npu_multiply_accumulates.saturating_add(work);
        }
    }
    summary
}

/// Returns the number of bytes of inputs and outputs, without weights that are also inputs.
fn io_bytes(view: &PlacedGraph<'_>) -> Option<u64> {
    let graph = view.graph();
    let inputs = graph.inputs.iter().filter(|input| !view.constants.contains_key(input.name.as_str()));
    inputs
        .chain(&graph.outputs)
        .try_fold(0u64, |sum, value| sum.checked_add(view.known.get(&value.name).bytes()?))
}

/// Returns the minimum number of pieces into which the NPU's nodes are divided. The piece of a node is the number of
/// device changes on the longest path to it.
fn pieces(view: &PlacedGraph<'_>) -> usize {
    // Nodes that are computed at load time have no device, and join the nodes that read them.
    let mut changes: Vec<Option<(bool, usize)>> = Vec::with_capacity(view.outcomes.len());
    let mut found = BTreeSet::new();
    for (_, node, outcome) in view.placed() {
        let on_npu = *outcome == NodePlacement::Npu;
        let before = node.inputs.iter().filter_map(|name| {
            let (was_on_npu, count) = (*changes.get(*view.producers.get(name.as_str())?)?)?;
            Some(count + usize::from(was_on_npu != on_npu))
        });
        let count = before.max().unwrap_or(0);
        if on_npu {
            found.insert(count);
        }
        changes.push((*outcome != NodePlacement::Folded).then_some((on_npu, count)));
    }
    found.len()
}

pub(super) fn verdict(findings: &[Finding], summaries: &[PartSummary]) -> Verdict {
    if let Some(finding) = findings.iter().find(|finding| finding.severity == Severity::Blocking) {
        return Verdict::Refused { reason: finding.message.clone() };
    }
    // A dynamic dimension has one verdict, whatever the number of nodes that do not read it.
    let dynamic = findings
        .iter()
        .find(|finding| finding.rule == Rule::DynamicDimension && finding.severity == Severity::Fallback);
    if let Some(finding) = dynamic {
        return Verdict::Refused { reason: finding.message.clone() };
    }

    let nodes = sum(summaries, |summary| summary.nodes as u64);
    let npu_nodes = sum(summaries, |summary| summary.npu_nodes as u64);
    if nodes == 0 {
        return Verdict::Refused { reason: "it has no node that computes at run time".to_owned() };
    }
    if npu_nodes == nodes {
        return Verdict::Whole;
    }
    if npu_nodes == 0 {
        let first = findings.iter().find(|finding| finding.severity == Severity::Fallback);
        let reason = first
            .map_or_else(|| "the NPU accepts none of its nodes".to_owned(), |first| first.message.clone());
        return Verdict::Refused { reason };
    }
    let (all, npu) = match sum(summaries, |summary| summary.multiply_accumulates) {
        0 => (nodes, npu_nodes),
        work => (work, sum(summaries, |summary| summary.npu_multiply_accumulates)),
    };
    let elsewhere_percent = 100.0 * (1.0 - npu as f64 / all as f64);
    Verdict::Partly { elsewhere_percent, elsewhere_nodes: nodes - npu_nodes }
}

/// Sums over the graphs of a model.
#[derive(Debug, Default)]
pub(super) struct ScoreTotals {
    values: usize,
    fixed_values: usize,
}

impl ScoreTotals {
    pub(super) fn add(&mut self, view: &PlacedGraph<'_>) {
        for (_, node, outcome) in view.placed() {
            if *outcome == NodePlacement::Folded {
                continue;
            }
            for name in node
                .outputs
                .iter()
                .filter(|name| view.readers.contains_key(name.as_str()) || view.is_output(name))
            {
                self.values += 1;
                self.fixed_values += usize::from(view.open.get(name).is_fixed());
            }
        }
    }

    /// Returns the score of graphs whose weights take `total` bytes together. Shared weights count once.
    pub(super) fn score(&self, summaries: &[PartSummary], total: u64, facts: &Facts) -> Score {
        let nodes = sum(summaries, |s| s.nodes as u64);
        let npu_nodes = sum(summaries, |s| s.npu_nodes as u64);
        let work = sum(summaries, |s| s.multiply_accumulates);
        let npu_work = sum(summaries, |s| s.npu_multiply_accumulates);
        let uncounted = sum(summaries, |s| s.uncounted_nodes as u64);
        let pieces = sum(summaries, |s| s.npu_pieces as u64);
        let graphs = summaries.len() as u64;
        let computing = if work == 0 { share(npu_nodes, nodes) } else { share(npu_work, work) };
        let mut compute = format!("{} of {} multiply-accumulates", count(npu_work), count(work));
        if uncounted > 0 {
            compute.push_str(&format!("; the work of {uncounted} nodes is unknown"));
        }

        let components = vec![
            Component { name: "compute on the NPU", value: computing, weight: 50.0, detail: compute },
            Component {
                name: "nodes on the NPU",
                value: share(npu_nodes, nodes),
                weight: 15.0,
                detail: format!("{npu_nodes} of {nodes}"),
            },
            Component {
                name: "graphs kept whole",
                // More pieces than graphs require transfers between devices; fewer mean that a graph has no NPU nodes.
                value: share(pieces.min(graphs), pieces.max(graphs)),
                weight: 15.0,
                detail: match pieces {
                    0 => "no part is on the NPU".to_owned(),
                    _ => format!("{} in {} on the NPU", plural(graphs, "graph"), plural(pieces, "piece")),
                },
            },
            Component {
                name: "fixed shapes",
                value: share(self.fixed_values as u64, self.values as u64),
                weight: 10.0,
                detail: format!("{} of {} values", self.fixed_values, self.values),
            },
            memory(summaries, total, facts),
        ];
        Score::of(components)
    }
}

/// Returns the share of the weights that fit in memory: the largest part compared with the safe size of a part, and all
/// parts compared with the memory of a program.
fn memory(summaries: &[PartSummary], total: u64, facts: &Facts) -> Component {
    let largest = summaries.iter().map(|summary| summary.npu_weight_bytes).max().unwrap_or(0);
    let mut value = share_that_fits(largest, facts.part_caution);
    let mut detail = format!(
        "the largest part has {:.1} MB of weights; up to {:.0} MB is safe",
        megabytes(largest),
        megabytes(facts.part_caution)
    );
    if let Some(sessions) = facts.sessions
        && total > largest
    {
        value = value.min(share_that_fits(total, sessions.all()));
        detail.push_str(&format!(
            "; {:.1} MB in total; the limit for one program is {:.0} MB",
            megabytes(total),
            megabytes(sessions.all())
        ));
    }
    Component { name: "fits in memory", value, weight: 10.0, detail }
}

impl Score {
    /// Creates a score from its components.
    pub(super) fn of(components: Vec<Component>) -> Self {
        let mut score = Self { total: 0.0, components, factors: Vec::new() };
        score.total = score.sum();
        score
    }

    /// Returns the score of all components, regardless of the verdict.
    pub fn sum(&self) -> f64 {
        self.components.iter().map(|component| component.value * component.weight).sum()
    }

    /// Multiplies the score by a factor.
    pub fn scale(&mut self, factor: Factor) {
        self.total *= factor.value.clamp(0.0, 1.0);
        self.factors.push(factor);
    }

    /// Limits the score by the verdict: 0 for a refused model, otherwise at most the percentage of the work that the
    /// NPU does.
    pub(super) fn within(self, verdict: &Verdict) -> Self {
        let most = match verdict {
            Verdict::Whole => 100.0,
            Verdict::Partly { elsewhere_percent, .. } => 100.0 - elsewhere_percent,
            Verdict::Refused { .. } => 0.0,
        };
        Self { total: self.total.min(most), ..self }
    }
}

impl fmt::Display for Score {
    /// Writes the total and its components, one per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, components, factors } = self;
        let sum = self.sum();
        let scaled = sum * factors.iter().map(|factor| factor.value).product::<f64>();
        let bound = if scaled > total + 0.05 {
            format!(": its components give {scaled:.1}, and the verdict limits it")
        } else {
            String::new()
        };
        writeln!(f, "score {total:.1} of 100{bound}")?;
        for Component { name, value, weight, detail } in components {
            writeln!(f, "  {:>5.1} of {weight:>2.0}  {name:<18} {detail}", value * weight)?;
        }
        for Factor { name, value, detail } in factors {
            writeln!(f, "  times {value:>5.3}  {name:<18} {detail}")?;
        }
        Ok(())
    }
}

/// Adds one count of all parts.
fn sum(summaries: &[PartSummary], count: fn(&PartSummary) -> u64) -> u64 {
    summaries.iter().map(count).sum()
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// Returns the share of `bytes` that fits into `room`.
fn share_that_fits(bytes: u64, room: u64) -> f64 {
    if bytes == 0 { 1.0 } else { (room as f64 / bytes as f64).min(1.0) }
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
