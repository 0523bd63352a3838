//! Windows of imported models, which decode greedily. `spoken` divides the tokens of a window into words and segments.

mod spoken;

use std::ops::Range;

use narthex_audio::mel::WINDOW_SAMPLES;
use narthex_spec::{TokenId, manifest::TranscriberEntry};

use super::{
    MIN_SAMPLES, OnEvent, Progress, WindowRecognizer, check_language, compression::compression_ratio,
};
use crate::{
    cancel::Cancel,
    error::Error,
    load::{
        loaded_model::LoadedModel,
        transcriber::{RecognizedToken, Transcriber},
    },
    serve::request::{Segment, Task, TokenLogprob, TranscriptionEvent, TranscriptionRequest, Word},
    turn_queue::{QueuePlace, TurnQueue},
};
use spoken::{SpokenWord, segments, words};

/// Number of parts of [`MIN_SAMPLES`] whose loudness decides where a window ends.
const QUIET_PARTS: usize = 3;

/// Recogniser of the windows of a transcription.
pub(super) struct ImportedWindows<'a> {
    wants_words: bool,
    wants_logprobs: bool,
    /// Code of the language that the request states.
    language: Option<&'static str>,
    queued: QueuePlace<'a, Transcriber>,
}

/// Tokens of a window, and its words if the model states their times.
struct SpokenWindow {
    tokens: Vec<RecognizedToken>,
    words: Vec<SpokenWord>,
    /// Segments as ranges of the tokens, with their texts.
    segments: Vec<(Range<usize>, String)>,
    /// The tokens with their probabilities, if the request asks for them.
    logprobs: Vec<TokenLogprob>,
}

impl<'a> ImportedWindows<'a> {
    /// Checks a request, and enters the queue of its model.
    pub(super) fn new(
        model: &LoadedModel,
        queue: &'a TurnQueue<Transcriber>,
        request: &TranscriptionRequest,
        cancel: &'a Cancel,
    ) -> Result<Self, Error> {
        let name = model.name();
        if request.task == Task::Translate {
            let message = format!("{name} transcribes and does not translate; take a model of Whisper");
            return Err(Error::invalid("model", message));
        }
        if let Some(temperature) = request.temperature.filter(|temperature| *temperature != 0.0) {
            let message = format!("{name} takes the likeliest tokens: expected 0, found {temperature}");
            return Err(Error::invalid("temperature", message));
        }
        if let Some(beams) = request.beams.filter(|beams| beams.size != 1) {
            let message = format!("{name} takes the likeliest tokens: expected 1 beam, found {}", beams.size);
            return Err(Error::invalid("beam_size", message));
        }
        if request.prompt.as_deref().is_some_and(|prompt| !prompt.trim().is_empty()) {
            let message = format!("{name} reads no text before the speech; leave the prompt out");
            return Err(Error::invalid("prompt", message));
        }
        let states_times = matches!(model.package.manifest.transcriber, Some(TranscriberEntry::Nemo(_)));
        if request.words && !states_times {
            let message = format!("{name} does not state when a word is spoken; leave words out");
            return Err(Error::invalid("timestamp_granularities", message));
        }
        let language = request.language.as_deref().map(check_language).transpose()?;
        Ok(Self {
            wants_words: request.words,
            wants_logprobs: request.logprobs,
            language,
            queued: queue.enter(cancel)?,
        })
    }
}

