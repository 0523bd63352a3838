//! Beam search over the tokens of a window. Follows `BeamSearchDecoder` and `MaximumLikelihoodRanker` of OpenAI's
//! `decoding.py`.

use narthex_engine::speech::SpeechModel;
use narthex_spec::{TokenId, manifest::SpeechEntry};

use super::rules;
use crate::{error::Error, load::verify::compare::log_sum_exp, serve::request::BeamSearch};

/// Tokens of a window, and the sum of the logarithms of their probabilities.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ScoredTokens {
    /// Without the end.
    pub(super) tokens: Vec<TokenId>,
    /// With the end, if the tokens have one.
    pub(super) sum: f32,
    /// Logarithm of the probability of each token.
    pub(super) log_probabilities: Vec<f32>,
}

impl ScoredTokens {
    /// Returns the score by which results are ranked.
    fn score(&self, length_penalty: Option<f32>) -> f32 {
        let length = self.tokens.len() as f32;
        let penalty = match length_penalty {
            None => length.max(1.0),
            Some(exponent) => ((5.0 + length) / 6.0).powf(exponent),
        };
        self.sum / penalty
    }
}

/// Search for the likeliest tokens after a prompt that the model has read.
pub(super) struct WindowSearch<'a> {
    pub(super) speech: &'a SpeechEntry,
    pub(super) settings: BeamSearch,
    /// Number of tokens of the prompt.
    pub(super) prompt: usize,
    /// Logits after the prompt.
    pub(super) first: &'a [f32],
    /// Maximum number of tokens.
    pub(super) max_tokens: usize,
}

/// A token that may follow a beam.
#[derive(Debug, Clone, Copy)]
struct Candidate {
    /// Index of the beam.
    beam: usize,
    token: TokenId,
    log_probability: f32,
    /// Sum for the beam and the token.
    sum: f32,
}

impl WindowSearch<'_> {
    /// Returns the best tokens. `on_token` is called before every step of a beam.
    pub(super) fn run(
        &self,
        model: &mut dyn SpeechModel,
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<ScoredTokens, Error> {
        let BeamSearch { size, length_penalty, .. } = self.settings;
        let max_finished = self.settings.max_finished();
        let mut beams = vec![ScoredTokens::default()];
        let mut finished: Vec<ScoredTokens> = Vec::new();
        // Tokens after the prompt that the model has read.
        let mut cached = Vec::new();
        for _ in 0..self.max_tokens {
            let mut next = Vec::with_capacity(size);
            for candidate in self.candidates(model, &beams, &mut cached, on_token)? {
                if next.len() == size {
                    break;
                }
                let Candidate { beam, token, log_probability, sum } = candidate;
                let mut extended = ScoredTokens { sum, ..beams[beam].clone() };
                if token != self.speech.end {
                    extended.tokens.push(token);
                    extended.log_probabilities.push(log_probability);
                    next.push(extended);
                } else if finished.len() < max_finished {
                    finished.push(extended);
                }
            }
            beams = next;
            if finished.len() >= max_finished || beams.is_empty() {
                break;
            }
        }

        // Unfinished beams, the best first, follow if fewer than `size` have finished.
        let missing = size.saturating_sub(finished.len());
        finished.extend(beams.into_iter().take(missing));
        // Of equal results, the first is the best.
        let best = finished
            .into_iter()
            .rev()
            .max_by(|a, b| a.score(length_penalty).total_cmp(&b.score(length_penalty)));
        Ok(best.unwrap_or_default())
    }

    /// Returns the tokens that may follow the beams, the likeliest first.
    fn candidates(
        &self,
        model: &mut dyn SpeechModel,
        beams: &[ScoredTokens],
        cached: &mut Vec<TokenId>,
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<Vec<Candidate>, Error> {
        // Beams that have most tokens in common run one after the other, so that few tokens are read again.
        let mut order: Vec<usize> = (0..beams.len()).collect();
        order.sort_by(|&a, &b| beams[a].tokens.cmp(&beams[b].tokens));
        let mut of_beams = vec![Vec::new(); beams.len()];
        for beam in order {
            on_token()?;
            let ScoredTokens { tokens, sum, .. } = &beams[beam];
            let mut logits = self.logits(model, tokens, cached)?;
            rules::apply(self.speech, tokens, &mut logits);
            let total = log_sum_exp(&logits);
            let best = best_tokens(&logits, self.settings.size + 1);
            of_beams[beam] = best
                .into_iter()
                .map(|token| {
                    let log_probability = (f64::from(logits[token]) - total) as f32;
                    Candidate { beam, token: token as TokenId, log_probability, sum: sum + log_probability }
                })
                .collect();
        }

        let mut candidates = of_beams.concat();
        candidates.sort_by(|a, b| b.sum.total_cmp(&a.sum));
        Ok(candidates)
    }

    /// Returns the logits after the prompt and these tokens. Reads the tokens that follow those in common with `cached`.
    fn logits(
        &self,
        model: &mut dyn SpeechModel,
        tokens: &[TokenId],
        cached: &mut Vec<TokenId>,
    ) -> Result<Vec<f32>, Error> {
        let Some((_, before)) = tokens.split_last() else { return Ok(self.first.to_vec()) };
        let common = before.iter().zip(cached.iter()).take_while(|(token, read)| token == read).count();
        let rest = &tokens[common..];
        cached.clear();
        cached.extend_from_slice(tokens);
        Ok(model.decode(self.prompt + common, rest, &[rest.len() - 1])?.to_vec())
    }
}

/// Returns the tokens with the highest logits, at most `count`, the highest first. Forbidden tokens are left out.
fn best_tokens(logits: &[f32], count: usize) -> Vec<usize> {
    let mut tokens: Vec<usize> =
        (0..logits.len()).filter(|&token| logits[token] > f32::NEG_INFINITY).collect();
    let descending = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]);
    if count < tokens.len() {
        tokens.select_nth_unstable_by(count, descending);
        tokens.truncate(count);
    }
    tokens.sort_by(descending);
    tokens
}

