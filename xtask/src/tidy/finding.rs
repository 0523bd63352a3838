//! Findings of the rules, and the weight of each.

use std::fmt;

use serde::Deserialize;
use strum::IntoStaticStr;

/// The house rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum Rule {
    /// Every dependency goes to a strictly lower layer.
    Layers,
    /// Some libraries belong to one crate.
    Capabilities,
    /// Every crate inherits the workspace's lints.
    Lints,
    /// Lints that guard the design stay on.
    LintEscapes,
    /// Folders and packages have the same names.
    Folders,
    /// Files are short.
    FileLines,
    /// Functions are short.
    FunctionLines,
    /// Parameters are few, and none of them is a tuple taken apart.
    Parameters,
    /// Traits are narrow.
    TraitMethods,
    /// Public functions take enums instead of flags.
    BoolParameters,
    /// Sibling modules do not depend on each other in a circle.
    ModuleCycles,
    /// A name stands for one type of a crate.
    TypeNames,
    /// Names have a meaning.
    Names,
    /// Doc comments and messages are plain English.
    Prose,
    /// Every module has docs.
    ModuleDocs,
    /// Hosts of package registries and model hubs stand in one place.
    Hosts,
    /// The documents name every crate, and their links resolve.
    Documents,
    /// Exceptions are needed, and each has a reason.
    Exceptions,
}

impl Rule {
    /// The name used in `exceptions.toml` and in messages.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

/// Power of an exception over a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// An entry of `exceptions.toml` with a reason excuses it.
    Excusable,
    /// Nothing excuses it.
    Final,
}

/// One breach of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The rule.
    pub(crate) rule: Rule,
    /// The offender, in a form that stays the same when lines move: `path`, `path::name`, or `package -> package`.
    pub(crate) subject: String,
    /// The expectation, the fact and the next step.
    pub(crate) message: String,
    /// Its weight.
    pub(crate) severity: Severity,
}

impl Finding {
    /// A finding that an exception may excuse.
    pub(crate) fn excusable(rule: Rule, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { rule, subject: subject.into(), message: message.into(), severity: Severity::Excusable }
    }

    /// A finding that stands.
    pub(crate) fn firm(rule: Rule, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { rule, subject: subject.into(), message: message.into(), severity: Severity::Final }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.rule.name(), self.subject, self.message)
    }
}

/// Returns each finding as `rule subject`, for the rules' tests.
#[cfg(test)]
pub(crate) fn brief(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(|finding| format!("{} {}", finding.rule.name(), finding.subject)).collect()
}
