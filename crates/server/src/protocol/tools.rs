//! Tools in OpenAI's JSON.

use std::collections::HashSet;

use narthex_gateway::request::{CallLimit, ExactJson, Strictness, Tool, ToolChoice, ToolSettings};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    body,
    custom_tools::{CUSTOM, CustomTool},
    ignored::IgnoredParameters,
};
use crate::error::ApiError;

/// Parameters of tools.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ToolOptions {
    tools: Option<Vec<WireTool>>,
    #[serde(default, deserialize_with = "body::filled")]
    tool_choice: Option<WireToolChoice>,
    parallel_tool_calls: Option<bool>,
}

impl ToolOptions {
    /// Returns the gateway's settings.
    ///
    /// # Errors
    /// 400 for a `tool_choice` that asks for a tool that is ignored.
    pub(crate) fn settings(self, ignored: &mut IgnoredParameters) -> Result<ToolSettings, ApiError> {
        let wire_tools = self.tools.unwrap_or_default();
        let has_tools = !wire_tools.is_empty();
        let mut tools = into_tools(wire_tools, ignored)?;
        let choice = match self.tool_choice {
            None => ToolChoice::Auto,
            Some(WireToolChoice::Mode(mode)) => mode.into(),
            Some(WireToolChoice::Function { function: FunctionName { name } })
            | Some(WireToolChoice::Custom { custom: FunctionName { name } }) => ToolChoice::Function(name),
            Some(WireToolChoice::Allowed { allowed_tools }) => {
                allow(&mut tools, &allowed_tools.tools, "tool_choice.allowed_tools.tools")?;
                allowed_tools.mode.into()
            }
        };
        if choice == ToolChoice::Required && tools.is_empty() && has_tools {
            let message = "tool_choice: expected a function or a custom tool in `tools`, found only tools that this \
                           server does not run; send \"auto\"";
            return Err(ApiError::unsupported_as("tool_choice", message.to_owned()));
        }
        Ok(ToolSettings { tools, choice, calls: call_limit(self.parallel_tool_calls) })
    }

    /// Returns the names of custom tools.
    pub(crate) fn custom_names(&self) -> Vec<String> {
        let customs = self.tools.iter().flatten().filter(|tool| tool.r#type == CUSTOM);
        customs.filter_map(|tool| Some(tool.custom.as_ref()?.name.clone())).collect()
    }
}

/// Keeps only these tools. Tools without a name, which run on OpenAI's servers, are not among them.
pub(crate) fn allow(tools: &mut Vec<Tool>, allowed: &[NamedTool], path: &str) -> Result<(), ApiError> {
    let names: HashSet<&str> = allowed.iter().filter_map(NamedTool::name).collect();
    let known: HashSet<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    if let Some(unknown) = allowed.iter().filter_map(NamedTool::name).find(|name| !known.contains(name)) {
        let message = format!("{path}: expected the names of tools, found {unknown:?}");
        return Err(ApiError::bad_request(path, message));
    }
    tools.retain(|tool| names.contains(tool.name.as_str()));
    Ok(())
}

/// Returns the limit of `parallel_tool_calls`.
pub(crate) fn call_limit(parallel: Option<bool>) -> CallLimit {
    if parallel == Some(false) { CallLimit::One } else { CallLimit::Any }
}

/// An entry of `tools`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WireTool {
    #[serde(default = "function_type")]
    r#type: String,
    function: Option<WireFunction>,
    custom: Option<CustomTool>,
}

/// Returns the type of a tool without one, as Ollama's clients send it.
fn function_type() -> String {
    FUNCTION.to_owned()
}

/// Type of a function.
const FUNCTION: &str = "function";

/// A function that the model may call.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct WireFunction {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    #[schemars(with = "Option<Value>")]
    pub(crate) parameters: Option<ExactJson>,
    pub(crate) strict: Option<bool>,
}

