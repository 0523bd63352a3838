//! Tools that a model may call, and the calls in its answer.

pub use narthex_text::tools::CallLimit;
use serde_json::Value;

/// Tools of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolSettings {
    /// Functions that the model may call.
    pub tools: Vec<Tool>,
    /// Choice between calls and text.
    pub choice: ToolChoice,
    /// Number of calls in one answer.
    pub calls: CallLimit,
}

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Name: letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, an object.
    pub parameters: Value,
    /// Guarantee for the arguments.
    pub strictness: Strictness,
}

/// Guarantee for the arguments of a call that the model chooses to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// They follow the schema as well as the model can.
    BestEffort,
    /// They are valid under the schema.
    Strict,
}

/// Choice between calls and text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// Text alone; the model does not see the tools.
    None,
    /// The model chooses.
    #[default]
    Auto,
    /// At least one call, valid under its schema.
    Required,
    /// One call of this function, valid under its schema.
    Function(String),
}

/// Part of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallDelta {
    /// Index of the call in its answer.
    pub index: usize,
    /// The call's id and function, in its first part.
    pub start: Option<ToolCallStart>,
    /// More of the arguments' JSON text.
    pub arguments: String,
}

/// Id and function of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallStart {
    /// Id that is unique in this process.
    pub id: String,
    /// Name of the function.
    pub name: String,
}
