//! `xtask/exceptions.toml`: accepted violations of the rules, with their reasons.
//!
//! An exception that has no reason or is no longer needed is itself a finding.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde::Deserialize;

use crate::finding::{Finding, Rule, Severity};

/// Path of the file, relative to the root.
pub(crate) const FILE: &str = "xtask/exceptions.toml";

/// Contents of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exceptions {
    #[serde(default, rename = "exception")]
    exceptions: Vec<Exception>,
    /// Generated files, to which the rules on sources do not apply.
    #[serde(default)]
    pub(crate) generated: Vec<GeneratedFile>,
    /// Folders of crates to which a rule does not apply yet.
    #[serde(default)]
    pending: BTreeMap<Rule, Vec<String>>,
}

/// One excused finding.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    rule: Rule,
    subject: String,
    reason: String,
}

/// One generated file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GeneratedFile {
    /// Path relative to the root.
    pub(crate) path: String,
    reason: String,
}

impl Exceptions {
    /// Parses the text of the file.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        toml::from_str(text).with_context(|| format!("{FILE} is not valid"))
    }

    /// Removes the excused findings, and adds a finding for every exception that is invalid or unused.
    pub(crate) fn apply(&self, findings: Vec<Finding>) -> Vec<Finding> {
        let mut used = BTreeSet::new();
        let mut left: Vec<Finding> = findings
            .into_iter()
            .filter(|finding| match self.position(finding) {
                Some(position) => {
                    used.insert(position);
                    false
                }
                None => true,
            })
            .collect();
        for (position, exception) in self.exceptions.iter().enumerate() {
            let subject = format!("{} {}", exception.rule.name(), exception.subject);
            if exception.reason.trim().is_empty() {
                left.push(Finding::firm(
                    Rule::Exceptions,
                    subject,
                    "has no reason; give one or fix the code",
                ));
            } else if !used.contains(&position) {
                left.push(Finding::firm(
                    Rule::Exceptions,
                    subject,
                    format!("nothing needs this exception any more; remove it from {FILE}"),
                ));
            }
        }
        left
    }

    /// Separates the findings that count from those in crates to which the rule does not apply yet.
    pub(crate) fn split_pending(&self, findings: Vec<Finding>) -> (Vec<Finding>, Vec<Finding>) {
        findings.into_iter().partition(|finding| self.pending_crate(finding).is_none())
    }

    /// Counts the findings of each pending crate. If a crate has none, the rule can be applied to it.
    pub(crate) fn pending_notes(&self, pending: &[Finding]) -> Vec<String> {
        let mut notes = Vec::new();
        for (rule, folders) in &self.pending {
            let count = |folder: &String| {
                let of = |f: &&Finding| f.rule == *rule && self.pending_crate(f) == Some(folder.as_str());
                format!("{folder} {}", pending.iter().filter(of).count())
            };
            let counts: Vec<String> = folders.iter().map(count).collect();
            notes.push(format!("pending {}: {}", rule.name(), counts.join(", ")));
        }
        notes
    }

    fn pending_crate(&self, finding: &Finding) -> Option<&str> {
        let covers = |folder: &str| {
            let rest = finding.subject.strip_prefix(folder);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest.starts_with("::"))
        };
        self.pending.get(&finding.rule)?.iter().map(String::as_str).find(|folder| covers(folder))
    }

    fn position(&self, finding: &Finding) -> Option<usize> {
        if finding.severity == Severity::Final {
            return None;
        }
        self.exceptions
            .iter()
            .position(|exception| exception.rule == finding.rule && exception.subject == finding.subject)
    }

    /// Checks the list of generated files; `exists` returns true if there is a file at a path.
    pub(crate) fn check_generated(&self, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for file in &self.generated {
            if file.reason.trim().is_empty() {
                findings.push(Finding::firm(
                    Rule::Exceptions,
                    &file.path,
                    "has no reason; name the generator in `reason`",
                ));
            }
            if !exists(&file.path) {
                let message = format!("no such source file; remove it from {FILE}");
                findings.push(Finding::firm(Rule::Exceptions, &file.path, message));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::brief;

    fn check(exceptions: &str, findings: &[Finding], expect: &[&str]) {
        let exceptions = Exceptions::parse(exceptions).unwrap();
        assert_eq!(brief(&exceptions.apply(findings.to_vec())), expect);
    }

    const LONG: &str = "[[exception]]\nrule = \"file-lines\"\nsubject = \"a.rs\"\nreason = \"a table\"\n";

    #[test]
    fn an_exception_excuses_its_finding_alone() {
        let finding = |subject: &str| Finding::excusable(Rule::FileLines, subject, "long");
        check(LONG, &[finding("a.rs"), finding("b.rs")], &["file-lines b.rs"]);
        let other = Finding::excusable(Rule::Names, "a.rs", "named badly");
        check(LONG, &[finding("a.rs"), other], &["names a.rs"]);
    }

    #[test]
    fn a_final_finding_stands_and_its_exception_is_idle() {
        let finding = Finding::firm(Rule::FileLines, "a.rs", "too long");
        check(LONG, &[finding], &["file-lines a.rs", "exceptions file-lines a.rs"]);
    }

    #[test]
    fn an_idle_or_unreasoned_exception_is_a_finding() {
        check(LONG, &[], &["exceptions file-lines a.rs"]);
        let finding = Finding::excusable(Rule::FileLines, "a.rs", "long");
        check(&LONG.replace("a table", "  "), &[finding], &["exceptions file-lines a.rs"]);
    }

    #[test]
    fn unknown_rules_and_keys_are_refused() {
        for text in [LONG.replace("file-lines", "file-linse"), LONG.replace("reason", "why")] {
            assert!(Exceptions::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn pending_crates_are_noted_and_no_more() {
        let list = "[pending]\nprose = [\"crates/a\", \"crates/b\"]\n";
        let exceptions = Exceptions::parse(list).unwrap();
        let finding = |rule, subject: &str| Finding::excusable(rule, subject, "");
        let (counted, pending) = exceptions.split_pending(vec![
            finding(Rule::Prose, "crates/a/src/c.rs::What"),
            finding(Rule::Prose, "crates/ab/src/c.rs::What"),
            finding(Rule::Prose, "crates/b"),
            finding(Rule::Names, "crates/a/src/c.rs::Base"),
        ]);
        assert_eq!(brief(&counted), ["prose crates/ab/src/c.rs::What", "names crates/a/src/c.rs::Base"]);
        assert_eq!(exceptions.pending_notes(&pending), ["pending prose: crates/a 1, crates/b 1"]);
    }

    #[test]
    fn a_generated_file_must_exist_and_have_a_reason() {
        let list = "[[generated]]\npath = \"a.rs\"\nreason = \"protoc\"\n[[generated]]\npath = \"b.rs\"\nreason = \"\"\n";
        let findings = Exceptions::parse(list).unwrap().check_generated(|path| path == "a.rs");
        assert_eq!(brief(&findings), ["exceptions b.rs", "exceptions b.rs"]);
    }
}