/// `tool_choice`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected \"none\", \"auto\", \"required\", a function, a custom tool or allowed_tools"
)]
enum WireToolChoice {
    /// A mode.
    Mode(ChoiceMode),
    /// One function.
    Function {
        /// The function.
        function: FunctionName,
    },
    /// One custom tool.
    Custom {
        /// The tool.
        custom: FunctionName,
    },
    /// Some of the tools.
    Allowed {
        /// The tools.
        allowed_tools: AllowedTools,
    },
}

/// Tools that may be called, and whether one must be.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AllowedTools {
    mode: ChoiceMode,
    tools: Vec<NamedTool>,
}

/// A tool in a list of allowed ones. The responses API has its name here, the chat API in an object.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct NamedTool {
    name: Option<String>,
    function: Option<FunctionName>,
    custom: Option<FunctionName>,
}

impl NamedTool {
    fn name(&self) -> Option<&str> {
        let inside = self.function.as_ref().or(self.custom.as_ref()).map(|tool| &tool.name);
        self.name.as_ref().or(inside).map(String::as_str)
    }
}

/// A mode of `tool_choice`.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ChoiceMode {
    None,
    Auto,
    /// `any` in Mistral's API.
    #[serde(alias = "any")]
    Required,
}

/// Name of a function or of a custom tool in `tool_choice`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct FunctionName {
    name: String,
}

/// Converts tools for the gateway. Tools of other types than functions and custom tools are named in `ignored`.
pub(crate) fn into_tools(
    wire_tools: Vec<WireTool>,
    ignored: &mut IgnoredParameters,
) -> Result<Vec<Tool>, ApiError> {
    let mut tools = Vec::with_capacity(wire_tools.len());
    for (index, tool) in wire_tools.into_iter().enumerate() {
        // A function of a wrong type is a mistake of the client.
        let declares = tool.function.is_some() || tool.custom.is_some();
        if declares || tool.r#type == FUNCTION || tool.r#type == CUSTOM {
            tools.push(tool.into_tool(index)?);
        } else {
            ignored.push(hosted(&tool.r#type).unwrap_or(TOOLS));
        }
    }
    Ok(tools)
}

/// Name of the parameter, which stands for tools of unknown types.
pub(crate) const TOOLS: &str = "tools";

/// Types of tools that run on OpenAI's servers, or that only a client of OpenAI's models runs; versions have a date after
/// them. They are ignored, as if the model did not call them.
const HOSTED_TOOLS: [&str; 13] = [
    "web_search_preview",
    "web_search",
    "file_search",
    "code_interpreter",
    "image_generation",
    "computer_use_preview",
    "computer",
    "mcp",
    "local_shell",
    "shell",
    "apply_patch",
    "tool_search",
    "namespace",
];

/// Returns the type of such a tool, without its date.
pub(crate) fn hosted(kind: &str) -> Option<&'static str> {
    HOSTED_TOOLS
        .into_iter()
        .find(|hosted| kind.strip_prefix(hosted).is_some_and(|date| date.is_empty() || date.starts_with('_')))
}

impl WireTool {
    /// Converts the tool for the gateway. `index` is its index for errors.
    fn into_tool(self, index: usize) -> Result<Tool, ApiError> {
        let path = format!("tools[{index}]");
        if let Some(custom) = self.custom.filter(|_| self.r#type == CUSTOM) {
            return custom.into_tool(&format!("{path}.custom"));
        }
        let Some(function) = self.function.filter(|_| self.r#type == FUNCTION) else {
            let message = format!(
                "{path}: expected a tool of type \"function\" or \"custom\" with its object, found the type {:?}",
                self.r#type
            );
            return Err(ApiError::unsupported_as(&path, message));
        };
        Ok(function.into_tool(format!("{path}.function.parameters")))
    }
}

impl WireFunction {
    /// Converts the function for the gateway. A function without a schema has no parameters. `field` is the name of the
    /// field with the schema.
    pub(crate) fn into_tool(self, field: String) -> Tool {
        Tool {
            name: self.name,
            description: self.description,
            parameters: self.parameters.unwrap_or_else(|| {
                json!({"type": "object", "properties": {}, "additionalProperties": false}).into()
            }),
            strictness: if self.strict == Some(true) { Strictness::Strict } else { Strictness::BestEffort },
            text: None,
            field: Some(field),
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
