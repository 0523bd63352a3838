//! Generation options: their ranges in the API, and the engine's sampling settings.

use std::sync::atomic::{AtomicU64, Ordering};

use narthex_engine::{executor::Limits, request::Sampling};
use narthex_spec::manifest::PublishedSampling;

use crate::{error::Error, serve::request::GenerateOptions};

/// Maximum choices of one request.
const MAX_CHOICES: usize = 128;

/// Maximum stop strings of one request.
const MAX_STOPS: usize = 16;

/// Maximum bytes of a stop string.
const MAX_STOP_BYTES: usize = 256;

/// Maximum alternatives per token.
const MAX_LOGPROBS: usize = 20;

/// Smallest number of tokens that a request may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    /// One.
    Some,
    /// None, since the prompt is part of the answer.
    None,
}

/// Checks every option against the API's range.
pub(super) fn check(options: &GenerateOptions, length: Length) -> Result<(), Error> {
    in_range("temperature", options.temperature.unwrap_or(0.0), 0.0, 2.0)?;
    in_range("top_p", options.top_p.unwrap_or(1.0), 0.0, 1.0)?;
    in_range("min_p", options.min_p.unwrap_or(0.0), 0.0, 1.0)?;
    in_range("typical_p", options.typical_p, 0.0, 1.0)?;
    in_range("presence_penalty", options.presence_penalty, -2.0, 2.0)?;
    in_range("frequency_penalty", options.frequency_penalty, -2.0, 2.0)?;
    in_range("repetition_penalty", options.repetition_penalty.unwrap_or(1.0), 0.01, 100.0)?;
    for &bias in options.logit_bias.values() {
        in_range("logit_bias", bias, -100.0, 100.0)?;
    }
    at_most("n", options.n, MAX_CHOICES)?;
    at_most("stop", options.stop.len(), MAX_STOPS)?;
    at_most("top_logprobs", options.logprobs.unwrap_or(0), MAX_LOGPROBS)?;

    if options.n == 0 {
        return Err(Error::invalid("n", "expected at least 1, found 0"));
    }
    if options.max_tokens == Some(0) && length == Length::Some {
        return Err(Error::invalid("max_tokens", "expected at least 1, found 0"));
    }
    if options.max_tokens.is_some_and(|most| options.min_tokens > most) {
        let message = format!("expected at most max_tokens, found {}", options.min_tokens);
        return Err(Error::invalid("min_tokens", message));
    }
    if options.stop.iter().any(String::is_empty) {
        return Err(Error::invalid("stop", "expected non-empty strings, found an empty one"));
    }
    if let Some(long) = options.stop.iter().find(|stop| stop.len() > MAX_STOP_BYTES) {
        let found = long.len();
        let message = format!("expected strings of at most {MAX_STOP_BYTES} bytes, found one of {found}");
        return Err(Error::invalid("stop", message));
    }
    Ok(())
}

/// Returns the sampling settings of the first choice. Values that the request does not state are those of the publisher,
/// unless the request asks for a greedy answer.
pub(super) fn sampling(
    options: &GenerateOptions,
    published: &PublishedSampling,
    limits: &Limits,
) -> Result<Sampling, Error> {
    if let Some(bad) = options.logit_bias.keys().find(|&&token| token as usize >= limits.vocab) {
        return Err(Error::invalid(
            "logit_bias",
            format!("token {bad} is not below the vocabulary size {}", limits.vocab),
        ));
    }
    let published = if options.temperature == Some(0.0) { PublishedSampling::default() } else { *published };
    Ok(Sampling {
        temperature: options.temperature.or(published.temperature).unwrap_or(options.default_temperature),
        top_k: options.top_k.or(published.top_k).unwrap_or(0),
        top_p: options.top_p.or(published.top_p).unwrap_or(1.0),
        min_p: options.min_p.or(published.min_p).unwrap_or(0.0),
        typical_p: options.typical_p,
        repetition_penalty: options.repetition_penalty.or(published.repetition_penalty).unwrap_or(1.0),
        presence_penalty: options.presence_penalty,
        frequency_penalty: options.frequency_penalty,
        logit_bias: options.logit_bias.iter().map(|(&token, &bias)| (token, bias)).collect(),
        seed: options.seed.unwrap_or_else(unique_number),
    })
}

/// Returns a number that differs at each call and in each process, for seeds and ids. It is no secret.
pub fn unique_number() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed))
}

fn in_range(param: &'static str, found: f32, low: f32, high: f32) -> Result<(), Error> {
    if found >= low && found <= high {
        Ok(())
    } else {
        Err(Error::invalid(param, format!("expected a number from {low} to {high}, found {found}")))
    }
}

/// Fails unless a number of the request is from 1 to `limit`.
pub(super) fn check_count(param: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if (1..=limit).contains(&found) {
        return Ok(());
    }
    Err(Error::invalid(param, format!("expected 1 to {limit}, found {found}")))
}

pub(super) fn at_most(param: &'static str, found: usize, limit: usize) -> Result<(), Error> {
    if found <= limit {
        Ok(())
    } else {
        Err(Error::invalid(param, format!("expected at most {limit}, found {found}")))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn options_out_of_range_name_their_parameter() {
        let check_refused = |change: fn(&mut GenerateOptions), expected: &str| {
            let mut options = GenerateOptions::api_defaults();
            change(&mut options);
            match check(&options, Length::Some) {
                Err(Error::Invalid { param, message }) => {
                    assert_eq!(param, expected);
                    assert!(message.contains("expected") && message.contains("found"), "{message}");
                }
                other => panic!("{expected}: {other:?}"),
            }
        };
        check(&GenerateOptions::api_defaults(), Length::Some).unwrap();
        let none = GenerateOptions { max_tokens: Some(0), ..GenerateOptions::api_defaults() };
        check(&none, Length::None).unwrap();
        let stop = vec!["x".repeat(MAX_STOP_BYTES)];
        check(&GenerateOptions { stop, ..GenerateOptions::api_defaults() }, Length::Some).unwrap();
        check_refused(|o| o.temperature = Some(2.5), "temperature");
        check_refused(|o| o.temperature = Some(f32::NAN), "temperature");
        check_refused(|o| o.top_p = Some(-0.1), "top_p");
        check_refused(|o| o.n = 0, "n");
        check_refused(|o| o.n = 1000, "n");
        check_refused(|o| o.max_tokens = Some(0), "max_tokens");
        check_refused(|o| (o.max_tokens, o.min_tokens) = (Some(3), 4), "min_tokens");
        check_refused(|o| o.typical_p = 1.5, "typical_p");
        check_refused(|o| o.stop = vec![String::new()], "stop");
        check_refused(|o| o.stop = vec!["x".repeat(MAX_STOP_BYTES + 1)], "stop");
        check_refused(|o| o.logprobs = Some(21), "top_logprobs");
        check_refused(|o| o.logit_bias = BTreeMap::from([(1, 101.0)]), "logit_bias");
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(unique_number(), unique_number());
    }
}
