//! Joining what a vendor's compiler says of a graph to a report: the seam between rules and proof.
//!
//! The rules predict; where the compiler is installed, the gateway lets it finalize each part and records the outcome
//! here.

use super::{
    qnn_errors::{LADDER, code_in, explain},
    report::{Finding, Fix, Report, Rule, Severity, Verdict},
};

/// What a vendor's compiler made of one graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compiled {
    /// It took every node.
    Whole {
        /// Nodes of the compiled graph.
        nodes: usize,
    },
    /// It left some nodes to other devices.
    Partly {
        /// Paths of those nodes.
        elsewhere: Vec<String>,
        /// All nodes.
        nodes: usize,
    },
    /// It failed.
    Failed {
        /// Its message.
        message: String,
        /// The node that fails alone, where it was found.
        node: Option<String>,
    },
}

impl Report {
    /// Records what a compiler made of a part; it overrules the prediction where it is worse.
    pub fn record(&mut self, part: &str, compiled: &Compiled) {
        let finding = |severity, places, message: String, fix| Finding {
            rule: Rule::CompilerFails,
            severity,
            part: Some(part.to_owned()),
            places,
            message,
            fix,
        };
        match compiled {
            Compiled::Whole { nodes } => {
                let message = format!("the vendor's compiler took all {nodes} nodes");
                self.findings.push(finding(Severity::Notes, Vec::new(), message, None));
            }
            Compiled::Partly { elsewhere, nodes } => {
                let message = format!(
                    "the vendor's compiler left {} of {nodes} nodes to other devices",
                    elsewhere.len()
                );
                self.findings.push(finding(Severity::Falls, elsewhere.clone(), message, None));
                if self.verdict == Verdict::Whole {
                    let elsewhere_percent = 100.0 * elsewhere.len() as f64 / (*nodes).max(1) as f64;
                    self.verdict =
                        Verdict::Partly { elsewhere_percent, elsewhere_nodes: elsewhere.len() as u64 };
                }
            }
            Compiled::Failed { message, node } => {
                let (message, fix) = in_words(message);
                self.verdict = Verdict::Refused { reason: message.clone() };
                self.findings.push(finding(
                    Severity::Refuses,
                    node.iter().cloned().collect(),
                    message,
                    Some(fix),
                ));
            }
        }
        self.findings.sort_by_key(|finding| finding.severity);
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
