//! Custom tools, whose input is a text: as functions for the gateway, and their calls.

use narthex_gateway::request::{ExactJson, Grammar, Strictness, TextArgument, Tool};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::ApiError;

/// Type of a custom tool, of its calls and of its choice.
pub(crate) const CUSTOM: &str = "custom";

/// Argument that has the input.
const INPUT: &str = "input";

/// A custom tool.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct CustomTool {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// Form of the input; any text if it is absent.
    pub(crate) format: Option<CustomFormat>,
}

/// Form of a custom tool's input.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum CustomFormat {
    /// Any text.
    Text,
    /// A text of a grammar. The responses API has its fields here, the chat API in `grammar`.
    Grammar { syntax: Option<GrammarSyntax>, definition: Option<String>, grammar: Option<GrammarSource> },
}

#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct GrammarSource {
    syntax: GrammarSyntax,
    definition: String,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GrammarSyntax {
    Lark,
    Regex,
}

impl CustomTool {
    /// Returns the tool as a function. Its calls are strict, so that they have the input. `path` is its path for errors.
    pub(crate) fn into_tool(self, path: &str) -> Result<Tool, ApiError> {
        let source = self.format.map_or(Ok(None), |format| format.source(path))?;
        let mut parameters = parameters();
        if let Some(GrammarSource { syntax, definition }) = &source {
            let kind = match syntax {
                GrammarSyntax::Lark => "Lark grammar",
                GrammarSyntax::Regex => "regular expression",
            };
            parameters["properties"][INPUT]["description"] =
                format!("Text that follows this {kind}:\n{definition}").into();
        }
        let text = source.map(|source| {
            let grammar = match source.syntax {
                GrammarSyntax::Lark => Grammar::Lark(source.definition),
                GrammarSyntax::Regex => Grammar::Regex(source.definition),
            };
            TextArgument { name: INPUT.to_owned(), grammar }
        });
        Ok(Tool {
            name: self.name,
            description: self.description,
            parameters: parameters.into(),
            strictness: Strictness::Strict,
            text,
            field: Some(format!("{path}.format")),
        })
    }
}

impl CustomFormat {
    /// Returns the grammar; `None` for any text.
    fn source(self, path: &str) -> Result<Option<GrammarSource>, ApiError> {
        let Self::Grammar { syntax, definition, grammar } = self else { return Ok(None) };
        let flat = syntax.zip(definition).map(|(syntax, definition)| GrammarSource { syntax, definition });
        flat.or(grammar).map(Some).ok_or_else(|| {
            let path = format!("{path}.format");
            ApiError::bad_request(
                path.clone(),
                format!("{path}: expected a grammar with syntax and definition"),
            )
        })
    }
}

/// Returns the schema of a custom tool's arguments: the input, which the model writes as one argument.
fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {INPUT: {"type": "string"}},
        "required": [INPUT],
        "additionalProperties": false,
    })
}

/// Returns the arguments of a custom tool's call with this input.
pub(crate) fn arguments(input: &str) -> ExactJson {
    json!({INPUT: input}).into()
}

/// Returns the input of a custom tool's call. If the arguments were cut off, returns the input up to the cut; if they have
/// no input, their text.
pub(crate) fn input(arguments: &str) -> String {
    let value: Option<Value> = serde_json::from_str(arguments).ok();
    let input = value.as_ref().and_then(|value| Some(value[INPUT].as_str()?.to_owned()));
    input.or_else(|| cut_input(arguments)).unwrap_or_else(|| arguments.to_owned())
}

/// Returns the input in arguments that were cut off.
fn cut_input(arguments: &str) -> Option<String> {
    /// Bytes of the longest escape without its last one, and of a cut character: `\ud83d\ude0`.
    const MAX_CUT: usize = 11;
    let name = arguments.trim_start().strip_prefix('{')?.trim_start();
    let rest = name.strip_prefix('"')?.strip_prefix(INPUT)?.strip_prefix('"')?;
    let quoted = rest.trim_start().strip_prefix(':')?.trim_start();
    let whole = serde_json::Deserializer::from_str(quoted).into_iter::<String>().next()?;
    let ends = (quoted.len().saturating_sub(MAX_CUT)..=quoted.len()).rev();
    whole.ok().or_else(|| {
        ends.filter_map(|end| quoted.get(..end))
            .find_map(|text| serde_json::from_str(&format!("{text}\"")).ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(format: Value) -> Result<Tool, ApiError> {
        let tool = json!({"name": "patch", "description": "Edits.", "format": format});
        serde_json::from_value::<CustomTool>(tool).unwrap().into_tool("tools[0]")
    }

    #[test]
    fn inputs_survive() {
        for text in ["", "*** Begin Patch\n\"a\"", "{\"input\": 1}"] {
            assert_eq!(input(&arguments(text).to_string()), text);
        }
    }

    #[test]
    fn an_input_ends_where_its_arguments_were_cut_off() {
        let text = "é \"a\"\n😀";
        let ascii = r#"{"input" : "\u00e9 \"a\"\n\ud83d\ude00"}"#;
        let start = ascii.find(": \"").unwrap() + 3;
        for end in start..ascii.len() {
            let found = input(&ascii[..end]);
            assert!(text.starts_with(&found), "{}: {found}", &ascii[..end]);
        }
        assert_eq!(input(&ascii[..ascii.len() - 1]), text);
        assert_eq!(input(&ascii[..ascii.len() - 3]), "é \"a\"\n");
        for text in ["", "{", "{\"inp", "{\"input\": ", "{\"input\": 1}", "{\"other\": \"a\"}"] {
            assert_eq!(input(text), text);
        }
    }

    #[test]
    fn grammars_have_the_form_of_both_apis() {
        let source = |syntax: &str| json!({"syntax": syntax, "definition": "a"});
        let mut of_responses = source("regex");
        of_responses["type"] = json!("grammar");
        for (format, expect) in [
            (of_responses, Grammar::Regex("a".to_owned())),
            (json!({"type": "grammar", "grammar": source("lark")}), Grammar::Lark("a".to_owned())),
        ] {
            let tool = tool(format).unwrap();
            assert_eq!(tool.text.unwrap().grammar, expect);
            let told = &tool.parameters["properties"]["input"]["description"];
            assert!(told.as_str().unwrap().ends_with(":\na"), "{told}");
        }
        for format in [Value::Null, json!({"type": "text"})] {
            let tool = tool(format).unwrap();
            assert_eq!((tool.text, tool.parameters), (None, parameters().into()));
        }
        let refused = tool(json!({"type": "grammar", "syntax": "lark"})).unwrap_err().body();
        assert_eq!(refused["error"]["param"], "tools[0].format", "{refused}");
    }
}
