//! Parameters without effect in an endpoint, for every protocol. They are ignored if their value requires nothing, and a
//! header lists their names.
//!
//! One table lists the hints of all protocols. An endpoint that has a field of its own with the name of a hint reads that
//! field instead.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use super::{
    fields::BodyFields,
    ignored::{CALLER_FIELDS, IgnoredParameters},
};
use crate::error::ApiError;

/// Values of a hint that require nothing. Null, false and empty values count as absent.
#[derive(Debug, Clone, Copy)]
enum NeutralValues {
    All,
    Number(f64),
    Negative,
    True,
    OneOf(&'static [&'static str]),
    /// The number of choices: all of them are the best of as many.
    Choices,
    /// -1, or any value without a penalty: penalties apply to all tokens.
    PenaltyRange,
    /// The order of llama.cpp's samplers.
    SamplerOrder,
}

use NeutralValues::{All, Choices, Negative, Number, OneOf, PenaltyRange, SamplerOrder, True};

/// Hints in the APIs of OpenAI, Ollama and other local servers, besides [`CALLER_FIELDS`].
const HINTS: &[(&str, NeutralValues)] = &[
    ("add_generation_prompt", All),
    ("backend_sampling", All),
    ("best_of", Choices),
    ("cache_prompt", All),
    ("chat_template_kwargs", All),
    ("continue_final_message", All),
    ("dry_allowed_length", All),
    ("dry_base", All),
    ("dry_multiplier", Number(0.0)),
    ("dry_penalty_last_n", All),
    ("dry_sequence_breakers", All),
    ("dynatemp_exponent", All),
    ("dynatemp_range", Number(0.0)),
    ("enable_thinking", All),
    // There are no functions to call, because `functions` is refused.
    ("function_call", OneOf(&["none", "auto"])),
    ("id_slot", Negative),
    // Reasoning is part of the answer, apart from its text, and streamed.
    ("include_reasoning", True),
    ("keep_alive", All),
    ("length_penalty", Number(1.0)),
    ("mirostat", Number(0.0)),
    ("mirostat_eta", All),
    ("mirostat_tau", All),
    ("min_keep", Number(0.0)),
    ("n", Number(1.0)),
    ("n_discard", Number(0.0)),
    ("n_keep", All),
    ("n_probs", Number(0.0)),
    ("parallel_tool_calls", All),
    ("prediction", All),
    ("priority", Number(0.0)),
    ("reasoning_budget", All),
    ("reasoning_control", All),
    ("reasoning_effort", All),
    // Reasoning is divided from the text.
    ("reasoning_format", OneOf(&["auto", "deepseek"])),
    ("repeat_last_n", PenaltyRange),
    ("return_progress", All),
    ("samplers", SamplerOrder),
    ("separate_reasoning", True),
    ("shift", True),
    ("skip_special_tokens", All),
    ("spaces_between_special_tokens", True),
    // Streams that are idle send events without content.
    ("sse_ping_interval", All),
    ("store", All),
    ("stream_options", All),
    ("stream_reasoning", True),
    ("tfs_z", Number(1.0)),
    ("thinking_budget", All),
    ("thinking_budget_tokens", All),
    ("thinking_token_budget", All),
    ("timings_per_token", All),
    // An endpoint without this field has no tools.
    ("tool_choice", OneOf(&["none", "auto"])),
    ("top_a", Number(0.0)),
    ("top_logprobs", Number(0.0)),
    ("top_n_sigma", Negative),
    ("truncate", True),
    ("verbosity", All),
    ("xtc_probability", Number(0.0)),
    ("xtc_threshold", All),
];

/// Hints of OpenAI's responses. OpenAI limits the calls of its own tools, which Narthex does not have.
pub(crate) const OF_RESPONSES: &[&str] =
    &["client_metadata", "max_tool_calls", "context_management", "access_programs"];

/// Hints of Anthropic's messages. The last ones are headers of the API that some proxies send in the body.
pub(crate) const OF_MESSAGES: &[&str] = &[
    "context_management",
    "mcp_servers",
    "container",
    "cache_control",
    "diagnostics",
    "speed",
    "inference_geo",
    "betas",
    "anthropic_beta",
    "anthropic_version",
];

/// Hints of Ollama's embeddings. These options apply to generation and to Ollama's own runtime.
pub(crate) const OF_EMBEDDINGS: &[&str] = &["options"];

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

/// Penalties, and their values without effect.
const PENALTIES: &[(&str, f64)] = &[
    ("repeat_penalty", 1.0),
    ("repetition_penalty", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
];

/// Returns a hint of any endpoint by its name.
fn find(name: &str) -> Option<(&'static str, NeutralValues)> {
    let caller = CALLER_FIELDS.iter().map(|known| (*known, All));
    HINTS.iter().copied().chain(caller).find(|(known, _)| *known == name)
}

/// Returns the name of a hint whose value has no effect, whatever the other fields are.
pub(crate) fn without_effect(name: &str, value: &Value) -> Option<&'static str> {
    let (name, neutral) = find(name)?;
    Hints::default().is_neutral(neutral, value).then_some(name)
}

