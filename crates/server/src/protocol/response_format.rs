//! `response_format`, and other grammars of an answer.

use narthex_gateway::request::{Grammar, RequestGrammar, best_effort};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::body;
use crate::error::ApiError;

/// Grammar of the answer's text, in OpenAI's API and in the APIs of other local servers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct GrammarOptions {
    #[serde(default, deserialize_with = "body::filled")]
    response_format: Option<ResponseFormat>,
    /// Lark grammar.
    grammar: Option<String>,
    /// Regular expression of the whole text.
    regex: Option<String>,
}

impl GrammarOptions {
    /// Returns the grammar with its field; `None` for any text. `own` is that of the protocol's own parameter.
    ///
    /// # Errors
    /// 400 for more than one grammar.
    pub(crate) fn grammar(self, own: Option<RequestGrammar>) -> Result<Option<RequestGrammar>, ApiError> {
        let format = self.response_format.and_then(ResponseFormat::into_grammar);
        let [lark, regex] = [self.grammar.map(Grammar::Lark), self.regex.map(Grammar::Regex)];
        let given = [format, lark, regex].into_iter().flatten().map(RequestGrammar::from);
        let mut given = own.into_iter().chain(given);
        match (given.next(), given.next()) {
            (Some(RequestGrammar { field: first, .. }), Some(RequestGrammar { field: second, .. })) => {
                let message =
                    format!("{second}: expected one grammar, found also {first}; remove one of them");
                Err(ApiError::bad_request(second, message))
            }
            (grammar, _) => Ok(grammar),
        }
    }
}

/// Form of the answer's text.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseFormat {
    /// Any text.
    Text,
    /// A JSON object. Some servers accept its schema here.
    JsonObject {
        /// JSON schema.
        schema: Option<Value>,
    },
    /// JSON that is valid under a schema.
    JsonSchema {
        /// The schema and its name.
        json_schema: NamedSchema,
    },
}

/// A schema with a name, which is ignored. The schema is always enforced, even without `strict`.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct NamedSchema {
    schema: Option<Value>,
    /// `false` leaves out the keywords that cannot be enforced, which are otherwise refused.
    strict: Option<bool>,
}

impl ResponseFormat {
    /// Returns the grammar of the answer; `None` for any text.
    pub(crate) fn into_grammar(self) -> Option<Grammar> {
        match self {
            Self::Text => None,
            Self::JsonObject { schema: None }
            | Self::JsonSchema { json_schema: NamedSchema { schema: None, .. } } => {
                Some(Grammar::json_object())
            }
            Self::JsonObject { schema: Some(schema) } => Some(schema_grammar(schema, None)),
            Self::JsonSchema { json_schema: NamedSchema { schema: Some(schema), strict } } => {
                Some(schema_grammar(schema, strict))
            }
        }
    }
}

/// Returns the grammar of a schema, without the keywords that cannot be enforced if `strict` is false.
pub(crate) fn schema_grammar(schema: Value, strict: Option<bool>) -> Grammar {
    Grammar::JsonSchema(if strict == Some(false) { best_effort(&schema) } else { schema })
}
