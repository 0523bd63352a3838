//! Formats of tool calls, one in each file, with everything that is particular to it.
//!
//! A new format is a variant of [`ToolFormat`], a file with a [`FormatDefinition`], and a line each in [`definition`]
//! and in [`DETECTION_ORDER`]. `granite` is a short example. `json_calls`, `keywords`, `lark` and `write` in the folder
//! above have the parts that formats share.

mod chatglm3;
mod granite;
mod hermes;
mod llama_json;
mod mistral;
mod phi4_mini;
mod pythonic;
mod qwen_coder;

#[cfg(test)]
use super::examples::Examples;
use super::{
    CallSyntax, ParserContext,
    lark::{AllowedCalls, FormatRules},
};
use crate::{
    grammar::GrammarError,
    template::{FunctionCall, Message},
};
use narthex_spec::ToolFormat;

pub(super) struct FormatDefinition {
    /// Returns true if a chat template has signs of the format.
    pub(super) is_in: fn(&str) -> bool,
    /// Markers of calls.
    pub(super) markers: &'static [&'static str],
    /// Creates a parser of an answer; `None` if the format has no calls of the kind.
    pub(super) parser: fn(&ParserContext<'_>) -> Option<Box<dyn CallSyntax + Send>>,
    pub(super) rules: fn(&AllowedCalls<'_>) -> Result<FormatRules, GrammarError>,
    /// Appends calls to a message's text.
    pub(super) write: fn(&[FunctionCall], &mut Message),
    /// Changes the ids of a message's calls to the form that templates of the format require.
    pub(super) adapt_ids: fn(&mut Message),
    /// Returns the test data, which include answers of models.
    #[cfg(test)]
    pub(super) examples: fn() -> Examples,
}

pub(super) fn definition(format: ToolFormat) -> &'static FormatDefinition {
    match format {
        ToolFormat::Hermes => &hermes::FORMAT,
        ToolFormat::LlamaJson => &llama_json::FORMAT,
        ToolFormat::Pythonic => &pythonic::FORMAT,
        ToolFormat::QwenCoder => &qwen_coder::FORMAT,
        ToolFormat::Phi4Mini => &phi4_mini::FORMAT,
        ToolFormat::Mistral => &mistral::FORMAT,
        ToolFormat::Granite => &granite::FORMAT,
        ToolFormat::ChatGlm3 => &chatglm3::FORMAT,
    }
}

/// All formats, in the order in which a chat template is searched for their signs. A template may have signs of
/// several, so the more particular format comes first: the template of Qwen3 Coder also has the markers of Hermes.
pub(super) const DETECTION_ORDER: [ToolFormat; 8] = [
    ToolFormat::QwenCoder,
    ToolFormat::Hermes,
    ToolFormat::Mistral,
    ToolFormat::Phi4Mini,
    ToolFormat::Granite,
    ToolFormat::Pythonic,
    ToolFormat::LlamaJson,
    ToolFormat::ChatGlm3,
];

/// Returns the format of tool calls in a chat template.
pub fn tool_format(template: &str) -> Option<ToolFormat> {
    DETECTION_ORDER.into_iter().find(|&format| (definition(format).is_in)(template))
}

/// Returns the markers of a format. They may be special tokens, which the answer's text must then include.
pub fn markers(format: ToolFormat) -> &'static [&'static str] {
    definition(format).markers
}

/// Appends calls in the format of a model to a message's text. The markers around them count as written by the
/// template, since its own calls would have them. ChatGLM3's format has one call; others follow it as text.
pub fn write_calls(format: ToolFormat, calls: &[FunctionCall], message: &mut Message) {
    (definition(format).write)(calls, message);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_place_in_the_order() {
        assert_eq!(DETECTION_ORDER.len(), ToolFormat::ALL.len());
        for format in ToolFormat::ALL {
            assert!(DETECTION_ORDER.contains(format), "{format:?}");
        }
    }
}
