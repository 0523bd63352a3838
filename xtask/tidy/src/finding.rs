//! Findings of the rules, and their severity.

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
    /// Some libraries may be used by one crate only.
    Capabilities,
    /// Every crate inherits the workspace's lints.
    Lints,
    /// Lints that guard the design are not switched off.
    LintEscapes,
    /// Folders and packages have the same names.
    Folders,
    /// Files are short.
    FileLines,
    /// Functions are short.
    FunctionLines,
    /// Functions have few parameters, and none of them is a tuple pattern.
    Parameters,
    /// Traits are narrow.
    TraitMethods,
    /// Public functions take enums instead of flags.
    BoolParameters,
    /// Sibling modules have no cyclic dependencies.
    ModuleCycles,
    /// A type name occurs once in a crate.
    TypeNames,
    /// Closures are seldom bound by `let`.
    NamedClosures,
    /// Tuples are seldom built to be taken apart.
    TupleLets,
    /// Long functions have blank lines between their stages.
    PackedFunctions,
    /// Names are meaningful.
    Names,
    /// Doc comments and messages are plain English.
    Prose,
    /// Every module has docs.
    ModuleDocs,
    /// Hosts of package registries and model hubs are named in one file.
    Hosts,
    /// The documents name every crate, and their links resolve.
    Documents,
    /// Exceptions are needed and have a reason.
    Exceptions,
}

impl Rule {
    /// Returns the name used in `exceptions.toml` and in messages.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    /// An entry of `exceptions.toml` with a reason can excuse it.
    Excusable,
    /// It cannot be excused.
    Final,
}

/// One violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The rule.
    pub(crate) rule: Rule,
    /// Item with the violation, in a form that does not depend on line numbers: `path`, `path::name`, or `package ->
    /// package`.
    pub(crate) subject: String,
    /// Expected state, found state and next step.
    pub(crate) message: String,
    /// Severity.
    pub(crate) severity: Severity,
}

impl Finding {
    /// Creates a finding that an exception can excuse.
    pub(crate) fn excusable(rule: Rule, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { rule, subject: subject.into(), message: message.into(), severity: Severity::Excusable }
    }

    /// Creates a finding that cannot be excused.
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
