//! Reports of checks: a verdict, a score with its components, and findings with their fixes. They are plain data, for
//! text output and for JSON.

mod text;

use std::collections::BTreeMap;

use narthex_spec::Target;
use serde::Serialize;
use strum::IntoStaticStr;

/// Result of checking a model for a target.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Path or name of the model.
    pub subject: String,
    /// Target of the check.
    pub target: Target,
    /// Verdict on the model.
    pub verdict: Verdict,
    /// Evidence for the verdict.
    pub basis: Basis,
    /// Version of the vendor's compiler that compiled the graphs, if it is known.
    pub compiler: Option<String>,
    /// Score of the model on the target.
    pub score: Score,
    /// Assumed extents of symbolic dimensions, which are used to count multiply-accumulates.
    pub assumed: BTreeMap<String, u64>,
    /// Graphs of the model.
    pub parts: Vec<PartSummary>,
    /// Number of bytes that the graphs' weights take together on the NPU. Shared weights count once.
    pub npu_weight_bytes: u64,
    /// Findings, most severe first.
    pub findings: Vec<Finding>,
    /// Result after Narthex's own fixes, if it has any for this model.
    pub after_fix: Option<AfterFix>,
    /// Command that writes the model with Narthex's own fixes, if they improve the verdict or the score.
    pub fix_command: Option<String>,
}

/// Evidence for a verdict, from the weakest kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// The rules.
    Predicted,
    /// A compile of every graph by the vendor's compiler.
    Compiled,
    /// A run on the device of this machine.
    Ran,
}

/// Verdict of a check: the part of a model that runs on the target.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Verdict {
    /// Every node that computes at run time does so on the NPU.
    Whole,
    /// Some nodes run on another device.
    Partly {
        /// Share of the multiply-accumulates that do not run on the NPU, in percent; of the nodes, if there are no
        /// multiply-accumulates.
        elsewhere_percent: f64,
        /// Number of nodes that do not run on the NPU.
        elsewhere_nodes: u64,
    },
    /// The model cannot run on the target, or no part of it would run on the NPU.
    Refused {
        /// Reason for the refusal.
        reason: String,
    },
}

/// Score of a model on a target: a weighted mean of shares that are computed from the graph, limited by the verdict and
/// multiplied by factors. A refused model has the score 0. A model that runs in part has at most the percentage of the
/// work that the NPU does.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Total, 0 to 100.
    pub total: f64,
    /// Components of the score.
    pub components: Vec<Component>,
    /// Factors of the score for reasons outside the graph.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub factors: Vec<Factor>,
}

/// A factor of a score for a reason outside the graph, such as the loss of a weight scheme.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Factor {
    /// Name of the reason.
    pub name: &'static str,
    /// 0 to 1.
    pub value: f64,
    /// Figures from which the value is computed.
    pub detail: String,
}

/// A component of a score.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Component {
    /// Name of the measure.
    pub name: &'static str,
    /// 0 to 1.
    pub value: f64,
    /// Number of points for a value of 1.
    pub weight: f64,
    /// Figures from which the value is computed.
    pub detail: String,
}

/// Summary of one graph of the model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartSummary {
    /// File of the graph, relative to the model's folder.
    pub name: String,
    /// Number of nodes that compute at run time.
    pub nodes: usize,
    /// Number of those nodes that run on the NPU.
    pub npu_nodes: usize,
    /// Number of nodes that ONNX Runtime computes once, when it loads the graph.
    pub folded_nodes: usize,
    /// Number of multiply-accumulates of one run.
    pub multiply_accumulates: u64,
    /// Number of those multiply-accumulates in nodes on the NPU.
    pub npu_multiply_accumulates: u64,
    /// Number of nodes whose multiply-accumulates cannot be counted, because a shape is unknown.
    pub uncounted_nodes: usize,
    /// Number of bytes of the constants.
    pub weight_bytes: u64,
    /// Number of bytes that the constants of the NPU's nodes take there.
    pub npu_weight_bytes: u64,
    /// Number of bytes of the inputs and outputs of one run, if known.
    pub io_bytes: Option<u64>,
    /// Minimum number of pieces into which the NPU's nodes are divided.
    pub npu_pieces: usize,
    /// Storage of weights and activations.
    pub scheme: String,
}

