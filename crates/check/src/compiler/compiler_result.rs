//! Results of vendors' compilers, and their place in a report next to the predictions of the rules.
//!
//! If the compiler is installed, the gateway lets it finalize each part, and [`Report::record`](crate::Report::record)
//! checks the model again with the results.

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{
    compiler::{
        intel_errors,
        qnn_errors::{DIAGNOSTIC_STEPS, code_in, explain},
    },
    numbers::plural,
    report::{Finding, Fix, Rule, Severity},
};

/// Result of a vendor's compiler for one graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompilerResult {
    /// The NPU runs every node.
    Whole {
        /// Nodes of the compiled graph.
        nodes: usize,
    },
    /// Some nodes run on other devices.
    Partly {
        /// The nodes on other devices.
        elsewhere: Vec<FallbackNode>,
        /// Number of all nodes.
        nodes: usize,
    },
    /// The compiler failed.
    Failed {
        /// Its message.
        message: String,
        /// Nodes at fault. A compiler does not report them; the caller searches for them.
        #[serde(skip)]
        fault: FaultyNodes,
        /// Diagnostics of the compiler.
        #[serde(skip)]
        evidence: Option<Evidence>,
    },
    /// The compiler's process ended without a result.
    Ended {
        /// Kind of end.
        how: ProcessEnd,
        /// Nodes at fault.
        #[serde(skip)]
        fault: FaultyNodes,
        /// Diagnostics of the compiler up to that point.
        #[serde(skip)]
        evidence: Option<Evidence>,
    },
}

/// Kind of end of a compiler's process without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessEnd {
    /// Killed by another process or the system, for example because memory ran out.
    Killed,
    /// Crashed with this status.
    Crashed(String),
    /// Killed after the time limit.
    TimedOut,
}

impl fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Killed => f.write_str("was killed, most likely because memory ran out"),
            Self::Crashed(status) => write!(f, "crashed ({status})"),
            Self::TimedOut => f.write_str("did not finish within the time limit, and was killed"),
        }
    }
}

/// A node that a compiler left to other devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FallbackNode {
    /// The node's path.
    pub path: String,
    /// Reason in the compiler's own words, if it states one.
    pub why: Option<String>,
}

/// Nodes on which a compiler fails.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FaultyNodes {
    /// They were not searched for.
    #[default]
    NotSearched,
    /// The compiler fails on these nodes together.
    Nodes {
        /// Paths of the nodes, in order.
        paths: Vec<String>,
        /// Set if it accepts them if any one is removed.
        is_minimal: bool,
        /// Fix for one of them, if a rule has one.
        fix: Option<Fix>,
    },
    /// The search failed.
    NotFound {
        /// Reason for the failure.
        reason: String,
    },
}

/// Diagnostics of a compiler that fails on a graph, from the completed [diagnostic steps](DIAGNOSTIC_STEPS).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    /// Folder with the provider's output, and with the graph if it is a piece of the model's graph.
    pub folder: PathBuf,
    /// Lines of the provider's log that state a cause.
    pub log_lines: Vec<String>,
    /// Result of a control backend, which accepts every valid graph; `None` if there is no such backend.
    pub control: Option<ControlResult>,
    /// Command that repeats the compile, on this or another machine.
    pub repeat_command: String,
}

/// Result of a control backend for a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlResult {
    /// It accepts the graph.
    Accepts,
    /// It fails too.
    Fails,
}

impl Evidence {
    /// Returns the text that follows a failure's message.
    fn text(&self) -> String {
        let lines = self.log_lines.iter().map(|line| format!(". Its log says: {line}"));
        let control = self.control.map(|control| match control {
            ControlResult::Accepts => {
                ". With backend_type=ir the provider accepts it, so the graph is valid and the chip's backend causes the failure"
            }
            ControlResult::Fails => ". With backend_type=ir the provider fails too, so the failure is not caused by the chip's backend",
        });
        let kept = format!(". Its log and the graph that it received are in {}", self.folder.display());
        lines.chain(control.map(str::to_owned)).chain([kept]).collect()
    }
}

/// Combines the findings of the rules on a graph's form with the compiler's result, which comes first.
pub(crate) fn join(found: &mut Vec<Finding>, compiled: &CompilerResult) {
    let findings = match compiled {
        CompilerResult::Whole { nodes } => {
            found.iter_mut().filter(|found| found.severity == Severity::Fallback).for_each(overrule);
            let message = format!("the vendor's compiler accepted all of {}", plural(*nodes as u64, "node"));
            vec![Finding::new(Rule::Compiler, Severity::Note, message)]
        }
        CompilerResult::Partly { elsewhere, nodes } => fallback_findings(elsewhere, *nodes),
        CompilerResult::Failed { message, fault, evidence } => {
            let (message, usual) = describe_message(message, evidence.as_ref());
            vec![failure_finding(message, usual, fault, evidence.as_ref())]
        }
        CompilerResult::Ended { how, fault, evidence } => {
            let (message, usual) = describe_end(how);
            vec![failure_finding(message, usual, fault, evidence.as_ref())]
        }
    };
    found.splice(0..0, findings);
}

