//! Schemas of answers that handlers build field by field. A test validates answers of a server against them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Value, json};

/// Declares types that represent schemas.
macro_rules! schemas {
    ($($(#[$doc:meta])* $name:ident = $schema:expr;)*) => {$(
        $(#[$doc])*
        pub(crate) enum $name {}

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                object($schema)
            }
        }
    )*};
}

/// Returns the schema of an object with these fields. Every field is required, except those made by `optional`.
fn object(fields: Value) -> Schema {
    let mut schema = Schema::default();
    let is_required = |field: &Value| field.get("optional").is_none();
    let mut properties = fields;
    let required: Vec<String> = properties
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, field)| is_required(field))
        .map(|(name, _)| name.clone())
        .collect();
    for field in properties.as_object_mut().into_iter().flat_map(|fields| fields.values_mut()) {
        if let Some(field) = field.as_object_mut() {
            field.remove("optional");
        }
    }
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("properties".to_owned(), properties);
    schema.insert("required".to_owned(), json!(required));
    schema
}

fn string() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn list(items: Value) -> Value {
    json!({"type": "array", "items": items})
}

/// Returns the schema of an object inside another.
fn nested(fields: Value) -> Value {
    object(fields).to_value()
}

fn nullable(kind: &str) -> Value {
    json!({"type": [kind, "null"]})
}

fn usage() -> Value {
    nested(json!({
        "prompt_tokens": count(),
        "completion_tokens": count(),
        "total_tokens": count(),
        "prompt_tokens_details": nested(json!({"cached_tokens": count()})),
        "completion_tokens_details": nested(json!({
            "reasoning_tokens": count(),
            "accepted_prediction_tokens": count(),
            "rejected_prediction_tokens": count(),
        })),
    }))
}

fn prompt_usage() -> Value {
    nested(json!({"prompt_tokens": count(), "total_tokens": count()}))
}

/// Returns the fields of a completion with choices of this form.
fn completion(object: &str, choice: Value) -> Value {
    json!({
        "id": string(),
        "object": {"const": object},
        "created": count(),
        "model": string(),
        "system_fingerprint": string(),
        "choices": list(choice),
        "usage": usage(),
        "timings": timings(),
    })
}

fn timings() -> Value {
    let time = || json!({"type": "number", "minimum": 0, "optional": true});
    nested(json!({
        "device": string(),
        "cache_n": count(),
        "prompt_n": count(),
        "predicted_n": count(),
        "draft_n": count(),
        "draft_n_accepted": count(),
        "prompt_ms": time(),
        "prompt_per_second": time(),
        "predicted_ms": time(),
        "predicted_per_second": time(),
    }))
}

fn finish_reason() -> Value {
    json!({"enum": ["stop", "length", "tool_calls", null]})
}

fn chat_choice() -> Value {
    let function = nested(json!({"name": string(), "arguments": string()}));
    let call = nested(json!({"id": string(), "type": {"const": "function"}, "function": function}));
    let message = json!({
        "role": {"const": "assistant"},
        "content": nullable("string"),
        "refusal": nullable("string"),
        "reasoning_content": {"type": ["string", "null"], "optional": true},
        "tool_calls": {"type": "array", "items": call, "optional": true},
    });
    nested(json!({
        "index": count(),
        "message": nested(message),
        "logprobs": nullable("object"),
        "finish_reason": finish_reason(),
        "stop_reason": {"const": "malformed_tool_call", "optional": true},
    }))
}

fn text_choice() -> Value {
    nested(json!({
        "index": count(),
        "text": string(),
        "logprobs": nullable("object"),
        "finish_reason": finish_reason(),
    }))
}

fn span() -> Value {
    nested(json!({
        "text": string(),
        "start": count(),
        "end": count(),
        "start_byte": count(),
        "end_byte": count(),
        "score": {"type": "number"},
    }))
}

fn filling() -> Value {
    nested(json!({"token": count(), "text": string(), "score": {"type": "number"}}))
}

fn optional(mut schema: Value) -> Value {
    schema["optional"] = json!(true);
    schema
}

schemas! {
    /// Answer of `/v1/chat/completions`.
    ChatCompletion = completion("chat.completion", chat_choice());
    /// Answer of `/v1/completions`.
    TextCompletion = completion("text_completion", text_choice());
    /// Answer of `/v1/answer`.
    QuestionAnswers = json!({
        "object": {"const": "answer"},
        "model": string(),
        "answer": nullable("string"),
        "no_answer_score": {"type": "number"},
        "answers": list(span()),
        "usage": prompt_usage(),
    });
    /// Answer of `/v1/fill`: predictions for masks, or a generated text.
    FilledText = json!({
        "object": {"const": "fill"},
        "model": string(),
        "masks": optional(list(list(filling()))),
        "text": optional(string()),
        "generated": optional(string()),
        "tokens": optional(list(filling())),
        "usage": prompt_usage(),
    });
    /// Answer of `/health`. Callers without a required key receive only the status.
    HealthReport = json!({
        "status": {"enum": ["ok", "degraded"]},
        "version": optional(string()),
        "memory": optional(json!({"type": "object"})),
        "npu": optional(json!({"type": "object"})),
        "models": optional(list(json!({"type": "object"}))),
    });
}
