//! Formats of tool calls, one in each file, with everything that is particular to it.
//!
//! A new format is a variant of [`ToolFormat`], a file with a [`FormatDefinition`], and a line in [`definition`].
//! `granite` is a short example. `json_calls`, `call_list`, `keywords`, `lark` and `write` in the folder above have the
//! parts that formats share.

mod chatglm3;
mod gemma4;
mod granite;
mod harmony;
mod hermes;
mod lfm2;
mod llama_json;
mod mistral;
mod nemotron;
mod phi4_mini;
mod pythonic;
mod qwen_coder;

#[cfg(test)]
use super::examples::Examples;
use super::{
    CallSyntax, ParserContext,
    lark::{AllowedCalls, FormatRules, Markers},
};
use crate::{
    grammar::GrammarError,
    template::{FunctionCall, Message},
};
use narthex_spec::ToolFormat;

/// Definition that every format has.
pub(super) struct FormatDefinition {
    /// Returns true if a chat template has signs of the format.
    pub(super) is_in: fn(&str) -> bool,
    /// Markers of calls, which may be special tokens: first the one that begins a call, last the one that ends it.
    pub(super) markers: &'static [&'static str],
    /// Creates a parser of an answer; `None` if the format has no calls of the kind.
    pub(super) parser: fn(&ParserContext<'_>) -> Option<Box<dyn CallSyntax + Send>>,
    /// Returns the grammar rules of calls.
    ///
    /// # Errors
    /// A schema cannot be enforced in the format.
    pub(super) rules: fn(&AllowedCalls<'_>) -> Result<FormatRules, GrammarError>,
    /// Appends calls to a message's text.
    pub(super) write: fn(&[FunctionCall], &mut Message),
    pub(super) options: FormatOptions,
    /// Returns the test data, which include answers of models.
    #[cfg(test)]
    pub(super) examples: fn() -> Examples,
}

/// Definitions that only some formats have; the others have [`Self::BASE`].
pub(super) struct FormatOptions {
    /// Markers around the result of a tool, for templates that do not write results.
    pub(super) results: [&'static str; 2],
    /// Changes the ids of a message's calls to the form that templates of the format require.
    pub(super) adapt_ids: fn(&mut Message),
    /// Returns the grammar item of a header before content that has no calls; empty for formats without headers.
    pub(super) content_head: fn(&Markers<'_>) -> String,
}

impl FormatOptions {
    pub(super) const BASE: Self = Self {
        results: ["<tool_response>", "</tool_response>"],
        adapt_ids: |_| (),
        content_head: |_| String::new(),
    };
}

pub(super) fn definition(format: ToolFormat) -> &'static FormatDefinition {
    match format {
        ToolFormat::Hermes => &hermes::FORMAT,
        ToolFormat::HermesFenced => &hermes::FENCED_FORMAT,
        ToolFormat::Gemma4 => &gemma4::FORMAT,
        ToolFormat::Lfm2 => &lfm2::FORMAT,
        ToolFormat::LlamaJson => &llama_json::FORMAT,
        ToolFormat::Pythonic => &pythonic::FORMAT,
        ToolFormat::QwenCoder => &qwen_coder::FORMAT,
        ToolFormat::Phi4Mini => &phi4_mini::FORMAT,
        ToolFormat::Mistral => &mistral::FORMAT,
        ToolFormat::Nemotron => &nemotron::FORMAT,
        ToolFormat::Granite => &granite::FORMAT,
        ToolFormat::Harmony => &harmony::FORMAT,
        ToolFormat::ChatGlm3 => &chatglm3::FORMAT,
    }
}

/// Returns the format of tool calls in a chat template.
pub fn tool_format(template: &str) -> Option<ToolFormat> {
    ToolFormat::ALL.iter().copied().find(|&format| (definition(format).is_in)(template))
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
