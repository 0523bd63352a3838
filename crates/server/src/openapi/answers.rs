//! Types of answers that the document names.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::{SchemaOf, schema_of};
pub(crate) use crate::openai::{
    answer::QuestionAnswers, chat_answer::ChatCompletion, completions::TextCompletion, fill::FilledText,
};
use crate::{
    anthropic::stream::AnthropicEvent,
    openai::{chat_answer::ChatDelta, completions::TextChoice, responses::NumberedEvent, stream::Chunk},
};

/// Returns the schema of the parts of a streamed answer at this path; `None` if they have the form of a whole answer.
pub(super) fn part_of_stream(path: &str) -> Option<SchemaOf> {
    match path {
        "/v1/chat/completions" => Some(schema_of::<Chunk<ChatDelta>>),
        "/v1/completions" => Some(schema_of::<Chunk<TextChoice>>),
        "/v1/responses" => Some(schema_of::<NumberedEvent>),
        "/v1/messages" => Some(schema_of::<AnthropicEvent>),
        _ => None,
    }
}

/// Answer of `/health`, whose handler builds it field by field. Callers without a required key receive only the status.
pub(crate) enum HealthReport {}

impl JsonSchema for HealthReport {
    fn schema_name() -> Cow<'static, str> {
        "HealthReport".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "properties": {
                "status": {"enum": ["ok", "degraded"]},
                "version": {"type": "string"},
                "memory": {"type": "object"},
                "npu": {"type": "object"},
                "models": {"type": "array", "items": {"type": "object"}},
            },
            "required": ["status"],
        })
    }
}