/// Turns a finding into a note, because the compiler accepted the whole graph.
fn overrule(found: &mut Finding) {
    found.severity = Severity::Note;
    found.message = format!(
        "the vendor's compiler accepted the graph, although the rules expected otherwise: {}",
        found.message
    );
    found.fix = None;
}

/// Returns findings for the nodes on other devices, grouped by the compiler's reason.
fn fallback_findings(elsewhere: &[FallbackNode], nodes: usize) -> Vec<Finding> {
    let mut groups: Vec<(Option<&str>, Vec<String>)> = Vec::new();
    for FallbackNode { path, why } in elsewhere {
        match groups.iter_mut().find(|(other, _)| *other == why.as_deref()) {
            Some((_, paths)) => paths.push(path.clone()),
            None => groups.push((why.as_deref(), vec![path.clone()])),
        }
    }
    groups
        .into_iter()
        .map(|(why, paths)| {
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let message =
                format!("the vendor's compiler left {} of {nodes} nodes to other devices{why}", paths.len());
            Finding::new(Rule::Compiler, Severity::Fallback, message).at(paths)
        })
        .collect()
}

/// Returns the finding for a failure: its message, its usual fix and the nodes at fault.
fn failure_finding(message: String, usual: Fix, fault: &FaultyNodes, evidence: Option<&Evidence>) -> Finding {
    let (mut message, fix, places) = match fault {
        FaultyNodes::NotSearched => (message, usual, Vec::new()),
        FaultyNodes::NotFound { reason } => {
            (format!("{message}. The nodes at fault were not found: {reason}"), usual, Vec::new())
        }
        FaultyNodes::Nodes { paths, is_minimal, fix } => {
            let message = match (paths.as_slice(), is_minimal) {
                ([only], _) => format!("{message}. {only} alone causes the failure"),
                (several, true) => format!(
                    "{message}. It fails on these {} nodes, and accepts them if any one of them is removed",
                    several.len()
                ),
                (several, false) => format!(
                    "{message}. It fails on these {} nodes; the search ended before it was known whether all of them are \
                     needed for that",
                    several.len()
                ),
            };
            (
                message,
                fix.clone().unwrap_or_else(|| {
                    Fix::manual("replace these nodes with other operators, or reorder them")
                }),
                paths.clone(),
            )
        }
    };
    message.extend(evidence.map(Evidence::text));
    Finding::new(Rule::CompilerFails, Severity::Blocking, message).at(places).fix(fix)
}

/// Describes the end of a compiler's process, and the next step.
fn describe_end(how: &ProcessEnd) -> (String, Fix) {
    match how {
        ProcessEnd::Killed => (
            "the vendor's compiler was killed on this graph, most likely because memory ran out".to_owned(),
            Fix::manual("check it on a machine with more memory, or divide the model into parts"),
        ),
        ProcessEnd::TimedOut => (
            "the vendor's compiler did not finish this graph within the time limit, and was killed"
                .to_owned(),
            Fix::manual("divide the model into smaller graphs, or check it on a faster machine"),
        ),
        ProcessEnd::Crashed(status) => (
            format!("the vendor's compiler crashed on this graph ({status})"),
            Fix::manual(
                "report the crash to the vendor with this graph; `--rules-only` checks without the compiler",
            ),
        ),
    }
}

/// Describes a compiler's message with the meaning of its error number, and the next step.
fn describe_message(message: &str, evidence: Option<&Evidence>) -> (String, Fix) {
    if intel_errors::kind_of(message).is_some() {
        return (message.to_owned(), intel_errors::fix());
    }
    match code_in(message).and_then(explain) {
        Some(found) => {
            let text = format!("the vendor's compiler failed with {found}");
            let next = if found.next.ends_with("diagnostic steps") {
                format!("{}: {}", found.next, steps(evidence))
            } else {
                found.next.to_owned()
            };
            (text, Fix::manual(next))
        }
        None => {
            let text: String = message.chars().take(500).collect();
            let fix = Fix::manual(format!("follow the diagnostic steps: {}", steps(evidence)));
            (format!("the vendor's compiler failed: {text}"), fix)
        }
    }
}

/// Lists the remaining diagnostic steps.
fn steps(evidence: Option<&Evidence>) -> String {
    match evidence {
        Some(Evidence { folder, repeat_command, .. }) => {
            format!(
                "these steps were run on this machine; see {}. To repeat them on the device: {repeat_command}",
                folder.display()
            )
        }
        None => {
            let steps =
                DIAGNOSTIC_STEPS.iter().enumerate().map(|(index, step)| format!("{}. {step}", index + 1));
            steps.collect::<Vec<_>>().join("; ")
        }
    }
}
