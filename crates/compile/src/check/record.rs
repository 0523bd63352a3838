//! Joining what a vendor's compiler says of a graph to a report: the seam between rules and proof.
//!
//! The rules predict; where the compiler is installed, the gateway lets it finalize each part and records the outcome
//! here.

use serde::{Deserialize, Serialize};

use super::{
    qnn_errors::{LADDER, code_in, explain},
    report::{Finding, Fix, Report, Rule, Severity, Verdict},
};

/// What a vendor's compiler made of one graph.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compiled {
    /// It took every node.
    Whole {
        /// Nodes of the compiled graph.
        nodes: usize,
    },
    /// It left some nodes to other devices.
    Partly {
        /// Those nodes.
        elsewhere: Vec<Left>,
        /// All nodes.
        nodes: usize,
    },
    /// It failed.
    Failed {
        /// Its message.
        message: String,
        /// The nodes at fault. A compiler does not tell them; whoever asks it seeks them.
        #[serde(skip)]
        fault: Fault,
    },
    /// Its process ended without an answer.
    Ended {
        /// How.
        how: Ending,
        /// The nodes at fault.
        #[serde(skip)]
        fault: Fault,
    },
}

/// How a compiler's process ended before it could answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// From outside, as a system does whose memory is full.
    Killed,
    /// By itself, with this status.
    Crashed(String),
}

/// A node that a compiler left to other devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    /// The node's path.
    pub path: String,
    /// Why, in the compiler's own words, where it gives any.
    pub why: Option<String>,
}

/// What is known of the nodes on which a compiler fails.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nobody looked for them.
    #[default]
    NotSought,
    /// It fails on these, and takes them as soon as any one is left out.
    Nodes {
        /// Their paths, in order.
        paths: Vec<String>,
        /// How to mend one of them, where a rule knows that.
        fix: Option<Fix>,
    },
    /// They could not be found, for this reason.
    NotFound {
        /// Why.
        reason: String,
    },
}

impl Report {
    /// Records what a compiler made of a part; it overrules the prediction where it is worse.
    pub fn record(&mut self, part: &str, compiled: &Compiled) {
        let found = match compiled {
            Compiled::Whole { nodes } => {
                let message = format!("the vendor's compiler took all {nodes} nodes");
                vec![finding(Severity::Notes, Vec::new(), message, None)]
            }
            Compiled::Partly { elsewhere, nodes } => {
                if self.verdict == Verdict::Whole {
                    let elsewhere_percent = 100.0 * elsewhere.len() as f64 / (*nodes).max(1) as f64;
                    let elsewhere_nodes = elsewhere.len() as u64;
                    self.verdict = Verdict::Partly { elsewhere_percent, elsewhere_nodes };
                }
                left(elsewhere, *nodes)
            }
            Compiled::Failed { message, fault } => self.refused(in_words(message), fault),
            Compiled::Ended { how, fault } => self.refused(ended(how), fault),
        };
        self.findings.extend(found.into_iter().map(|found| Finding { part: Some(part.to_owned()), ..found }));
        self.findings.sort_by_key(|finding| finding.severity);
    }

    fn refused(&mut self, failure: (String, Fix), fault: &Fault) -> Vec<Finding> {
        let (message, fix, places) = failed(failure, fault);
        self.verdict = Verdict::Refused { reason: message.clone() };
        vec![finding(Severity::Refuses, places, message, Some(fix))]
    }
}

fn finding(severity: Severity, places: Vec<String>, message: String, fix: Option<Fix>) -> Finding {
    Finding { rule: Rule::CompilerFails, severity, part: None, places, message, fix }
}

/// The nodes that went elsewhere, gathered by the compiler's reason.
fn left(elsewhere: &[Left], nodes: usize) -> Vec<Finding> {
    let mut groups: Vec<(Option<&str>, Vec<String>)> = Vec::new();
    for Left { path, why } in elsewhere {
        match groups.iter_mut().find(|(other, _)| *other == why.as_deref()) {
            Some((_, paths)) => paths.push(path.clone()),
            None => groups.push((why.as_deref(), vec![path.clone()])),
        }
    }
    let told = |(why, paths): (Option<&str>, Vec<String>)| {
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let message =
            format!("the vendor's compiler left {} of {nodes} nodes to other devices{why}", paths.len());
        finding(Severity::Falls, paths, message, None)
    };
    groups.into_iter().map(told).collect()
}

/// A failure and its usual fix with the nodes at fault.
fn failed((message, usual): (String, Fix), fault: &Fault) -> (String, Fix, Vec<String>) {
    match fault {
        Fault::NotSought => (message, usual, Vec::new()),
        Fault::NotFound { reason } => {
            (format!("{message}. The nodes at fault were not found: {reason}"), usual, Vec::new())
        }
        Fault::Nodes { paths, fix } => {
            let message = match paths.as_slice() {
                [only] => format!("{message}. It fails on {only} alone"),
                several => format!(
                    "{message}. It fails on these {} nodes, and takes them as soon as one is left out",
                    several.len()
                ),
            };
            let rewrite = || Fix::you("write these nodes with other operators, or in another order");
            (message, fix.clone().unwrap_or_else(rewrite), paths.clone())
        }
    }
}

/// The end of a compiler's process in words, and the next step.
fn ended(how: &Ending) -> (String, Fix) {
    match how {
        Ending::Killed => (
            "the vendor's compiler was killed over this graph, most likely because memory ran out".to_owned(),
            Fix::you("check it where there is more memory, or divide the model into parts"),
        ),
        Ending::Crashed(status) => (
            format!("the vendor's compiler crashed over this graph ({status})"),
            Fix::you(
                "report the crash to the vendor with this graph; `--rules-only` checks without the compiler",
            ),
        ),
    }
}

/// A compiler's message with the meaning of its error number, and the next step.
fn in_words(message: &str) -> (String, Fix) {
    match code_in(message).and_then(explain) {
        Some(found) => {
            let text = format!(
                "the vendor's compiler failed with {} ({}): {}. Usual causes: {}",
                found.code, found.name, found.meaning, found.cause
            );
            let next = if found.next.ends_with("ladder") {
                let steps: Vec<String> =
                    LADDER.iter().enumerate().map(|(i, step)| format!("{}. {step}", i + 1)).collect();
                format!("{}: {}", found.next, steps.join("; "))
            } else {
                found.next.to_owned()
            };
            (text, Fix::you(next))
        }
        None => {
            let text: String = message.chars().take(500).collect();
            (format!("the vendor's compiler failed: {text}"), Fix::you(format!("start with: {}", LADDER[0])))
        }
    }
}
