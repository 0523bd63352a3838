//! Arguments for tools that a model may call.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narthex_gateway::request::ToolChoice;

/// Tools of a conversation.
#[derive(Debug, ClapArgs)]
pub(crate) struct ToolArgs {
    /// Command line of an MCP server whose tools the model may call, as in "npx -y @modelcontextprotocol/server-everything";
    /// repeatable
    #[arg(long, value_name = "SERVER")]
    pub(crate) mcp: Vec<String>,

    /// JSON file with definitions of tools in OpenAI's form, each with the command that is the tool; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Vec<PathBuf>,

    /// Run the model's calls without a question
    #[arg(long)]
    pub(crate) yes_tools: bool,

    /// Calls of the first answer: auto, required, none, or the name of a tool; later answers are free
    #[arg(long, value_name = "CHOICE", default_value = "auto", value_parser = tool_choice)]
    pub(crate) tool_choice: ToolChoice,

    /// Maximum number of rounds of calls for one question
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) tool_rounds: usize,
}

/// Parses a choice between calls and text.
fn tool_choice(text: &str) -> Result<ToolChoice, String> {
    match text {
        "" => Err("expected auto, required, none, or the name of a tool".to_owned()),
        "auto" => Ok(ToolChoice::Auto),
        "required" => Ok(ToolChoice::Required),
        "none" => Ok(ToolChoice::None),
        name => Ok(ToolChoice::Function(name.to_owned())),
    }
}
