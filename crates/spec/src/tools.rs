//! Formats in which models write tool calls and reasoning.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// Format of a model's tool calls.
///
/// A chat template is searched for the signs of the formats in this order. It may have signs of several, so the more
/// particular format comes first: the template of Qwen3 Coder also has the markers of Hermes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, VariantArray, IntoStaticStr)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum ToolFormat {
    /// Tags for the function and each parameter between `<tool_call>` and `</tool_call>`: Qwen3 Coder.
    QwenCoder,
    /// An object with `name` and `arguments` between `<tool_call>` and `</tool_call>`: Hermes, Qwen 2.5 and 3, SmolLM,
    /// Granite 4, and models whose prompt asks for it.
    Hermes,
    /// As Hermes, and also without these markers or in a code fence: Qwen 2.5 Coder, whose template asks for the markers.
    HermesFenced,
    /// A message of the channel `commentary` to a function: gpt-oss.
    Harmony,
    /// A list of objects between `<TOOLCALL>` and `</TOOLCALL>`: Nemotron.
    Nemotron,
    /// A list of objects after `[TOOL_CALLS]`: Mistral.
    Mistral,
    /// A list of objects between `<|tool_call|>` and `<|/tool_call|>`: Phi-4 mini.
    Phi4Mini,
    /// A list of objects after `<|tool_call|>`: Granite 3.
    Granite,
    /// A list of Python calls between `<|tool_call_start|>` and `<|tool_call_end|>`: LFM2 and LFM2.5.
    Lfm2,
    /// A name and arguments in a notation of its own between `<|tool_call>` and `<tool_call|>`: Gemma 4.
    Gemma4,
    /// The answer is a list of Python calls, `[f(a=1), g()]`: Llama 3.2 and 4.
    Pythonic,
    /// The answer is an object with `name` and `parameters`: Llama 3.1 to 3.3.
    LlamaJson,
    /// The tool's name and a Python call in a code block: ChatGLM3.
    #[serde(rename = "chatglm3")]
    #[strum(serialize = "chatglm3")]
    ChatGlm3,
}

impl ToolFormat {
    /// Every format.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Returns the format in which a template writes calls for this one.
    pub fn of_template(self) -> Self {
        match self {
            Self::HermesFenced => Self::Hermes,
            other => other,
        }
    }

    /// Returns the name in manifests and settings.
    pub fn name(self) -> &'static str {
        self.into()
    }
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
    /// Between `<|channel>thought` and `<channel|>`: Gemma 4.
    ThoughtChannel,
    /// Messages of the channel `analysis`: gpt-oss.
    Harmony,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_one_name() {
        for format in ToolFormat::ALL {
            assert_eq!(serde_json::to_value(format).unwrap(), format.name());
        }
    }
}
