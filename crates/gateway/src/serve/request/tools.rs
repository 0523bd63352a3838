//! Tools that a model may call, and the calls in its answer.

pub use narthex_text::tools::CallLimit;
use narthex_text::{exact_json::ExactJson, grammar::Grammar};

/// Tools of a request.
///
/// ```
/// use narthex_gateway::request::{Strictness, Tool, ToolChoice, ToolSettings};
/// use serde_json::json;
///
/// let tool = Tool {
///     name: "get_weather".to_owned(),
///     description: Some("Weather of a city".to_owned()),
///     parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}}).into(),
///     strictness: Strictness::Strict,
///     text: None,
///     field: None,
/// };
/// let settings = ToolSettings { tools: vec![tool], ..ToolSettings::default() };
/// assert_eq!(settings.choice, ToolChoice::Auto);
/// ```
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
    /// Name, for which [`Self::is_name`] is true.
    pub name: String,
    /// Description for the model.
    pub description: Option<String>,
    /// JSON schema of the arguments, an object.
    pub parameters: ExactJson,
    /// Guarantee for the arguments.
    pub strictness: Strictness,
    /// Form of an argument that is a text; `None` if the schema describes all arguments.
    pub text: Option<TextArgument>,
    /// Name of the field with the schema or the grammar in errors, such as `tools[0].function.parameters`; `None` for
    /// `tools`.
    pub field: Option<String>,
}

/// An argument whose text follows a grammar. The tool's declaration does not include the grammar.
#[derive(Debug, Clone, PartialEq)]
pub struct TextArgument {
    /// Name of a property of the schema.
    pub name: String,
    /// Grammar of its text: one in Lark without recursion, or a regular expression.
    pub grammar: Grammar,
}

impl Tool {
    /// Maximum length of a name.
    pub const MAX_NAME: usize = 128;

    /// Returns whether a text has 1 to [`Self::MAX_NAME`] characters, all of which a name may have.
    pub fn is_name(text: &str) -> bool {
        (1..=Self::MAX_NAME).contains(&text.len()) && text.chars().all(Self::is_name_char)
    }

    /// Returns whether a name may have a character: an ASCII letter, a digit, `_`, `-` or `.`.
    pub fn is_name_char(char: char) -> bool {
        char.is_ascii_alphanumeric() || "_-.".contains(char)
    }
}

/// Guarantee for the arguments of a call that the model chooses to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strictness {
    /// The arguments may violate the schema.
    BestEffort,
    /// The arguments are valid under the schema.
    Strict,
}

/// Choice between calls and text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// Only text. The model does not see the tools.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        let check = |text: &str, expect| assert_eq!(Tool::is_name(text), expect, "{text:?}");
        check("get_weather-2.v1", true);
        check("7", true);
        check(&"a".repeat(Tool::MAX_NAME), true);
        check(&"a".repeat(Tool::MAX_NAME + 1), false);
        check("", false);
        check("a b", false);
        check("fs/read", false);
        check("größe", false);
    }
}
