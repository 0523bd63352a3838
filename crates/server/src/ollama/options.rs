//! `options` and `format` of a request.

use std::time::Duration;

use narthex_gateway::{
    KeepAlive,
    request::{GenerateOptions, Grammar, ReasoningSettings, RequestGrammar, Thinking},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    app::App,
    error::ApiError,
    protocol::{
        hints, ignored::IgnoredParameters, problem::in_words_of_json, reasoning::Effort,
        response_format::GrammarOptions,
    },
};

pub(super) use crate::protocol::options::Sampling;

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

/// Ollama's name of the maximum number of tokens.
const NUM_PREDICT: &str = "num_predict";

/// Ollama's name of the repetition penalty.
const REPEAT_PENALTY: &str = "repeat_penalty";

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

/// Parameter with the time for which a model stays in memory.
const KEEP_ALIVE: &str = "keep_alive";

/// Time that the model of a request stays in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retention {
    /// That of the settings.
    Settings,
    /// This time after the last request.
    For(KeepAlive),
    /// It is removed from memory: `keep_alive: 0`.
    Unload,
}

impl Retention {
    /// Reads a value of `keep_alive`: a number of seconds or a duration as in `5m`, for ever if it is negative. `None` for
    /// others.
    fn new(keep_alive: &Value) -> Option<Self> {
        let keep_alive = match keep_alive {
            Value::Number(seconds) => match seconds.as_f64()? {
                negative if negative < 0.0 => KeepAlive::Forever,
                seconds => KeepAlive::For(Duration::try_from_secs_f64(seconds).ok()?),
            },
            Value::String(text) => match (text.parse(), text.strip_prefix('-')) {
                (Ok(keep_alive), _) => keep_alive,
                (Err(_), Some(duration)) => duration.parse().ok().map(|_: KeepAlive| KeepAlive::Forever)?,
                (Err(_), None) => return None,
            },
            _ => return None,
        };
        Some(if keep_alive == KeepAlive::For(Duration::ZERO) { Self::Unload } else { Self::For(keep_alive) })
    }

    /// Reads a value of `keep_alive`, and adds one without effect to `ignored`.
    pub(super) fn read(keep_alive: Option<&Value>, ignored: &mut IgnoredParameters) -> Self {
        let Some(keep_alive) = keep_alive.filter(|value| !value.is_null()) else { return Self::Settings };
        Self::new(keep_alive).unwrap_or_else(|| {
            ignored.push(KEEP_ALIVE);
            Self::Settings
        })
    }

    /// Returns what applies to a request without work for the model, which may only be refused to unload it.
    pub(super) fn without_work(self, app: &App, ignored: &mut IgnoredParameters) -> Self {
        if self == Self::Unload { self } else { self.permitted_for(app, ignored) }
    }

    /// Returns what applies to a request with work for the model. A caller without admin rights cannot change how long it
    /// stays, because other callers use it too; then the parameter is ignored.
    pub(super) fn permitted_for(self, app: &App, ignored: &mut IgnoredParameters) -> Self {
        if self == Self::Settings || app.meter.caller.is_admin() {
            return self;
        }
        ignored.push(KEEP_ALIVE);
        Self::Settings
    }
}

/// Fields of a body that `/api/chat` and `/api/generate` share.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct AnswerFields {
    stream: Option<bool>,
    options: Option<Map<String, Value>>,
    format: Option<Value>,
    keep_alive: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    pub(super) think: Option<Think>,
}

impl AnswerFields {
    /// Returns true if the answer is streamed, as Ollama does by default.
    pub(super) fn is_streamed(&self) -> bool {
        self.stream != Some(false)
    }

    /// Removes `keep_alive`, and returns the time that it states. Adds one without effect to `ignored`.
    pub(super) fn take_retention(&mut self, ignored: &mut IgnoredParameters) -> Retention {
        Retention::read(self.keep_alive.take().as_ref(), ignored)
    }

    /// Returns the options of the answer, and adds ignored fields to `ignored`. `options` take precedence over the shared
    /// fields.
    ///
    /// # Errors
    /// 400 for values of a wrong type, and for options that Narthex does not support.
    pub(super) fn options(
        self,
        sampling: Sampling,
        shared: GrammarOptions,
        ignored: &mut IgnoredParameters,
    ) -> Result<GenerateOptions, ApiError> {
        let options = read("options", self.options, ignored)?.or(sampling).options()?;
        let logprobs = (self.logprobs == Some(true)).then(|| self.top_logprobs.unwrap_or(0));
        let format = grammar(self.format)?.map(|grammar| RequestGrammar { grammar, field: "format" });
        Ok(GenerateOptions { grammar: shared.grammar(format)?, logprobs, ..options })
    }
}

