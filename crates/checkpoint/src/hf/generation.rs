//! `generation_config.json`: ids of special tokens, and the sampling that the publisher recommends.

use narthex_spec::manifest::PublishedSampling;
use serde::Deserialize;

use super::{config::TokenIds, folder::Folder};
use crate::Result;

const FILE: &str = "generation_config.json";

/// The keys that are read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct GenerationConfig {
    /// Ids of special tokens.
    #[serde(flatten)]
    pub(super) ids: TokenIds,
    /// Sampling settings.
    #[serde(flatten)]
    pub(super) sampling: SamplingKeys,
}

/// Keys of the sampling settings.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SamplingKeys {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    /// Some files state an integer as a float, or -1 for all tokens.
    top_k: Option<f64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

/// Reads the file. Its keys are absent if it does not exist.
pub(super) fn read(folder: &mut Folder) -> Result<GenerationConfig> {
    Ok(folder.json(FILE, "a generation configuration")?.unwrap_or_default())
}

impl SamplingKeys {
    /// Returns the recommended sampling. As in `generate`, `do_sample: false` is greedy, and a sampled answer has a
    /// temperature of 1 unless the file states another.
    pub(super) fn published(self) -> PublishedSampling {
        let Self { do_sample, temperature, top_p, top_k, min_p, repetition_penalty } = self;
        if do_sample == Some(false) {
            let greedy =
                PublishedSampling { temperature: Some(0.0), repetition_penalty, ..Default::default() };
            return greedy.within_ranges();
        }
        let default = (do_sample == Some(true)).then_some(1.0);
        let top_k = top_k.filter(|count| *count > 0.0).map(|count| count as usize);
        let temperature = temperature.or(default);
        PublishedSampling { temperature, top_p, top_k, min_p, repetition_penalty }.within_ranges()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::open;

    fn sampling(settings: Value) -> Result<PublishedSampling> {
        let folder = tempfile::tempdir().unwrap();
        narthex_testkit::checkpoint::tiny_llama_safetensors(folder.path(), 1).unwrap();
        std::fs::write(folder.path().join(FILE), settings.to_string()).unwrap();
        Ok(open(folder.path())?.sampling)
    }

    #[test]
    fn the_sampling_of_the_publisher_is_read() {
        let none = PublishedSampling::default();
        let check = |settings: Value, expect| assert_eq!(sampling(settings).unwrap(), expect);
        check(json!({}), none);
        check(json!({"eos_token_id": [2], "temperature": null}), none);
        check(
            json!({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.1}),
            PublishedSampling {
                temperature: Some(0.7),
                top_p: Some(0.8),
                top_k: Some(20),
                repetition_penalty: Some(1.1),
                min_p: None,
            },
        );
        let warm = PublishedSampling { temperature: Some(1.0), ..none };
        check(json!({"do_sample": true, "top_k": 64.0}), PublishedSampling { top_k: Some(64), ..warm });
        check(json!({"min_p": 0.05}), PublishedSampling { min_p: Some(0.05), ..none });
    }

    #[test]
    fn greedy_publishers_and_unusable_values_are_understood() {
        let none = PublishedSampling::default();
        let greedy = PublishedSampling { temperature: Some(0.0), ..none };
        let check = |settings: Value, expect| assert_eq!(sampling(settings).unwrap(), expect);
        check(json!({"do_sample": false, "temperature": 0.6, "top_p": 0.9}), greedy);
        check(
            json!({"do_sample": false, "repetition_penalty": 1.2}),
            PublishedSampling { repetition_penalty: Some(1.2), ..greedy },
        );
        check(json!({"temperature": 9.0, "top_p": 0.0, "top_k": -1, "repetition_penalty": 0.0}), none);
        let error = sampling(json!({"temperature": "warm"})).unwrap_err().to_string();
        assert!(error.contains(FILE) && error.contains("a generation configuration"), "{error}");
    }
}
