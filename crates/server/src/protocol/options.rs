//! Parameters of the endpoints that generate text.

use std::collections::BTreeMap;

use narthex_gateway::request::{GenerateOptions, Repetition, SpecialTokens, StopTokens};
use narthex_spec::Speculation;
use schemars::JsonSchema;
use serde::Deserialize;

use super::text_or_list::TextOrList;
use crate::error::ApiError;

/// `stream_options`.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: Option<bool>,
}

/// Choices of chat and text completions, and their stream.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ChoiceOptions {
    #[schemars(range(min = 1, max = 128))]
    n: Option<usize>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
}

impl ChoiceOptions {
    /// Returns the number of choices.
    pub(crate) fn n(&self) -> usize {
        self.n.unwrap_or(1)
    }

    /// Returns the options of the stream if the answer is streamed.
    pub(crate) fn streaming(&self) -> Option<StreamOptions> {
        self.stream.unwrap_or(false).then(|| self.stream_options.unwrap_or_default())
    }
}

/// Parameters of the text in every protocol.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct Sampling {
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    n_predict: Option<i64>,
    num_predict: Option<i64>,
    ignore_eos: Option<bool>,
    #[schemars(range(min = 0.0, max = 2.0))]
    temperature: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    top_p: Option<f32>,
    top_k: Option<i64>,
    #[schemars(range(min = 0.0, max = 1.0))]
    min_p: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    typical_p: Option<f32>,
    #[schemars(range(min = 0.0, max = 1.0))]
    typ_p: Option<f32>,
    min_tokens: Option<usize>,
    end_at_repetition: Option<bool>,
    #[schemars(range(min = 0.01, max = 100.0))]
    repetition_penalty: Option<f32>,
    #[schemars(range(min = 0.01, max = 100.0))]
    repeat_penalty: Option<f32>,
    #[schemars(range(min = -2.0, max = 2.0))]
    presence_penalty: Option<f32>,
    #[schemars(range(min = -2.0, max = 2.0))]
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<Seed>,
    draft: Option<bool>,
    stop: Option<TextOrList<String>>,
    skip_special_tokens: Option<bool>,
}

/// `seed`: any integer of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected an integer of 64 bits")]
enum Seed {
    Signed(i64),
    Unsigned(u64),
}

impl Seed {
    fn bits(self) -> u64 {
        match self {
            Self::Signed(seed) => seed as u64,
            Self::Unsigned(seed) => seed,
        }
    }
}

impl Sampling {
    /// Names of the fields.
    pub(crate) const FIELDS: &[&str] = &[
        "max_tokens",
        "max_completion_tokens",
        "n_predict",
        "num_predict",
        "ignore_eos",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "typ_p",
        "min_tokens",
        "end_at_repetition",
        "repetition_penalty",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "seed",
        "draft",
        "stop",
        "skip_special_tokens",
    ];

