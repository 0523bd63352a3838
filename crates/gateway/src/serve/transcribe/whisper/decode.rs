//! The transcript of one window as tokens: greedy decoding or beam search, and sampling with rising temperatures if the
//! result is poor (Radford et al. 2022, section 4.5).

use narthex_engine::{sample::SplitMix64, speech::SpeechModel};
use narthex_spec::{TokenId, manifest::SpeechEntry};

use super::{
    beam::{ScoredTokens, WindowSearch},
    rules,
};
use crate::{
    error::Error,
    load::verify::compare::log_sum_exp,
    serve::{request::BeamSearch, transcribe::compression::compression_ratio},
};

/// Mean logarithm of the tokens' probabilities below which a result is poor.
const MIN_LOG_PROBABILITY: f32 = -1.0;

/// Compression ratio above which a result repeats itself.
const MAX_COMPRESSION: f32 = 2.4;

/// Probability above which a window with a poor result has no speech.
pub(super) const NO_SPEECH: f32 = 0.6;

/// Temperature above which the text of a window is no context for the next one.
pub(super) const MAX_CONTEXT_TEMPERATURE: f32 = 0.5;

/// Difference of two temperatures that are tried.
const TEMPERATURE_STEP: f32 = 0.2;

/// Tokens of a window with their measures.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct WindowTokens {
    /// Texts and timestamps, without the end.
    pub(super) tokens: Vec<TokenId>,
    /// Logarithm of the probability of each of them.
    pub(super) log_probabilities: Vec<f32>,
    pub(super) temperature: f32,
    /// Mean logarithm of the tokens' probabilities.
    pub(super) log_probability: f32,
    /// Length of the text in bytes, divided by its length after compression.
    pub(super) compression: f32,
    /// Probability that the window has no speech.
    pub(super) no_speech: f32,
}

impl WindowTokens {
    /// Returns whether another temperature may give a better result.
    pub(super) fn is_poor(&self) -> bool {
        if self.is_silence() {
            return false;
        }
        self.compression > MAX_COMPRESSION || self.log_probability < MIN_LOG_PROBABILITY
    }

    /// Returns whether the window has no speech.
    pub(super) fn is_silence(&self) -> bool {
        self.no_speech > NO_SPEECH && self.log_probability < MIN_LOG_PROBABILITY
    }
}

/// Decoder of windows.
pub(super) struct WindowDecoder<'a> {
    pub(super) speech: &'a SpeechEntry,
    /// Language and task of a model of several languages.
    pub(super) task: Vec<TokenId>,
    /// Temperature of the first attempt.
    pub(super) temperature: f32,
    /// Beam search in the attempt with temperature 0.
    pub(super) beams: Option<BeamSearch>,
    /// Maximum number of tokens of the only attempt, for a preliminary text.
    pub(super) only_attempt: Option<usize>,
    /// Turns tokens of texts into text.
    pub(super) text: &'a dyn Fn(&[TokenId]) -> String,
}

impl WindowDecoder<'_> {
    /// Returns the tokens of the window that `model` has encoded. `previous` is the text before it. `on_token` is called
    /// before every step.
    pub(super) fn decode(
        &self,
        model: &mut dyn SpeechModel,
        previous: &[TokenId],
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<WindowTokens, Error> {
        let (prompt, start) = self.prompt(previous, model.limits().context);
        let rows = [start, prompt.len() - 1];
        let logits = model.decode(0, &prompt, &rows)?;
        let (at_start, after) = logits.split_at(logits.len() / 2);
        let first = after.to_vec();
        let silence = self.speech.no_speech as usize;
        let no_speech = at_start.get(silence).map_or(0.0, |logit| probability(*logit, at_start));

        let mut temperature = self.temperature;
        loop {
            let attempt =
                Attempt { decoder: self, prompt: prompt.len(), first: &first, temperature, no_speech };
            let tokens = attempt.run(model, on_token)?;
            temperature += TEMPERATURE_STEP;
            if self.only_attempt.is_some() || !tokens.is_poor() || temperature > 1.0 + TEMPERATURE_STEP / 2.0
            {
                return Ok(tokens);
            }
        }
    }

    /// Returns the tokens before those of the window, and the index of the start of the transcript among them.
    fn prompt(&self, previous: &[TokenId], context: usize) -> (Vec<TokenId>, usize) {
        let mut prompt = Vec::new();
        let most = (context / 2).saturating_sub(1);
        let previous = &previous[previous.len().saturating_sub(most)..];
        if !previous.is_empty() {
            prompt.push(self.speech.previous);
            prompt.extend_from_slice(previous);
        }
        let start = prompt.len();
        prompt.push(self.speech.start);
        prompt.extend_from_slice(&self.task);
        (prompt, start)
    }
}