/// Parses the object `param` of a request: the parameters of the text in every protocol, and those of Ollama.
pub(super) fn read(
    param: &str,
    options: Option<Map<String, Value>>,
    ignored: &mut IgnoredParameters,
) -> Result<Sampling, ApiError> {
    let mut answer = options.unwrap_or_default();
    answer.values_mut().for_each(make_integral);
    // Ollama has no limit for 0, which is not a number of tokens here, and no penalty for 0, which cannot divide.
    answer.retain(|name, value| !value.is_null() && (name != NUM_PREDICT || value.as_i64() != Some(0)));
    if let Some(penalty) = answer.get_mut(REPEAT_PENALTY).filter(|penalty| penalty.as_i64() == Some(0)) {
        *penalty = 1.into();
    }

    for (name, value) in &answer {
        if Sampling::FIELDS.contains(&name.as_str()) {
            continue;
        }
        let runtime = RUNTIME.iter().find(|known| *known == name).copied();
        match runtime.or_else(|| hints::without_effect(name, value)) {
            Some(known) => ignored.push(known),
            None => return Err(ApiError::unsupported(&format!("{param}.{name}"))),
        }
    }
    serde_path_to_error::deserialize(Value::Object(answer)).map_err(|error| {
        let path = format!("{param}.{}", error.path());
        ApiError::bad_request(
            path.clone(),
            format!("{path}: {}", in_words_of_json(&path, &error.inner().to_string())),
        )
    })
}

/// Makes a number without a fraction an integer: Ollama reads integers from floats too.
fn make_integral(value: &mut Value) {
    /// Integers up to here are exact as floats.
    const MAX_EXACT: f64 = 9e15;
    let number = value.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < MAX_EXACT);
    if let Some(number) = number.filter(|_| value.is_f64()) {
        *value = (number as i64).into();
    }
}

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
    fn the_time_in_memory_is_a_number_of_seconds_or_a_duration() {
        let seconds = |seconds| Some(Retention::For(KeepAlive::For(Duration::from_secs(seconds))));
        let forever = Some(Retention::For(KeepAlive::Forever));
        for (value, expect) in [
            (json!(0), Some(Retention::Unload)),
            (json!("0"), Some(Retention::Unload)),
            (json!("0m"), Some(Retention::Unload)),
            (json!(90), seconds(90)),
            (json!("5m"), seconds(300)),
            (json!(-1), forever),
            (json!("-1"), forever),
            (json!("-5m"), forever),
            (json!("soon"), None),
            (json!(true), None),
        ] {
            assert_eq!(Retention::new(&value), expect, "{value}");
        }
    }

    #[test]
    fn options_are_read_ignored_or_refused() {
        let read = |options: Value| {
            let mut ignored = IgnoredParameters::default();
            let Value::Object(options) = options else { panic!("expected an object") };
            super::read("options", Some(options), &mut ignored).map(|options| (options, ignored))
        };
        let (options, ignored) = read(json!({
            "num_predict": 7, "top_k": 40, "stop": "a", "num_ctx": 4096, "mirostat": 0, "num_gpu": null,
        }))
        .unwrap();
        // Options take precedence over parameters outside of them.
        let outside = json!({"n_predict": 9, "top_k": 1, "min_p": 0.5});
        let options = options.or(serde_json::from_value(outside).unwrap()).options().unwrap();
        assert_eq!((options.max_tokens, options.top_k, options.min_p), (Some(7), Some(40), Some(0.5)));
        assert_eq!(options.stop, ["a"]);
        // Clients send integers as floats, and a penalty of 0 for none.
        let floats = read(json!({"num_predict": 7.0, "top_k": 40.0, "repeat_penalty": 0.0})).unwrap().0;
        let floats = floats.options().unwrap();
        let found = (floats.max_tokens, floats.top_k, floats.repetition_penalty);
        assert_eq!(found, (Some(7), Some(40), Some(1.0)));
        let unlimited = read(json!({"num_predict": 0})).unwrap().0;
        assert_eq!(unlimited.options().unwrap().max_tokens, None);
        let mut expect = IgnoredParameters::default();
        ["num_ctx", "mirostat"].into_iter().for_each(|name| expect.push(name));
        assert_eq!(ignored, expect);
        for (options, param) in [
            (json!({"temperature": "hot"}), "options.temperature"),
            (json!({"num_predict": 1.5}), "options.num_predict"),
            (json!({"mirostat": 2}), "options.mirostat"),
            (json!({"temprature": 1}), "options.temprature"),
        ] {
            assert_eq!(read(options).unwrap_err().body()["error"]["param"], param);
        }
    }
}