#[cfg(test)]
mod tests {
    use narthex_engine::{
        executor::StepError,
        speech::{SpeechLimits, check_decode},
    };
    use serde::Deserialize;

    use super::*;

    /// Tokens of `tests/goldens/beam/beam_search.py`.
    const END: TokenId = 20;
    const NO_TIMESTAMPS: TokenId = 21;
    const START: TokenId = 22;
    const FIRST_TIMESTAMP: TokenId = 23;
    const VOCAB: usize = 36;

    #[derive(Deserialize)]
    struct Case {
        seed: u32,
        most: usize,
        beams: usize,
        patience: Option<f32>,
        length_penalty: Option<f32>,
        tokens: Vec<TokenId>,
        sum: f32,
    }

    fn cases() -> Vec<Case> {
        serde_json::from_str(include_str!("../../../../tests/goldens/beam/beam_search.json")).unwrap()
    }

    /// A model with the logits of `tests/goldens/beam/beam_search.py`, which depend on all tokens.
    struct GeneratedModel {
        limits: SpeechLimits,
        seed: u32,
        tokens: Vec<TokenId>,
        logits: Vec<f32>,
        /// Number of tokens that were read.
        read: usize,
    }

    impl GeneratedModel {
        fn new(seed: u32) -> Self {
            let limits = SpeechLimits {
                bins: 80,
                frames: 3000,
                positions: 1500,
                takes_short_windows: false,
                context: 32,
                vocab: VOCAB,
                alignment_heads: 0,
            };
            Self { limits, seed, tokens: Vec::new(), logits: Vec::new(), read: 0 }
        }