/// One attempt to decode a window.
struct Attempt<'a> {
    decoder: &'a WindowDecoder<'a>,
    /// Number of tokens of the prompt.
    prompt: usize,
    /// Logits after the prompt.
    first: &'a [f32],
    temperature: f32,
    no_speech: f32,
}

impl Attempt<'_> {
    fn run(
        &self,
        model: &mut dyn SpeechModel,
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<WindowTokens, Error> {
        let speech = self.decoder.speech;
        let context = model.limits().context;
        let most = (context / 2).min(context - self.prompt);
        let most = self.decoder.only_attempt.map_or(most, |tokens| tokens.min(most));
        let result = match self.decoder.beams.filter(|_| self.temperature == 0.0) {
            None => self.sample(model, most, on_token)?,
            Some(settings) => {
                let (prompt, first) = (self.prompt, self.first);
                WindowSearch { speech, settings, prompt, first, max_tokens: most }.run(model, on_token)?
            }
        };

        let ScoredTokens { tokens, sum, log_probabilities } = result;
        let texts = speech.texts(tokens.iter().copied());
        Ok(WindowTokens {
            log_probability: sum / (tokens.len() + 1) as f32,
            compression: compression_ratio((self.decoder.text)(&texts).trim()),
            tokens,
            log_probabilities,
            temperature: self.temperature,
            no_speech: self.no_speech,
        })
    }

    /// Samples at most `most` tokens, one after the other.
    fn sample(
        &self,
        model: &mut dyn SpeechModel,
        most: usize,
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<ScoredTokens, Error> {
        let speech = self.decoder.speech;
        // The same temperature gives the same tokens.
        let mut random = SplitMix64::new((self.temperature * 1e6) as u64);
        let mut result = ScoredTokens::default();
        let mut logits = self.first.to_vec();

        loop {
            on_token()?;
            rules::apply(speech, &result.tokens, &mut logits);
            let Some((token, log_probability)) = sample(&logits, self.temperature, &mut random) else {
                break;
            };
            result.sum += log_probability;
            if token == speech.end {
                break;
            }
            result.tokens.push(token);
            result.log_probabilities.push(log_probability);
            if result.tokens.len() >= most {
                break;
            }
            let at = self.prompt + result.tokens.len() - 1;
            logits.clear();
            logits.extend_from_slice(model.decode(at, &[token], &[0])?);
        }
        Ok(result)
    }
}

/// Returns a token and the logarithm of its probability: the likeliest token at temperature 0. Returns `None` if no token
/// may come next.
fn sample(logits: &[f32], temperature: f32, random: &mut SplitMix64) -> Option<(TokenId, f32)> {
    let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]))?;
    if logits[best] == f32::NEG_INFINITY {
        return None;
    }
    let token = if temperature > 0.0 {
        let weight = |logit: f32| f64::from((logit - logits[best]) / temperature).exp();
        let total: f64 = logits.iter().copied().map(weight).sum();
        let mut left = random.next_f64() * total;
        let chosen = logits.iter().position(|&logit| {
            left -= weight(logit);
            left < 0.0
        });
        chosen.unwrap_or(best)
    } else {
        best
    };
    Some((token as TokenId, log_probability(logits[token], logits)))
}

/// Returns the logarithm of the probability of a logit in its row.
fn log_probability(logit: f32, row: &[f32]) -> f32 {
    (f64::from(logit) - log_sum_exp(row)) as f32
}

/// Returns the probability of a logit in its row.
pub(super) fn probability(logit: f32, row: &[f32]) -> f32 {
    log_probability(logit, row).exp()
}

