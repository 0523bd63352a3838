//! The parameters that chat and text completions share.

use std::collections::BTreeMap;

use narthex_gateway::request::GenerateOptions;
use serde::Deserialize;
use serde_json::Value;

use crate::error::ApiError;

/// One string or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// `stream_options`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub(crate) struct StreamOptions {
    #[serde(default)]
    pub(crate) include_usage: bool,
}

/// What both endpoints take.
#[derive(Debug, Deserialize)]
pub(crate) struct Sampling {
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<i64>,
    stop: Option<OneOrMany>,
    n: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

impl Sampling {
    /// Its fields in a body.
    pub(crate) const FIELDS: &[&str] = &[
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "stop",
        "n",
        "stream",
        "stream_options",
    ];

    /// Whether the answer is streamed, and whether the stream ends with its usage.
    pub(crate) fn streaming(&self) -> Option<StreamOptions> {
        self.stream.unwrap_or(false).then(|| self.stream_options.unwrap_or_default())
    }

    /// The gateway's options; ranges are checked there.
    pub(crate) fn options(&self, logprobs: Option<usize>) -> Result<GenerateOptions, ApiError> {
        let standard = GenerateOptions::api_defaults();
        Ok(GenerateOptions {
            max_tokens: self.max_completion_tokens.or(self.max_tokens),
            temperature: self.temperature.unwrap_or(standard.temperature),
            top_p: self.top_p.unwrap_or(standard.top_p),
            top_k: self.top_k.unwrap_or(standard.top_k),
            min_p: self.min_p.unwrap_or(standard.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(standard.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(standard.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(standard.frequency_penalty),
            logit_bias: self.logit_bias()?,
            // Any 64-bit seed is a seed; negative ones too.
            seed: self.seed.map(|seed| seed as u64),
            stop: match &self.stop {
                None => Vec::new(),
                Some(OneOrMany::One(stop)) => vec![stop.clone()],
                Some(OneOrMany::Many(stops)) => stops.clone(),
            },
            n: self.n.unwrap_or(1),
            logprobs,
        })
    }

    fn logit_bias(&self) -> Result<BTreeMap<u32, f32>, ApiError> {
        let entries = self.logit_bias.iter().flatten();
        entries
            .map(|(token, bias)| match token.parse() {
                Ok(token) => Ok((token, *bias)),
                Err(_) => {
                    let message = format!("logit_bias: expected token ids as keys, found {token:?}");
                    Err(ApiError::bad_request("logit_bias", message))
                }
            })
            .collect()
    }
}

/// Fields that say something of the caller and nothing of the answer.
const OF_THE_CALLER: &[&str] =
    &["user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"];

/// Refuses every field that is not read, unless it asks for nothing, since ignoring it would give another answer than was
/// asked for.
pub(crate) fn refuse_unread(body: &Value, read: &[&[&str]]) -> Result<(), ApiError> {
    let asks = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        _ => true,
    };
    let is_read = |name: &str| read.iter().chain([&OF_THE_CALLER]).any(|fields| fields.contains(&name));
    let fields = body.as_object().into_iter().flatten();
    match fields.into_iter().find(|(name, value)| !is_read(name) && asks(value)) {
        Some((name, _)) => Err(ApiError::unsupported(name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_read_and_asks_for_something_is_refused() {
        let check = |body: Value, expect: Option<&str>| {
            let found = refuse_unread(&body, &[Sampling::FIELDS, &["model"]]).err().map(|error| error.body());
            assert_eq!(found.as_ref().and_then(|body| body["error"]["param"].as_str()), expect, "{body}");
        };
        check(json!({"model": "m", "seed": 1, "user": "u", "metadata": {"a": "b"}}), None);
        check(json!({"tools": [], "suffix": null, "store": false}), None);
        check(json!({"tools": [1]}), Some("tools"));
        check(json!({"ignore_eos": true}), Some("ignore_eos"));
        check(json!({"reasoning_effort": "low"}), Some("reasoning_effort"));
    }
}