/// Adds the fields of a body that nothing has read to `ignored`. Call this after all other fields were read. `own` are the
/// hints of the endpoint, whose values have no effect.
///
/// # Errors
/// 400 for a field that is no hint, and for a hint that would require an effect.
pub(crate) fn ignore(
    body: &BodyFields<'_>,
    own: &'static [&'static str],
    ignored: &mut IgnoredParameters,
) -> Result<(), ApiError> {
    let context = Hints::of(body);
    for field in body.unread() {
        let of_endpoint = own.iter().find(|name| **name == field.name).map(|name| (*name, All));
        let Some((name, neutral)) = of_endpoint.or_else(|| find(&field.name)) else {
            return Err(ApiError::unsupported(&field.name));
        };
        // Values that take no parsing are not parsed; one that cannot be parsed is not neutral.
        let is_neutral = matches!(neutral, All)
            || serde_json::from_str(field.json()).is_ok_and(|value| context.is_neutral(neutral, &value));
        if !is_neutral {
            return Err(ApiError::unsupported(name));
        }
        ignored.push(name);
    }
    Ok(())
}

/// Fields of a body on which the effect of hints depends.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Number of choices.
    choices: Option<f64>,
    has_penalty: bool,
}

impl Hints {
    fn of(body: &BodyFields<'_>) -> Self {
        let mut hints = Self::default();
        for field in body.all() {
            let penalty = PENALTIES.iter().find(|(name, _)| *name == field.name);
            if let Some((_, neutral)) = penalty {
                hints.has_penalty |=
                    serde_json::from_str(field.json()).is_ok_and(|penalty: f64| penalty != *neutral);
            }
            if field.name == "n" {
                hints.choices = serde_json::from_str(field.json()).ok();
            }
        }
        hints
    }

    /// Returns true if a value is among these.
    fn is_neutral(&self, neutral: NeutralValues, value: &Value) -> bool {
        match neutral {
            All => true,
            Number(number) => value.as_f64() == Some(number),
            Negative => value.as_i64().is_some_and(|number| number < 0),
            True => *value == true,
            OneOf(values) => value.as_str().is_some_and(|text| values.contains(&text)),
            Choices => value.as_f64() == Some(self.choices.unwrap_or(1.0)),
            PenaltyRange => !self.has_penalty || value.as_f64() == Some(-1.0),
            SamplerOrder => has_default_samplers(value),
        }
    }
}

impl JsonSchema for Hints {
    fn schema_name() -> Cow<'static, str> {
        "Hints".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = HINTS.iter().map(|(name, _)| name).chain(CALLER_FIELDS);
        let fields: Map<String, Value> = names.map(|name| ((*name).to_owned(), json!(true))).collect();
        json_schema!({"type": "object", "properties": fields})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_without_effect_are_ignored_and_named() {
        let check = |body: &str, expect: Result<&[&str], &str>| {
            let fields = BodyFields::divide(body.as_bytes()).unwrap();
            fields.skip(&["model", "repeat_penalty", "presence_penalty"]);
            let mut ignored = IgnoredParameters::default();
            match (ignore(&fields, OF_RESPONSES, &mut ignored), expect) {
                (Ok(()), Ok(names)) => assert_eq!(ignored.names(), names, "{body}"),
                (Err(error), Err(param)) => assert_eq!(error.body()["error"]["param"], param, "{body}"),
                (found, _) => panic!("{body}: {found:?}"),
            }
        };
        check(
            r#"{"model": "m", "store": false, "verbosity": null, "metadata": {}, "samplers": []}"#,
            Ok(&[]),
        );
        check(r#"{"verbosity": "low", "store": true, "user": "u"}"#, Ok(&["verbosity", "store", "user"]));
        check(r#"{"best_of": 1, "mirostat": 0}"#, Ok(&["best_of", "mirostat"]));
        check(r#"{"n": 1, "best_of": 1}"#, Ok(&["n", "best_of"]));
        check(r#"{"n": 2}"#, Err("n"));
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
            r#"{"reasoning_control": true, "sse_ping_interval": 1, "top_n_sigma": -1, "min_keep": 0, "n_discard": 0}"#,
            Ok(&["reasoning_control", "sse_ping_interval", "top_n_sigma", "min_keep", "n_discard"]),
        );
        check(r#"{"top_n_sigma": 2.0}"#, Err("top_n_sigma"));
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
        // Tools, and texts that are too long, are refused in an endpoint without these fields.
        check(
            r#"{"tool_choice": "none", "truncate": true, "shift": true}"#,
            Ok(&["tool_choice", "truncate", "shift"]),
        );
        check(r#"{"tool_choice": "required"}"#, Err("tool_choice"));
        check(r#"{"truncate": "START"}"#, Err("truncate"));
        // Protocols have hints of their own.
        check(r#"{"client_metadata": {"a": "b"}}"#, Ok(&["client_metadata"]));
        check(r#"{"cache_control": {"type": "ephemeral"}}"#, Err("cache_control"));
    }

    #[test]
    fn a_field_of_the_endpoint_is_not_a_hint() {
        let fields = BodyFields::divide(br#"{"best_of": 3, "n": 3, "tool_choice": "required"}"#).unwrap();
        fields.skip(&["n", "tool_choice"]);
        let mut ignored = IgnoredParameters::default();
        ignore(&fields, &[], &mut ignored).unwrap();
        assert_eq!(ignored.names(), ["best_of"]);
    }
}
