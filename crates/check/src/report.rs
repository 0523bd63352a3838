//! Reports of checks: a verdict, a score with its parts, findings with their fixes. Plain data, for people and for JSON.

use std::collections::BTreeMap;

use narthex_spec::Target;
use serde::Serialize;
use strum::IntoStaticStr;

/// The outcome of checking a model for a target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model: a path or a name.
    pub subject: String,
    /// Target of the check.
    pub target: Target,
    /// Verdict on the model.
    pub verdict: Verdict,
    /// Score of the model on the target.
    pub score: Score,
    /// Assumed extents of symbolic dimensions, with which the work is counted.
    pub assumed: BTreeMap<String, u64>,
    /// Its graphs.
    pub parts: Vec<PartSummary>,
    /// Bytes that their weights take on the NPU together; those that graphs share count once.
    pub npu_weight_bytes: u64,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
    /// Result after Narthex's own fixes, if there are any.
    pub after_fix: Option<AfterFix>,
}

/// Result of a check: the share of a model that runs on the target.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Verdict {
    /// Every node that computes at run time does so on the NPU.
    Whole,
    /// Some of it runs on another device.
    Partly {
        /// Share of the multiply-accumulates that does not run on the NPU, in percent; of the nodes, if none multiply.
        elsewhere_percent: f64,
        /// Nodes that do not run on the NPU.
        elsewhere_nodes: u64,
    },
    /// It does not run on the target at all, or none of it would on the NPU.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Score of a model on a target: a weighted mean of shares that are computed from the graph, within what the verdict
/// allows, times its factors. What is refused has none, and what runs in part has at most the percentage that the NPU does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// 0 to 100.
    pub total: f64,
    /// Components of the score.
    pub components: Vec<Component>,
    /// Shares of the sum that remain for reasons outside the graph.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<Factor>,
}

/// A share of a score that remains for a reason outside the graph, such as the loss of a weight scheme.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Factor {
    /// Name of the reason.
    pub name: &'static str,
    /// 0 to 1.
    pub value: f64,
    /// The figures behind the value.
    pub detail: String,
}

/// One part of a score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Component {
    /// Name of the measure.
    pub name: &'static str,
    /// 0 to 1.
    pub value: f64,
    /// Points that a value of 1 gives.
    pub weight: f64,
    /// The figures behind the value.
    pub detail: String,
}

/// One graph of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartSummary {
    /// The file, relative to the model's folder.
    pub name: String,
    /// Nodes that compute at run time.
    pub nodes: usize,
    /// Of those, the ones that the NPU takes.
    pub npu_nodes: usize,
    /// Nodes that ONNX Runtime computes once, when it loads the graph.
    pub folded_nodes: usize,
    /// Multiply-accumulates of one run.
    pub multiply_accumulates: u64,
    /// Of those, the ones in nodes that the NPU takes.
    pub npu_multiply_accumulates: u64,
    /// Nodes whose multiply-accumulates cannot be counted, because a shape is not known.
    pub uncounted_nodes: usize,
    /// Bytes of the constants.
    pub weight_bytes: u64,
    /// Bytes that the constants of the NPU's nodes take there.
    pub npu_weight_bytes: u64,
    /// Bytes that go in and out of one run, where known.
    pub io_bytes: Option<u64>,
    /// The least number of pieces into which the NPU's nodes fall.
    pub npu_pieces: usize,
    /// Storage of weights and activations.
    pub scheme: String,
}

/// Something that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Severity.
    pub severity: Severity,
    /// The graph's file, where it is about one.
    pub part: Option<String>,
    /// Paths of the nodes, or names of the tensors or files, that it is about.
    pub places: Vec<String>,
    /// Expectation and observation.
    pub message: String,
    /// The next step.
    pub fix: Option<Fix>,
}

impl Finding {
    /// A finding without a graph, places or a fix.
    pub fn new(rule: Rule, severity: Severity, message: impl Into<String>) -> Self {
        Self { rule, severity, part: None, places: Vec::new(), message: message.into(), fix: None }
    }

    /// The finding at these places.
    #[must_use]
    pub fn at(self, places: Vec<String>) -> Self {
        Self { places, ..self }
    }

    /// The finding with a fix, if there is one.
    #[must_use]
    pub fn fix(self, fix: impl Into<Option<Fix>>) -> Self {
        Self { fix: fix.into(), ..self }
    }
}

/// Severity of a finding, most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The model cannot run on the target.
    Refuses,
    /// The affected nodes run on another device.
    Falls,
    /// It runs, and costs time, memory or accuracy.
    Costs,
    /// Worth knowing.
    Notes,
}

/// Fix for a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fix {
    /// Party that can apply the fix.
    pub by: FixedBy,
    /// Description of the fix.
    pub text: String,
}

/// Party that can apply a fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FixedBy {
    /// `narthex check --fix`.
    Narthex,
    /// The user who exports the model.
    You,
}

impl Fix {
    /// A fix that `--fix` makes.
    pub fn narthex(text: impl Into<String>) -> Self {
        Self { by: FixedBy::Narthex, text: text.into() }
    }

    /// A fix for the model's exporter.
    pub fn you(text: impl Into<String>) -> Self {
        Self { by: FixedBy::You, text: text.into() }
    }
}

/// Result of `--fix`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AfterFix {
    /// The verdict.
    pub verdict: Verdict,
    /// The score, 0 to 100.
    pub score: f64,
    /// The changes.
    pub changes: Vec<String>,
}

/// The rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Rule {
    /// The graph must be well-formed.
    Malformed,
    /// Every extent is fixed.
    DynamicDimension,
    /// Every shape is known before the graph runs.
    UnknownShape,
    /// The target's compiler takes the operator.
    UnsupportedOperator,
    /// ONNX Runtime's contributed operators are known to its own kernels, and to few others.
    ContribOperator,
    /// The operator is taken, but not in this form.
    OperatorForm,
    /// No loops and branches.
    ControlFlow,
    /// The target computes with the element type.
    ElementType,
    /// The tensor has no more axes than the target takes.
    Rank,
    /// Attention masks are numbers to be added.
    BooleanMask,
    /// Masked scores are small negative numbers, not the most negative ones.
    MaskValue,
    /// Result of the vendor's compiler.
    Compiler,
    /// `MatMulNBits` has activations of rank 3.
    #[strum(serialize = "matmulnbits-rank")]
    MatMulNBitsRank,
    /// `DequantizeLinear` of a weight feeds an operator whose activations are quantised too.
    WeightOnlyDequantize,
    /// The vendor's compiler accepts the graph.
    CompilerFails,
    /// Data files are there, whole, and beside the model.
    ExternalData,
    /// One data file for all weights.
    SeveralFiles,
    /// Weights are constants, not inputs with a default.
    OverridableWeight,
    /// A part fits into the NPU's address space.
    PartSize,
    /// A tensor fits into the memory beside the NPU's cores.
    TensorSize,
    /// The token table stays with the host.
    EmbeddingTable,
    /// The cache does not travel whole in every step.
    CacheTraffic,
    /// Signs of a loop over tokens.
    DecoderLoop,
    /// Storage of weights.
    Quantisation,
    /// Content of the file that checks do not read.
    NotRead,
    /// The architecture is one that Narthex compiles itself.
    Architecture,
}

impl Rule {
    /// Name in reports.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