/// Returns the likeliest language of the window that `model` has encoded.
pub(super) fn detect_language<'a>(
    speech: &'a SpeechEntry,
    model: &mut dyn SpeechModel,
) -> Result<Option<&'a str>, Error> {
    let logits = model.decode(0, &[speech.start], &[0])?;
    let logit = |token: TokenId| logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let likeliest = speech.languages.iter().max_by(|(_, a), (_, b)| logit(**a).total_cmp(&logit(**b)));
    Ok(likeliest.map(|(code, _)| code.as_str()))
}

#[cfg(test)]
mod tests {
    use narthex_engine::{
        executor::StepError,
        speech::{SpeechLimits, check_decode},
    };

    use super::*;

    /// Number of tokens: texts are letters from 0 to 25, then the end, control tokens, and timestamps from 32 on.
    const VOCAB: usize = 32 + 100;

    fn speech() -> SpeechEntry {
        SpeechEntry {
            end: 26,
            start: 27,
            previous: 28,
            no_speech: 29,
            no_timestamps: 30,
            first_timestamp: 32,
            languages: [("de".to_owned(), 10), ("en".to_owned(), 11)].into(),
            ..SpeechEntry::default()
        }
    }

    /// A model that continues a prompt with these tokens.
    struct FakeModel {
        limits: SpeechLimits,
        continuation: Vec<TokenId>,
        /// Logit of each of these tokens; all others have 0.
        certainty: f32,
        /// Logit of silence at the start.
        silence: f32,
        prompt: Vec<TokenId>,
        length: usize,
        logits: Vec<f32>,
    }

    impl FakeModel {
        fn new(continuation: &[TokenId], certainty: f32) -> Self {
            let limits = SpeechLimits {
                bins: 80,
                frames: 3000,
                positions: 1500,
                takes_short_windows: false,
                context: 40,
                vocab: VOCAB,
                alignment_heads: 0,
            };
            let continuation = continuation.to_vec();
            let prompt = Vec::new();
            Self { limits, continuation, certainty, silence: 0.0, prompt, length: 0, logits: Vec::new() }
        }
    }

    impl SpeechModel for FakeModel {
        fn limits(&self) -> &SpeechLimits {
            &self.limits
        }

        fn encode(&mut self, _: &[f32]) -> Result<(), StepError> {
            self.length = 0;
            Ok(())
        }

        fn decode(&mut self, at: usize, tokens: &[TokenId], rows: &[usize]) -> Result<&[f32], StepError> {
            check_decode(&self.limits, self.length, at, tokens, rows)?;
            if at == 0 {
                self.prompt = tokens.to_vec();
            }
            self.length = at + tokens.len();
            self.logits.clear();
            for row in rows {
                let mut logits = vec![0.0; VOCAB];
                let place = (at + row + 1).checked_sub(self.prompt.len());
                match place {
                    Some(place) => {
                        let next = self.continuation.get(place);
                        next.into_iter().for_each(|&token| logits[token as usize] = self.certainty);
                    }
                    None => logits[29] = self.silence,
                }
                self.logits.extend(logits);
            }
            Ok(&self.logits)
        }

        fn alignment(&mut self) -> Result<Vec<f32>, StepError> {
            Ok(Vec::new())
        }
    }

    fn letters(tokens: &[TokenId]) -> String {
        tokens.iter().map(|&token| char::from(b'a' + token as u8)).collect()
    }

