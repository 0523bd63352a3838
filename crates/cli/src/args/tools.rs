//! Arguments for tools that a model may call.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narthex_gateway::request::ToolChoice;
use narthex_spec::ToolFormat;

/// Tools of a conversation.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Options for tools")]
pub(crate) struct ToolArgs {
    /// Command line of an MCP server whose tools the model may call, as in "npx -y
    /// @modelcontextprotocol/server-everything"; repeatable
    #[arg(long, value_name = "SERVER")]
    pub(crate) mcp: Vec<String>,

    /// JSON file with tool definitions in OpenAI's format, each with the command that implements it; repeatable
    #[arg(long, value_name = "FILE")]
    pub(crate) tools: Vec<PathBuf>,

    /// Run tool calls without asking
    #[arg(long)]
    pub(crate) yes_tools: bool,

    /// Calls of the first answer: auto, required, none, or the name of a tool; later answers are not restricted
    #[arg(long, value_name = "CHOICE", default_value = "auto", value_parser = tool_choice)]
    pub(crate) tool_choice: ToolChoice,

    /// Format of tool calls instead of the package's, such as hermes; an unknown name lists all formats
    #[arg(long, value_name = "FORMAT", value_parser = tool_format)]
    pub(crate) tool_format: Option<ToolFormat>,

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

/// A format of tool calls, for one model or all.
#[derive(Debug, Clone)]
pub(crate) struct ModelToolFormat {
    /// Name of the model; `None` for all.
    pub(crate) model: Option<String>,
    pub(crate) format: ToolFormat,
}

/// Parses a format of tool calls with the name of its model.
pub(super) fn model_tool_format(text: &str) -> Result<ModelToolFormat, String> {
    let (model, format) = match text.rsplit_once('=') {
        Some((model, _)) if model.trim().is_empty() => {
            return Err(format!("expected a model and a format, as in qwen3:0.6b=hermes, found {text:?}"));
        }
        Some((model, format)) => (Some(model.trim().to_owned()), format),
        None => (None, text),
    };
    Ok(ModelToolFormat { model, format: tool_format(format)? })
}

/// Parses a format of tool calls by its name in manifests.
fn tool_format(text: &str) -> Result<ToolFormat, String> {
    let format = ToolFormat::ALL.iter().copied().find(|format| format.name() == text.trim());
    format.ok_or_else(|| {
        let names: Vec<&str> = ToolFormat::ALL.iter().map(|format| format.name()).collect();
        format!("expected one of {}, found {text:?}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_named_as_in_manifests() {
        assert_eq!(tool_format("phi4-mini"), Ok(ToolFormat::Phi4Mini));
        let error = tool_format("toaster").unwrap_err();
        assert!(error.ends_with(", found \"toaster\""), "{error}");
        for format in ToolFormat::ALL {
            assert_eq!(tool_format(format.name()), Ok(*format));
            assert!(error.contains(format.name()), "{error}");
        }
        let named = model_tool_format(" qwen3:0.6b=chatglm3").unwrap();
        assert_eq!((named.model.as_deref(), named.format), (Some("qwen3:0.6b"), ToolFormat::ChatGlm3));
        assert!(
            model_tool_format("=hermes").is_err() && model_tool_format("hermes").unwrap().model.is_none()
        );
    }
}