impl WindowRecognizer for ImportedWindows<'_> {
    fn check(&self) -> Result<(), Error> {
        self.queued.check()
    }

    fn language(&self) -> Option<String> {
        self.language.map(str::to_owned)
    }

    fn window(
        &mut self,
        window: &[f32],
        progress: &mut Progress<'_>,
        on: OnEvent<'_>,
    ) -> Result<usize, Error> {
        let window = &window[..quiet_end(window)];
        let start = progress.time_of_start(0);
        let SpokenWindow { tokens, words, segments, logprobs } = self.queued.turn(|model| {
            let tokens = model.recognize(window, &mut || {
                self.report(TranscriptionEvent::Progress { seconds: start }, on)
            })?;
            let words = words(model, &tokens);
            let segments = segments(model, &tokens, &words, &|before, after| {
                progress.time_of_start(after) - progress.time_of_end(before)
            });
            let logprobs = if self.wants_logprobs { logprobs(model, &tokens) } else { Vec::new() };
            Ok(SpokenWindow { tokens, words, segments, logprobs })
        })?;

        if self.wants_words {
            let timed = words.into_iter().map(|SpokenWord { text, samples, probability, .. }| Word {
                word: text,
                start: progress.time_of_start(samples.start),
                end: progress.time_of_end(samples.end),
                probability: Some(probability),
            });
            let timed: Vec<Word> = timed.collect();
            progress.words.extend(timed);
        }
        for (part, text) in segments {
            let logprobs = logprobs.get(part.clone()).unwrap_or_default().to_vec();
            let segment = Segment { logprobs, ..segment(&tokens[part], text, progress) };
            progress.segments.push(segment.clone());
            self.report(TranscriptionEvent::Segment(segment), on)?;
        }
        Ok(window.len())
    }
}

/// Returns the segment of some tokens of the window, of which there is at least one.
fn segment(tokens: &[RecognizedToken], text: String, progress: &Progress<'_>) -> Segment {
    let ids: Vec<TokenId> = tokens.iter().map(|token| token.id).collect();
    let sum: f32 = tokens.iter().map(|token| token.log_probability).sum();
    let start = tokens.first().map_or(0, |token| token.samples.start);
    let end = tokens.last().map_or(0, |token| token.samples.end);
    Segment {
        id: progress.segments.len() as u32,
        seek: (progress.time_of_start(0) * 100.0) as u32,
        start: progress.time_of_start(start),
        end: progress.time_of_end(end),
        compression_ratio: compression_ratio(&text),
        text: format!(" {text}"),
        tokens: ids,
        temperature: 0.0,
        avg_logprob: sum / tokens.len().max(1) as f32,
        no_speech_prob: 0.0,
        logprobs: Vec::new(),
    }
}

/// Returns tokens with their probabilities.
fn logprobs(model: &Transcriber, tokens: &[RecognizedToken]) -> Vec<TokenLogprob> {
    let texts = tokens.iter().map(|token| {
        let space = if model.starts_word(token.id) { " " } else { "" };
        let text = format!("{space}{}", model.text(&[token.id]).trim());
        TokenLogprob { bytes: text.clone().into_bytes(), token: text, logprob: token.log_probability }
    });
    texts.collect()
}

/// Returns the end of a window: its quietest place in the second half, or its own end if it is shorter than the longest.
fn quiet_end(window: &[f32]) -> usize {
    if window.len() < WINDOW_SAMPLES {
        return window.len();
    }
    let half = window.len() / 2;
    let powers: Vec<f32> = window[half..]
        .chunks_exact(MIN_SAMPLES)
        .map(|part| part.iter().map(|sample| sample * sample).sum())
        .collect();
    let loudness = powers.windows(QUIET_PARTS).map(|parts| parts.iter().sum::<f32>());
    let quietest = loudness.enumerate().min_by(|(_, a), (_, b)| a.total_cmp(b));
    quietest.map_or(window.len(), |(part, _)| half + part * MIN_SAMPLES + QUIET_PARTS * MIN_SAMPLES / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_window_ends_where_it_is_quiet() {
        let mut window = vec![0.5; WINDOW_SAMPLES];
        assert_eq!(quiet_end(&window[..WINDOW_SAMPLES - 1]), WINDOW_SAMPLES - 1);
        // A short pause, such as that before a plosive, and a longer one after it.
        window[300_000..301_600].fill(0.0);
        window[400_000..408_000].fill(0.01);
        // Silence in the first half is too early.
        window[..100_000].fill(0.0);
        let end = quiet_end(&window);
        assert!((402_000..=406_000).contains(&end), "{end}");
    }
}
