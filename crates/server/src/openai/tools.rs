//! Tools in OpenAI's JSON.

use narthex_gateway::request::{CallLimit, Strictness, Tool, ToolChoice, ToolSettings};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{body, error::ApiError};

/// Parameters of tools.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ToolOptions {
    tools: Option<Vec<WireTool>>,
    #[serde(default, deserialize_with = "body::filled")]
    tool_choice: Option<WireToolChoice>,
    parallel_tool_calls: Option<bool>,
}

impl ToolOptions {
    /// Names of the fields.
    pub(crate) const FIELDS: &[&str] = &["tools", "tool_choice", "parallel_tool_calls"];

    /// Returns the gateway's settings.
    pub(crate) fn settings(self) -> Result<ToolSettings, ApiError> {
        let tools = self.tools.unwrap_or_default().into_iter().enumerate();
        Ok(ToolSettings {
            tools: tools.map(|(index, tool)| tool.into_tool(index)).collect::<Result<_, _>>()?,
            choice: self.tool_choice.map_or(ToolChoice::Auto, WireToolChoice::into_choice),
            calls: call_limit(self.parallel_tool_calls),
        })
    }
}

/// Returns the limit of `parallel_tool_calls`.
pub(crate) fn call_limit(parallel: Option<bool>) -> CallLimit {
    if parallel == Some(false) { CallLimit::One } else { CallLimit::Any }
}

/// An entry of `tools`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WireTool {
    r#type: String,
    function: Option<WireFunction>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct WireFunction {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
    strict: Option<bool>,
}

/// `tool_choice`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected \"none\", \"auto\", \"required\" or a function")]
enum WireToolChoice {
    /// A mode.
    Mode(ChoiceMode),
    /// One function.
    Function {
        /// The function.
        function: FunctionName,
    },
}

/// A mode of `tool_choice`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChoiceMode {
    None,
    Auto,
    Required,
}

/// Name of a function in `tool_choice`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FunctionName {
    name: String,
}

impl WireTool {
    /// Converts the tool for the gateway. `index` is its index for errors.
    pub(crate) fn into_tool(self, index: usize) -> Result<Tool, ApiError> {
        let path = format!("tools[{index}]");
        let Some(function) = self.function.filter(|_| self.r#type == "function") else {
            let message = format!(
                "{path}: expected a tool of type \"function\" with a function, found the type {:?}",
                self.r#type
            );
            return Err(ApiError::unsupported_as(&path, message));
        };
        let parameters = function.parameters.filter(|schema| !schema.is_null());
        Ok(Tool {
            name: function.name,
            description: function.description,
            parameters: parameters.unwrap_or_else(no_parameters),
            strictness: if function.strict == Some(true) {
                Strictness::Strict
            } else {
                Strictness::BestEffort
            },
        })
    }
}

/// Returns the schema of a function without parameters.
pub(crate) fn no_parameters() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

impl WireToolChoice {
    /// Returns the gateway's choice.
    fn into_choice(self) -> ToolChoice {
        match self {
            Self::Mode(mode) => mode.into(),
            Self::Function { function } => ToolChoice::Function(function.name),
        }
    }
}

impl From<ChoiceMode> for ToolChoice {
    fn from(mode: ChoiceMode) -> Self {
        match mode {
            ChoiceMode::None => Self::None,
            ChoiceMode::Auto => Self::Auto,
            ChoiceMode::Required => Self::Required,
        }
    }
}