/// A finding of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// Rule of the finding.
    pub rule: Rule,
    /// Severity.
    pub severity: Severity,
    /// File of the graph, if the finding is about one graph.
    pub part: Option<String>,
    /// Paths of the affected nodes, or names of the affected tensors or files.
    pub places: Vec<String>,
    /// Expected and found state.
    pub message: String,
    /// Next step.
    pub fix: Option<Fix>,
}

impl Finding {
    /// Creates a finding without a graph, places or a fix.
    pub fn new(rule: Rule, severity: Severity, message: impl Into<String>) -> Self {
        Self { rule, severity, part: None, places: Vec::new(), message: message.into(), fix: None }
    }

    /// Returns the finding with these places.
    #[must_use]
    pub fn at(self, places: Vec<String>) -> Self {
        Self { places, ..self }
    }

    /// Returns the finding with a fix, if there is one.
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
    #[serde(rename = "refuses")]
    Blocking,
    /// The affected nodes run on another device.
    #[serde(rename = "falls")]
    Fallback,
    /// The model runs, at the cost of time, memory or accuracy.
    #[serde(rename = "costs")]
    Cost,
    /// Information without an effect on the model.
    #[serde(rename = "notes")]
    Note,
}

/// Fix for a finding.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fix {
    /// Party that can apply the fix.
    pub by: FixAuthor,
    /// Description of the fix.
    pub text: String,
}

/// Party that can apply a fix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FixAuthor {
    /// `narthex check --fix`.
    Narthex,
    /// The user who exports the model.
    #[serde(rename = "you")]
    User,
}

impl Fix {
    /// Creates a fix that `--fix` applies.
    pub fn automatic(text: impl Into<String>) -> Self {
        Self { by: FixAuthor::Narthex, text: text.into() }
    }

    /// Creates a fix for the model's exporter.
    pub fn manual(text: impl Into<String>) -> Self {
        Self { by: FixAuthor::User, text: text.into() }
    }
}

/// Result after `--fix`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AfterFix {
    /// Verdict after the fixes.
    pub verdict: Verdict,
    /// Score after the fixes, 0 to 100.
    pub score: f64,
    /// Applied changes.
    pub changes: Vec<String>,
}

/// Rules of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum Rule {
    /// The graph is well-formed.
    Malformed,
    /// The graph uses a version of ONNX's operators that ONNX Runtime supports.
    OldOpset,
    /// Every extent is fixed.
    DynamicDimension,
    /// Every shape is known before the graph is run.
    UnknownShape,
    /// The target's compiler supports the operator.
    UnsupportedOperator,
    /// The operator is not one of ONNX Runtime's contributed operators, which few compilers support.
    ContribOperator,
    /// The operator has a form that the compiler supports.
    OperatorForm,
    /// There are no loops and branches.
    ControlFlow,
    /// The target computes with the element type.
    ElementType,
    /// The tensor's rank is at most the target's maximum.
    Rank,
    /// Attention masks are numbers that are added.
    BooleanMask,
    /// Masked scores are moderate negative numbers, not the minimum of the type.
    MaskValue,
    /// Result of the vendor's compiler.
    Compiler,
    /// Record of a run on this machine.
    Run,
    /// `MatMulNBits` has activations of rank 3.
    #[strum(serialize = "matmulnbits-rank")]
    MatMulNBitsRank,
    /// `DequantizeLinear` of a weight feeds an operator whose activations are also quantised.
    WeightOnlyDequantize,
    /// The vendor's compiler accepts the graph.
    CompilerFails,
    /// Data files exist next to the model and are complete.
    ExternalData,
    /// All weights are in one data file.
    SeveralFiles,
    /// Weights are constants, not inputs with a default.
    OverridableWeight,
    /// A part fits in the NPU's address space.
    PartSize,
    /// A tensor fits in the memory next to the NPU's cores.
    TensorSize,
    /// The host keeps the token table.
    EmbeddingTable,
    /// A step does not transfer the whole cache.
    CacheTraffic,
    /// Properties of graphs that run in a loop over tokens.
    DecoderLoop,
    /// Storage of weights.
    Quantisation,
    /// Content of the file that the check does not read.
    NotRead,
    /// Narthex can compile the architecture itself.
    Architecture,
}

impl Rule {
    /// Returns the rule's name in reports.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}