    fn decoder(speech: &SpeechEntry, task: Vec<TokenId>) -> WindowDecoder<'_> {
        WindowDecoder { speech, task, temperature: 0.0, beams: None, only_attempt: None, text: &letters }
    }

    fn decode(model: &mut FakeModel, previous: &[TokenId]) -> Result<WindowTokens, Error> {
        decoder(&speech(), vec![11, 31]).decode(model, previous, &mut || Ok(()))
    }

    #[test]
    fn likely_tokens_are_taken_up_to_the_end() {
        let mut model = FakeModel::new(&[32, 7, 4, 24, 40, 26], 30.0);
        let found = decode(&mut model, &[]).unwrap();
        assert_eq!((&found.tokens[..], found.temperature), (&[32, 7, 4, 24, 40][..], 0.0));
        assert!(found.log_probabilities.len() == 5 && found.log_probabilities.iter().all(|x| *x > -0.01));
        assert!(found.log_probability > -0.01 && found.no_speech < 0.1, "{}", found.log_probability);
        assert_eq!(model.prompt, [27, 11, 31]);
    }

    #[test]
    fn the_text_before_a_window_is_its_context() {
        let mut model = FakeModel::new(&[32, 7, 40, 26], 30.0);
        decode(&mut model, &[1, 2]).unwrap();
        assert_eq!(model.prompt, [28, 1, 2, 27, 11, 31]);
        // At most half of the context, without the token before it.
        decode(&mut model, &[3; 90]).unwrap();
        assert_eq!(model.prompt, [&[28][..], &[3; 19], &[27, 11, 31]].concat());
    }

    #[test]
    fn poor_results_are_sampled_again_at_higher_temperatures() {
        // All tokens are about equally likely.
        let unsure = decode(&mut FakeModel::new(&[32, 7, 40, 26], 0.5), &[]).unwrap();
        assert!(unsure.temperature > 0.99 && unsure.log_probability < MIN_LOG_PROBABILITY, "{unsure:?}");
        let repeated = [&[32][..], &[1; 30]].concat();
        let model = FakeModel::new(&repeated, 30.0);
        let mut longer = FakeModel { limits: SpeechLimits { context: 400, ..model.limits }, ..model };
        longer.continuation = [&[32][..], &[1; 150], &[40, 26]].concat();
        let repeats = decode(&mut longer, &[]).unwrap();
        assert!(repeats.temperature > 0.99 && repeats.compression > MAX_COMPRESSION, "{repeats:?}");
        // The same request gives the same tokens.
        let again = decode(&mut FakeModel::new(&[32, 7, 40, 26], 0.5), &[]).unwrap();
        assert_eq!(again, unsure);
    }

    #[test]
    fn a_preliminary_text_has_one_attempt() {
        let speech = speech();
        let decoder = WindowDecoder { only_attempt: Some(2), ..decoder(&speech, Vec::new()) };
        let decode = |certainty: f32| {
            let mut model = FakeModel::new(&[32, 7, 40, 26], certainty);
            decoder.decode(&mut model, &[], &mut || Ok(())).unwrap()
        };
        let unsure = decode(0.5);
        assert!(unsure.temperature == 0.0 && unsure.is_poor(), "{unsure:?}");
        let sure = decode(30.0);
        assert!(sure.tokens == [32, 7] && !sure.is_poor(), "{sure:?}");
    }

    #[test]
    fn a_poor_result_without_speech_is_silence() {
        let mut model = FakeModel { silence: 30.0, ..FakeModel::new(&[32, 7, 40, 26], 0.5) };
        let found = decode(&mut model, &[]).unwrap();
        assert!(found.is_silence() && found.temperature == 0.0 && found.no_speech > 0.9, "{found:?}");
    }

    #[test]
    fn a_window_without_an_end_has_a_maximum_length() {
        let mut model = FakeModel::new(&[], 0.0);
        let found = decode(&mut model, &[]).unwrap();
        assert!(found.tokens.len() <= 20, "{}", found.tokens.len());
    }

    #[test]
    fn a_window_ends_between_two_tokens() {
        let mut model = FakeModel::new(&[32, 7, 4, 24, 40, 26], 30.0);
        let speech = speech();
        let decoder = decoder(&speech, Vec::new());
        let mut left = 3;
        let outcome = decoder.decode(&mut model, &[], &mut || {
            left -= 1;
            if left == 0 { Err(Error::Cancelled) } else { Ok(()) }
        });
        assert!(matches!(outcome, Err(Error::Cancelled)));
        assert_eq!(model.length, 1 + 2);
    }

    #[test]
    fn the_likeliest_language_is_detected() {
        let mut model = FakeModel::new(&[11], 5.0);
        assert_eq!(detect_language(&speech(), &mut model).unwrap(), Some("en"));
        let mut model = FakeModel::new(&[10], 5.0);
        assert_eq!(detect_language(&speech(), &mut model).unwrap(), Some("de"));
    }
}
