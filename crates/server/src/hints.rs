//! Parameters without effect in Narthex, for every protocol. They are ignored if their value requires nothing, and a
//! header lists their names.

use std::{borrow::Cow, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use crate::{
    body,
    error::ApiError,
    ignored::{CALLER_FIELDS, IgnoredParameters},
};

/// Hints about generation, in the APIs of OpenAI and of local servers.
pub(crate) const OF_GENERATION: &[&str] = &[
    "add_generation_prompt",
    "backend_sampling",
    "best_of",
    "cache_prompt",
    "dry_allowed_length",
    "dry_base",
    "dry_multiplier",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "dynatemp_exponent",
    "dynatemp_range",
    "id_slot",
    "keep_alive",
    "length_penalty",
    "mirostat",
    "mirostat_eta",
    "mirostat_tau",
    "n_keep",
    "n_probs",
    "prediction",
    "priority",
    "reasoning_format",
    "repeat_last_n",
    "return_progress",
    "samplers",
    "skip_special_tokens",
    "store",
    "tfs_z",
    "timings_per_token",
    "top_a",
    "use_beam_search",
    "verbosity",
    "xtc_probability",
    "xtc_threshold",
];

/// Hints of OpenAI's responses.
pub(crate) const OF_RESPONSES: &[&str] = &["include", "truncation", "stream_options", "client_metadata"];

/// Hints of Anthropic's messages.
pub(crate) const OF_MESSAGES: &[&str] = &["context_management", "cache_control"];

/// Hints of the options of Ollama's embeddings.
pub(crate) const OF_EMBEDDINGS: &[&str] = &["options", "keep_alive"];

const ALL: [&[&str]; 5] = [CALLER_FIELDS, OF_GENERATION, OF_RESPONSES, OF_MESSAGES, OF_EMBEDDINGS];

/// Returns true if a hint with this value has no effect.
fn is_neutral(name: &str, value: &Value) -> bool {
    match name {
        "add_generation_prompt" | "skip_special_tokens" => *value == true,
        "id_slot" => value.as_i64().is_some_and(|slot| slot < 0),
        "length_penalty" | "tfs_z" => value.as_f64() == Some(1.0),
        "dry_multiplier" | "dynatemp_range" | "mirostat" | "n_probs" | "priority" | "top_a"
        | "xtc_probability" => value.as_f64() == Some(0.0),
        // Reasoning is divided from the text.
        "reasoning_format" => value == "auto" || value == "deepseek",
        "samplers" => has_default_samplers(value),
        "use_beam_search" => false,
        _ => true,
    }
}

/// llama.cpp's samplers by their letters, in its order.
const SAMPLERS: [(char, &[&str]); 9] = [
    ('e', &["penalties"]),
    ('d', &["dry"]),
    ('s', &["top_n_sigma"]),
    ('k', &["top_k"]),
    ('y', &["typ_p", "typical_p", "typical"]),
    ('p', &["top_p"]),
    ('m', &["min_p"]),
    ('x', &["xtc"]),
    ('t', &["temperature", "temp"]),
];

/// Returns true for a list of samplers in llama.cpp's order that has all samplers with parameters in this API. Without
/// one of them, its parameter would have no effect.
fn has_default_samplers(value: &Value) -> bool {
    let by_letter = |letter: char| SAMPLERS.iter().position(|(known, _)| *known == letter);
    let by_name = |name: &str| SAMPLERS.iter().position(|(_, names)| names.contains(&name));
    let places: Option<Vec<usize>> = match value {
        Value::String(names) if names.contains('_') => names.split(';').map(by_name).collect(),
        Value::String(letters) => letters.chars().map(by_letter).collect(),
        Value::Array(names) => names.iter().map(|name| by_name(name.as_str()?)).collect(),
        _ => None,
    };
    let required = "kypmt".chars().filter_map(by_letter);
    places
        .is_some_and(|places| places.is_sorted() && required.into_iter().all(|place| places.contains(&place)))
}

/// Penalties, and their values without effect. `repeat_last_n` is about their range.
const PENALTIES: &[(&str, f64)] = &[
    ("repeat_penalty", 1.0),
    ("repetition_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];

/// The hints of a body.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    found: Vec<Hint>,
}

/// A hint with a value other than null and false.
#[derive(Debug, Clone, Copy)]
struct Hint {
    name: &'static str,
    is_neutral: bool,
}

impl Hints {
    /// Reads the hints of a body among these names. Returns them, or the error of one that would require an effect.
    pub(crate) fn read(body: &[u8], names: &[&[&str]]) -> Result<IgnoredParameters, ApiError> {
        let Self { found } = body::read_fields(body)?;
        let mut ignored = IgnoredParameters::default();
        for Hint { name, is_neutral } in found {
            match names.iter().any(|names| names.contains(&name)) {
                true if is_neutral => ignored.push(name),
                true => return Err(ApiError::unsupported(name)),
                false => {}
            }
        }
        Ok(ignored)
    }
}

impl JsonSchema for Hints {
    fn schema_name() -> Cow<'static, str> {
        "Hints".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = CALLER_FIELDS.iter().chain(OF_GENERATION);
        let fields: Map<String, Value> = names.map(|name| ((*name).to_owned(), json!(true))).collect();
        json_schema!({"type": "object", "properties": fields})
    }
}

impl<'de> Deserialize<'de> for Hints {
    fn deserialize<D: Deserializer<'de>>(body: D) -> Result<Self, D::Error> {
        body.deserialize_map(HintVisitor)
    }
}

