//! Placements of nodes, and the problems that keep nodes off the NPU.

use crate::report::{Fix, Rule, Severity};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NodePlacement {
    /// ONNX Runtime computes it when it loads the graph.
    Folded,
    /// The NPU runs it.
    Npu,
    /// It reads or writes a tensor with an unknown extent.
    Dynamic,
    /// It runs on another device, or makes the compile fail.
    Problem(Problem),
    /// The vendor's compiler left it to another device, for a reason that no rule covers.
    Fallback,
}

/// A problem that keeps a node off the NPU.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Problem {
    pub(crate) rule: Rule,
    pub(crate) severity: Severity,
    /// Description of the problem, without the node's name.
    pub(crate) why: String,
    pub(crate) fix: Option<Fix>,
}

impl Problem {
    /// Returns a problem for which the node runs on another device.
    pub(crate) fn fallback(rule: Rule, why: impl Into<String>, fix: Fix) -> Self {
        Self { rule, severity: Severity::Fallback, why: why.into(), fix: Some(fix) }
    }

    /// Returns a problem that prevents the whole graph from running.
    pub(crate) fn blocking(rule: Rule, why: impl Into<String>, fix: Fix) -> Self {
        Self { severity: Severity::Blocking, ..Self::fallback(rule, why, fix) }
    }
}
