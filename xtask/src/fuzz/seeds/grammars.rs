//! JSON schemas, Lark grammars (no prefix) and regular expressions (after `/`).

use serde_json::{Value, json};

use super::Input;

pub(super) fn seeds() -> Vec<Input> {
    let object = json!({
        "type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": {
            "a": {"type": "integer", "minimum": 3, "maximum": 9},
            "b": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1, "maxItems": 3},
        },
    });
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": {"node": {
            "type": "object", "required": ["v"], "additionalProperties": false,
            "properties": {"v": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "next": {"$ref": "#/$defs/node"}},
        }},
    });
    let union = json!({"anyOf": [{"const": 1}, {"type": "string", "format": "date"}, {"type": "null"}]});
    let nested = (0..60).fold(json!({"type": "null"}), |inner, _| json!({"type": "array", "items": inner}));
    let choices: Vec<Value> = (0..900).map(|number| json!(format!("choice {number}"))).collect();
    vec![
        Input::valid("object", object.to_string()),
        Input::valid("tree", tree.to_string()),
        Input::valid("union", union.to_string()),
        Input::valid("lark", "start: \"a\" (b | NUMBER)+\nb: \"[\" start \"]\"\nNUMBER: /[0-9]{1,3}/\n"),
        Input::valid("regex", "/(yes|no), [a-z]+[.!?]"),
        Input::bomb("nested", nested.to_string()),
        Input::bomb("choices", json!({"enum": choices}).to_string()),
        Input::bomb(
            "count",
            json!({"type": "array", "items": {}, "minItems": 4_000_000_000_u32}).to_string(),
        ),
        Input::bomb(
            "length",
            json!({"type": "string", "minLength": 1_000_000, "maxLength": 2_000_000}).to_string(),
        ),
        Input::valid(
            "numbers",
            json!({"type": "array", "prefixItems": [
                {"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX},
                {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5},
                {"type": "number", "multipleOf": 0.25, "minimum": -1e300},
                {"const": -0.5},
            ], "minItems": 4, "items": false})
            .to_string(),
        ),
        Input::valid(
            "number",
            json!({"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1.5, "multipleOf": 0.01}).to_string(),
        ),
        Input::valid(
            "integer",
            json!({"allOf": [{"type": "integer", "multipleOf": 7}, {"exclusiveMinimum": 0}, {"maximum": 1e18}]}).to_string(),
        ),
        Input::valid(
            "references",
            json!({"$ref": "#/x-types/Box%3Ca~1b%3E", "x-types": {"Box<a/b>": {"type": "string", "format": "date-time"}}})
                .to_string(),
        ),
        Input::valid("schema-in-lark", "start: \"n=\" %json {\"type\": \"integer\", \"maximum\": 1e300}\n"),
        Input::bomb("lowest", json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MIN}).to_string()),
        Input::bomb("constant", json!({"enum": [i64::MIN, u64::MAX, 1e308, 5e-324]}).to_string()),
        Input::bomb(
            "divisor",
            json!({"$ref": "#/$defs/q", "$defs": {"q": {"type": "number", "multipleOf": 2_147_483_648_u32}}})
                .to_string(),
        ),
        Input::bomb("forced", "/(a{1000}){1000}"),
        Input::bomb("cycle", r##"{"$ref": "#"}"##),
        Input::bomb("repeats", "/((((a{1,999}){1,999}){1,999}){1,999}){1,999}"),
        Input::bomb("states", "/(a|b)*a(a|b){24}"),
        Input::bomb("ambiguous", "start: start start | \"a\" | \"\"\n"),
        Input::bomb("brackets", format!("/{}", "(".repeat(5000))),
    ]
}
