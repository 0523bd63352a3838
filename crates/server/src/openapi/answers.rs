//! Schema of the answer that its handler builds field by field.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// Answer of `/health`. Callers without a required key receive only the status.
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
