//! `options` and `format` of a request.

use narthex_gateway::request::{GenerateOptions, Grammar, ReasoningSettings, Thinking};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    error::ApiError, ignored::IgnoredParameters, openai::reasoning::Effort, text_or_list::TextOrList,
};

/// `think`: a switch or a level.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a boolean or a level such as \"low\"")]
pub(super) enum Think {
    Switch(bool),
    Level(Effort),
}

impl Think {
    /// Returns the name of the parameter if it was given.
    pub(super) fn name(given: Option<Self>) -> Vec<&'static str> {
        given.map(|_| "think").into_iter().collect()
    }

    /// Returns the gateway's settings.
    pub(super) fn settings(self) -> ReasoningSettings {
        match self {
            Self::Level(effort) => effort.settings(),
            Self::Switch(is_on) => {
                let thinking = if is_on { Thinking::On } else { Thinking::Off };
                ReasoningSettings { thinking, ..ReasoningSettings::default() }
            }
        }
    }
}

/// Options with an effect on the answer.
#[derive(Debug, Default, Deserialize)]
struct AnswerOptions {
    num_predict: Option<i64>,
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    seed: Option<i64>,
    stop: Option<TextOrList<String>>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
}

/// Names of these options.
const ANSWER: &[&str] = &[
    "num_predict",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
];

/// Options of Ollama's own runtime. They are ignored in favour of the server's settings.
const RUNTIME: &[&str] = &[
    "num_ctx",
    "num_batch",
    "num_gpu",
    "num_keep",
    "num_thread",
    "main_gpu",
    "low_vram",
    "f16_kv",
    "use_mmap",
    "use_mlock",
    "numa",
    "vocab_only",
    "logits_all",
    "embedding_only",
    "repeat_last_n",
    "penalize_newline",
    "mirostat_tau",
    "mirostat_eta",
    "draft_num_predict",
];

/// Options that are ignored if they have this value, which has no effect.
const NEUTRAL: &[(&str, f64)] = &[("mirostat", 0.0), ("tfs_z", 1.0)];

/// Returns true if `keep_alive` asks to unload the model at once.
pub(super) fn is_zero(keep_alive: Option<&Value>) -> bool {
    match keep_alive {
        Some(Value::Number(seconds)) => seconds.as_f64() == Some(0.0),
        Some(Value::String(duration)) => duration.trim_end_matches(['s', 'm', 'h']) == "0",
        _ => false,
    }
}

/// Fields of a body that `/api/chat` and `/api/generate` share.
pub(super) struct AnswerFields {
    pub(super) options: Option<Map<String, Value>>,
    pub(super) format: Option<Value>,
    pub(super) keep_alive: Option<Value>,
    pub(super) logprobs: Option<bool>,
    pub(super) top_logprobs: Option<usize>,
}

impl AnswerFields {
    /// Returns the options of the answer, and adds ignored fields to `ignored`.
    ///
    /// # Errors
    /// 400 for values of a wrong type, and for options that Narthex does not support.
    pub(super) fn read(self, ignored: &mut IgnoredParameters) -> Result<GenerateOptions, ApiError> {
        if self.keep_alive.is_some() {
            ignored.push("keep_alive");
        }
        let options = read(self.options, ignored)?;
        let logprobs = (self.logprobs == Some(true)).then(|| self.top_logprobs.unwrap_or(0));
        Ok(GenerateOptions { grammar: grammar(self.format)?, logprobs, ..options })
    }
}

/// Parses the `options` object of a request.
fn read(
    options: Option<Map<String, Value>>,
    ignored: &mut IgnoredParameters,
) -> Result<GenerateOptions, ApiError> {
    let mut answer = options.unwrap_or_default();
    answer.retain(|_, value| !value.is_null());
    for (name, value) in &answer {
        let neutral = NEUTRAL.iter().find(|(known, _)| known == name);
        if let Some(known) = RUNTIME.iter().find(|known| *known == name) {
            ignored.push(known);
        } else if let Some((known, _)) = neutral.filter(|(_, neutral)| value.as_f64() == Some(*neutral)) {
            ignored.push(known);
        } else if !ANSWER.contains(&name.as_str()) {
            return Err(ApiError::unsupported(&format!("options.{name}")));
        }
    }
    let options: AnswerOptions =
        serde_path_to_error::deserialize(Value::Object(answer)).map_err(|error| {
            let path = format!("options.{}", error.path());
            ApiError::bad_request(path.clone(), format!("{path}: {}", error.inner()))
        })?;
    Ok(options.into_gateway())
}

impl AnswerOptions {
    fn into_gateway(self) -> GenerateOptions {
        let standard = GenerateOptions::api_defaults();
        // A negative number means no limit.
        let count = |value: Option<i64>| value.and_then(|value| usize::try_from(value).ok());
        GenerateOptions {
            max_tokens: count(self.num_predict),
            temperature: self.temperature.unwrap_or(standard.temperature),
            top_k: count(self.top_k).unwrap_or(standard.top_k),
            top_p: self.top_p.unwrap_or(standard.top_p),
            min_p: self.min_p.unwrap_or(standard.min_p),
            typical_p: self.typical_p.unwrap_or(standard.typical_p),
            seed: self.seed.map(|seed| seed as u64),
            stop: self.stop.map(TextOrList::into_texts).unwrap_or_default(),
            repetition_penalty: self.repeat_penalty.unwrap_or(standard.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(standard.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(standard.frequency_penalty),
            ..standard
        }
    }
}

/// Returns the grammar of `format`.
fn grammar(format: Option<Value>) -> Result<Option<Grammar>, ApiError> {
    match format {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) if text == "json" => Ok(Some(Grammar::json_object())),
        Some(schema @ Value::Object(_)) => Ok(Some(Grammar::JsonSchema(schema))),
        Some(other) => {
            let message = format!("format: expected \"json\" or a JSON schema, found {other}");
            Err(ApiError::bad_request("format", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_time_of_zero_unloads_the_model() {
        for (value, expect) in [
            (json!(0), true),
            (json!("0"), true),
            (json!("0m"), true),
            (json!(-1), false),
            (json!("5m"), false),
        ] {
            assert_eq!(is_zero(Some(&value)), expect, "{value}");
        }
        assert!(!is_zero(None));
    }

    #[test]
    fn options_are_read_ignored_or_refused() {
        let read = |options: Value| {
            let mut ignored = IgnoredParameters::default();
            let Value::Object(options) = options else { panic!("expected an object") };
            super::read(Some(options), &mut ignored).map(|options| (options, ignored))
        };
        let (options, ignored) = read(json!({
            "num_predict": -1, "top_k": 40, "stop": "a", "num_ctx": 4096, "mirostat": 0, "num_gpu": null,
        }))
        .unwrap();
        assert_eq!((options.max_tokens, options.top_k, options.stop), (None, 40, vec!["a".to_owned()]));
        let mut expect = IgnoredParameters::default();
        ["num_ctx", "mirostat"].into_iter().for_each(|name| expect.push(name));
        assert_eq!(ignored, expect);
        for (options, param) in [
            (json!({"temperature": "hot"}), "options.temperature"),
            (json!({"mirostat": 2}), "options.mirostat"),
            (json!({"temprature": 1}), "options.temprature"),
        ] {
            assert_eq!(read(options).unwrap_err().body()["error"]["param"], param);
        }
    }
}