    /// Returns these parameters, and others where they are absent.
    pub(crate) fn or(self, others: Self) -> Self {
        Self {
            max_tokens: self.max_tokens.or(others.max_tokens),
            max_completion_tokens: self.max_completion_tokens.or(others.max_completion_tokens),
            n_predict: self.predicted().or(others.predicted()),
            num_predict: None,
            ignore_eos: self.ignore_eos.or(others.ignore_eos),
            temperature: self.temperature.or(others.temperature),
            top_p: self.top_p.or(others.top_p),
            top_k: self.top_k.or(others.top_k),
            min_p: self.min_p.or(others.min_p),
            typical_p: self.typical_p().or(others.typical_p()),
            typ_p: None,
            min_tokens: self.min_tokens.or(others.min_tokens),
            end_at_repetition: self.end_at_repetition.or(others.end_at_repetition),
            repetition_penalty: self.repetition_penalty().or(others.repetition_penalty()),
            repeat_penalty: None,
            presence_penalty: self.presence_penalty.or(others.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(others.frequency_penalty),
            logit_bias: self.logit_bias.or(others.logit_bias),
            seed: self.seed.or(others.seed),
            draft: self.draft.or(others.draft),
            stop: self.stop.or(others.stop),
            skip_special_tokens: self.skip_special_tokens.or(others.skip_special_tokens),
        }
    }

    /// Returns true if a maximum number of tokens was given, or -1 in llama.cpp's field.
    pub(crate) fn has_limit(&self) -> bool {
        self.max_completion_tokens.is_some() || self.max_tokens.is_some() || self.predicted().is_some()
    }

    fn typical_p(&self) -> Option<f32> {
        self.typical_p.or(self.typ_p)
    }

    fn repetition_penalty(&self) -> Option<f32> {
        self.repetition_penalty.or(self.repeat_penalty)
    }

    /// Returns the maximum number of tokens in the fields of llama.cpp and Ollama.
    fn predicted(&self) -> Option<i64> {
        self.n_predict.or(self.num_predict)
    }

    /// Returns the maximum number of tokens. -1 in llama.cpp's field means no limit.
    fn max_tokens(&self) -> Option<usize> {
        let predicted = self.predicted().and_then(|tokens| usize::try_from(tokens).ok());
        self.max_completion_tokens.or(self.max_tokens).or(predicted)
    }

    /// Returns the gateway's options for one choice. The gateway checks their ranges.
    pub(crate) fn options(&self) -> Result<GenerateOptions, ApiError> {
        let standard = GenerateOptions::api_defaults();
        Ok(GenerateOptions {
            max_tokens: self.max_tokens(),
            temperature: self.temperature,
            top_p: self.top_p,
            // -1 means all tokens, as in other servers.
            top_k: self.top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            min_p: self.min_p,
            typical_p: self.typical_p().unwrap_or(standard.typical_p),
            min_tokens: self.min_tokens.unwrap_or(standard.min_tokens),
            repetition_penalty: self.repetition_penalty(),
            presence_penalty: self.presence_penalty.unwrap_or(standard.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(standard.frequency_penalty),
            logit_bias: self.logit_bias()?,
            seed: self.seed.map(Seed::bits),
            stop: self.stop.clone().map(TextOrList::into_texts).unwrap_or_default(),
            speculation: if self.draft == Some(false) { Speculation::Off } else { Speculation::Auto },
            repetition: if self.end_at_repetition == Some(true) {
                Repetition::End
            } else {
                Repetition::Allow
            },
            stop_tokens: if self.ignore_eos == Some(true) { StopTokens::Never } else { StopTokens::End },
            special_tokens: match self.skip_special_tokens {
                Some(false) => SpecialTokens::Show,
                Some(true) | None => SpecialTokens::Skip,
            },
            ..standard
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_with_two_names_may_have_both() {
        let both = json!({
            "repeat_penalty": 1.5, "repetition_penalty": 1.25, "typ_p": 0.5, "typical_p": null, "num_predict": 7,
            "n_predict": null,
        });
        let options = serde_json::from_value::<Sampling>(both).unwrap().options().unwrap();
        let found = (options.repetition_penalty, options.typical_p, options.max_tokens);
        assert_eq!(found, (Some(1.25), 0.5, Some(7)));
    }

    #[test]
    fn seeds_have_64_bits() {
        let seed = |seed: serde_json::Value| {
            let read = serde_json::from_value::<Sampling>(json!({"seed": seed}));
            read.map(|sampling| sampling.seed.map(Seed::bits)).map_err(|error| error.to_string())
        };
        assert_eq!(seed(json!(-1)), Ok(Some(u64::MAX)));
        assert_eq!(seed(json!(u64::MAX)), Ok(Some(u64::MAX)));
        assert_eq!(seed(json!(null)), Ok(None));
        assert!(seed(json!(1.5)).unwrap_err().contains("expected an integer of 64 bits"));
    }

    #[test]
    fn minus_one_is_no_limit_in_the_field_of_llama_cpp() {
        let check = |fields: serde_json::Value, is_given: bool, expect: Option<usize>| {
            let sampling: Sampling = serde_json::from_value(fields.clone()).unwrap();
            assert_eq!((sampling.has_limit(), sampling.max_tokens()), (is_given, expect), "{fields}");
        };
        check(json!({}), false, None);
        check(json!({"n_predict": -1}), true, None);
        check(json!({"max_tokens": 7, "max_completion_tokens": 9}), true, Some(9));
        check(json!({"max_tokens": 7, "n_predict": 3}), true, Some(7));
        check(json!({"max_tokens": null, "n_predict": -2}), true, None);
        assert!(serde_json::from_value::<Sampling>(json!({"max_tokens": -1})).is_err());
    }
}
