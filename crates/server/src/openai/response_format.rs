//! `response_format`.

use narthex_gateway::request::Grammar;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

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
}

impl ResponseFormat {
    /// Returns the grammar of the answer; `None` for any text.
    pub(crate) fn into_grammar(self) -> Option<Grammar> {
        match self {
            Self::Text => None,
            Self::JsonObject { schema: None }
            | Self::JsonSchema { json_schema: NamedSchema { schema: None } } => Some(Grammar::json_object()),
            Self::JsonObject { schema: Some(schema) }
            | Self::JsonSchema { json_schema: NamedSchema { schema: Some(schema) } } => {
                Some(Grammar::JsonSchema(schema))
            }
        }
    }
}
