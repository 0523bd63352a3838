//! Formats in which models write tool calls and reasoning.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

/// Format of a model's tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "kebab-case")]
pub enum ToolFormat {
    /// An object with `name` and `arguments` between `<tool_call>` and `</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM,
    /// Granite 4, and models whose prompt asks for it.
    Hermes,
    /// The answer is an object with `name` and `parameters`: Llama 3.1 to 3.3.
    LlamaJson,
    /// The answer is a list of Python calls, `[f(a=1), g()]`: Llama 3.2 and 4.
    Pythonic,
    /// Tags for the function and each parameter between `<tool_call>` and `</tool_call>`: Qwen3 Coder.
    QwenCoder,
    /// A list of objects between `<|tool_call|>` and `<|/tool_call|>`: Phi-4 mini.
    Phi4Mini,
    /// A list of objects after `[TOOL_CALLS]`: Mistral.
    Mistral,
    /// A list of objects after `<|tool_call|>`: Granite 3.
    Granite,
    /// The tool's name and a Python call in a code block: ChatGLM3.
    #[serde(rename = "chatglm3")]
    ChatGlm3,
}

impl ToolFormat {
    /// Every format.
    pub const ALL: &'static [Self] = Self::VARIANTS;
}

/// Format of a model's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReasoningFormat {
    /// Between `<think>` and `</think>`.
    Think,
    /// Between `<think>` and `</think>`, before a text between `<response>` and `</response>`: Granite 3.
    ThinkResponse,
    /// Between `[THINK]` and `[/THINK]`: Mistral.
    MistralThink,
}