        /// Returns the logits after tokens that follow the start.
        fn after(&self, tokens: &[TokenId]) -> Vec<f32> {
            let step = |state: u32, value: u32| {
                let mixed = value.wrapping_mul(2_654_435);
                state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223).wrapping_add(mixed)
            };
            let mut state = tokens.iter().fold(self.seed, |state, token| step(state, token + 1));
            let mut logits: Vec<f32> = (0..VOCAB)
                .map(|_| {
                    state = step(state, 0);
                    ((f64::from(state >> 8) / f64::from(1 << 24)) * 8.0 - 4.0) as f32
                })
                .collect();
            logits[END as usize] += tokens.len() as f32 * 0.5;
            logits
        }
    }

    impl SpeechModel for GeneratedModel {
        fn limits(&self) -> &SpeechLimits {
            &self.limits
        }

        fn encode(&mut self, _: &[f32]) -> Result<(), StepError> {
            self.tokens.clear();
            Ok(())
        }

        fn decode(&mut self, at: usize, tokens: &[TokenId], rows: &[usize]) -> Result<&[f32], StepError> {
            check_decode(&self.limits, self.tokens.len(), at, tokens, rows)?;
            self.tokens.truncate(at);
            self.tokens.extend_from_slice(tokens);
            self.read += tokens.len();
            self.logits = rows.iter().flat_map(|row| self.after(&self.tokens[1..=at + row])).collect();
            Ok(&self.logits)
        }

        fn alignment(&mut self) -> Result<Vec<f32>, StepError> {
            Ok(Vec::new())
        }
    }

    fn speech() -> SpeechEntry {
        SpeechEntry {
            end: END,
            start: START,
            no_timestamps: NO_TIMESTAMPS,
            first_timestamp: FIRST_TIMESTAMP,
            suppress: vec![2, NO_TIMESTAMPS, START],
            ..SpeechEntry::default()
        }
    }

    fn search(
        model: &mut GeneratedModel,
        settings: BeamSearch,
        max_tokens: usize,
    ) -> Result<ScoredTokens, Error> {
        let first = model.decode(0, &[START], &[0])?.to_vec();
        let search = WindowSearch { speech: &speech(), settings, prompt: 1, first: &first, max_tokens };
        search.run(model, &mut || Ok(()))
    }

    #[test]
    fn results_are_those_of_openai_whisper() {
        let cases = cases();
        assert_eq!(cases.len(), 72);
        for case in &cases {
            let settings = BeamSearch {
                patience: case.patience.unwrap_or(1.0),
                length_penalty: case.length_penalty,
                ..BeamSearch::new(case.beams)
            };
            let found = search(&mut GeneratedModel::new(case.seed), settings, case.most).unwrap();
            let name = format!("seed {}, {settings:?}, at most {}", case.seed, case.most);
            assert_eq!(found.tokens, case.tokens, "{name}");
            assert!((found.sum - case.sum).abs() < 1e-3, "{name}: {} and {}", found.sum, case.sum);
            // The end is part of the sum alone.
            let of_tokens: f32 = found.log_probabilities.iter().sum();
            assert!(found.log_probabilities.len() == found.tokens.len() && of_tokens >= found.sum - 1e-3);
        }
        // More beams find likelier tokens.
        let sum = |seed: u32, beams: usize| {
            let of_seed = |case: &&Case| case.seed == seed && case.beams == beams && case.most == 14;
            cases.iter().find(of_seed).map(|case| case.sum / case.tokens.len() as f32).unwrap()
        };
        assert!((1..7).filter(|&seed| sum(seed, 5) > sum(seed, 1) + 0.01).count() >= 3);
    }

    #[test]
    fn tokens_in_common_are_not_read_again() {
        let mut model = GeneratedModel::new(1);
        search(&mut model, BeamSearch::new(5), 14).unwrap();
        // Five beams of up to 14 tokens would be 5 * (1 + 2 + ... + 13) tokens without this.
        assert!(model.read < 200, "{}", model.read);
    }

    #[test]
    fn a_search_ends_between_two_steps() {
        let mut model = GeneratedModel::new(1);
        let first = model.decode(0, &[START], &[0]).unwrap().to_vec();
        let settings = BeamSearch::new(5);
        let search = WindowSearch { speech: &speech(), settings, prompt: 1, first: &first, max_tokens: 14 };
        let mut left = 4;
        let outcome = search.run(&mut model, &mut || {
            left -= 1;
            if left == 0 { Err(Error::Cancelled) } else { Ok(()) }
        });
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert_eq!(model.read, 1 + 2);
    }

    #[test]
    fn a_window_without_allowed_tokens_is_empty() {
        let mut model = GeneratedModel::new(1);
        let none = vec![f32::NEG_INFINITY; VOCAB];
        let settings = BeamSearch::new(2);
        let search = WindowSearch { speech: &speech(), settings, prompt: 1, first: &none, max_tokens: 14 };
        assert_eq!(search.run(&mut model, &mut || Ok(())).unwrap(), ScoredTokens::default());
    }
}