struct HintVisitor;

impl<'de> Visitor<'de> for HintVisitor {
    type Value = Hints;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Hints, A::Error> {
        let (mut hints, mut choices, mut best_of) = (Hints::default(), None, None);
        let (mut last_n, mut has_penalty) = (None, false);
        while let Some(field) = fields.next_key::<String>()? {
            if field == "n" {
                choices = fields.next_value::<Value>()?.as_u64();
                continue;
            }
            if let Some((_, neutral)) = PENALTIES.iter().find(|(name, _)| *name == field) {
                let penalty = fields.next_value::<Value>()?.as_f64();
                has_penalty |= penalty.is_some_and(|penalty| penalty != *neutral);
                continue;
            }
            let Some(name) = ALL.into_iter().flatten().find(|name| **name == field) else {
                fields.next_value::<IgnoredAny>()?;
                continue;
            };
            let value: Value = fields.next_value()?;
            if value.is_null() || value == false {
                continue;
            }
            match *name {
                "best_of" => best_of = Some(value.as_f64()),
                "repeat_last_n" => last_n = Some(value.as_f64()),
                name => hints.found.push(Hint { name, is_neutral: is_neutral(name, &value) }),
            }
        }
        // All choices are the best of as many.
        if let Some(best_of) = best_of {
            let is_neutral = best_of == Some(choices.unwrap_or(1) as f64);
            hints.found.push(Hint { name: "best_of", is_neutral });
        }
        // Penalties apply to all tokens, which is -1.
        if let Some(last_n) = last_n {
            let is_neutral = !has_penalty || last_n == Some(-1.0);
            hints.found.push(Hint { name: "repeat_last_n", is_neutral });
        }
        Ok(hints)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_without_effect_are_ignored_and_named() {
        let check = |body: &str, expect: Result<&[&str], &str>| match (
            Hints::read(body.as_bytes(), &[CALLER_FIELDS, OF_GENERATION]),
            expect,
        ) {
            (Ok(ignored), Ok(names)) => assert_eq!(ignored.names(), names, "{body}"),
            (Err(error), Err(param)) => assert_eq!(error.body()["error"]["param"], param, "{body}"),
            (found, _) => panic!("{body}: {found:?}"),
        };
        check(r#"{"model": "m", "store": false, "verbosity": null}"#, Ok(&[]));
        check(r#"{"verbosity": "low", "store": true, "user": "u"}"#, Ok(&["verbosity", "store", "user"]));
        check(r#"{"best_of": 1, "mirostat": 0}"#, Ok(&["mirostat", "best_of"]));
        check(r#"{"best_of": 3, "n": 3}"#, Ok(&["best_of"]));
        check(r#"{"best_of": 2}"#, Err("best_of"));
        check(r#"{"id_slot": -1, "priority": 3}"#, Err("priority"));
        // Settings of samplers that are off have no effect.
        let off = r#"{"dry_multiplier": 0, "dry_base": 1.75, "xtc_probability": 0.0, "xtc_threshold": 0.1, "tfs_z": 1}"#;
        check(off, Ok(&["dry_multiplier", "dry_base", "xtc_probability", "xtc_threshold", "tfs_z"]));
        check(r#"{"dry_multiplier": 0.8, "dry_base": 1.75}"#, Err("dry_multiplier"));
        check(r#"{"xtc_probability": 0.5}"#, Err("xtc_probability"));
        // The web client of llama.cpp.
        let client = r#"{"reasoning_format": "auto", "samplers": ["top_k", "typ_p", "top_p", "min_p", "temperature"]}"#;
        check(client, Ok(&["reasoning_format", "samplers"]));
        check(
            r#"{"samplers": "edskypmxt", "backend_sampling": true}"#,
            Ok(&["samplers", "backend_sampling"]),
        );
        check(r#"{"samplers": "top_k;typ_p;top_p;min_p;temperature"}"#, Ok(&["samplers"]));
        for other in [r#""tkypm""#, r#""kt""#, r#"["top_k", "mystery"]"#, "7"] {
            check(&format!(r#"{{"samplers": {other}}}"#), Err("samplers"));
        }
        check(r#"{"reasoning_format": "none"}"#, Err("reasoning_format"));
        check(
            r#"{"repeat_last_n": 64, "repeat_penalty": 1.0, "presence_penalty": 0}"#,
            Ok(&["repeat_last_n"]),
        );
        check(r#"{"repeat_last_n": -1, "repeat_penalty": 1.1}"#, Ok(&["repeat_last_n"]));
        check(r#"{"repeat_last_n": 64, "repeat_penalty": 1.1}"#, Err("repeat_last_n"));
        // A name is reported once, however often the body has it.
        check(r#"{"user": "a", "user": "b"}"#, Ok(&["user"]));
        // Other protocols have hints of their own.
        check(r#"{"cache_control": {"type": "ephemeral"}}"#, Ok(&[]));
    }
}
