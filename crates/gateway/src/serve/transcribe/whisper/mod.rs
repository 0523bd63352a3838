//! Windows of Whisper.
//!
//! `decode` has the loop over the tokens of a window, `beam` the search for them with several beams, `rules` the tokens
//! that may come next, `segments` the division of a window's tokens, and `words` the times of words.

mod beam;
mod decode;
mod rules;
mod segments;
mod words;

use std::borrow::Cow;

use narthex_audio::{SPEECH_RATE, mel};
use narthex_engine::{
    executor::StepError,
    speech::{SpeechModel, encoder_rows},
    supervise::SupervisedSpeech,
};
use narthex_spec::{
    TokenId,
    arch::{SpeechArch, Structure},
    manifest::SpeechEntry,
};
use narthex_text::tokenizer::Specials;

use super::{OnEvent, Progress, WindowRecognizer, check_language, seconds};
use crate::{
    cancel::Cancel,
    error::Error,
    library::package::bad_package,
    load::loaded_model::LoadedModel,
    serve::request::{Segment, Task, TokenLogprob, TranscriptionEvent, TranscriptionRequest, Word},
    turn_queue::{QueuePlace, TurnQueue},
};
use decode::{MAX_CONTEXT_TEMPERATURE, WindowDecoder, WindowTokens, detect_language, probability};
use segments::{TIMESTAMP_SAMPLES, TokenSegment, WindowSegments, divide};
use words::{HeadAttention, WordTokens, shorten_pauses, words};

/// Samples of silence after the audio of a short window.
const SHORT_WINDOW_END: usize = SPEECH_RATE as usize;

/// Minimum samples of a short window. The model repeats itself in shorter ones.
const SHORT_WINDOW: usize = 6 * SPEECH_RATE as usize;

/// Maximum number of tokens of a preliminary text: those of each second, and control tokens.
const TOKENS_PER_SECOND: usize = 12;
const CONTROL_TOKENS: usize = 8;

/// Maximum temperature.
const MAX_TEMPERATURE: f32 = 1.0;

/// Checked settings of a request.
struct Settings {
    /// Code of the language; `None` to detect it.
    language: Option<String>,
    prompt: Vec<TokenId>,
    temperature: f32,
}

impl Settings {
    fn new(
        model: &LoadedModel,
        arch: &SpeechArch,
        speech: &SpeechEntry,
        request: &TranscriptionRequest,
    ) -> Result<Self, Error> {
        let temperature = request.temperature.unwrap_or(0.0);
        if !(0.0..=MAX_TEMPERATURE).contains(&temperature) {
            let message = format!("expected a number from 0 to {MAX_TEMPERATURE}, found {temperature}");
            return Err(Error::invalid("temperature", message));
        }
        request.beams.map_or(Ok(()), |beams| beams.check())?;
        if request.task == Task::Translate && speech.translate.is_none() {
            let message =
                format!("{} transcribes English alone; take a model of several languages", model.name());
            return Err(Error::invalid("model", message));
        }
        if request.words && arch.alignment_heads.is_empty() {
            let message =
                "the checkpoint of this model states no alignment heads, which the times of words need";
            return Err(Error::invalid("timestamp_granularities", message));
        }

        let texts = [&request.prompt, &request.context].into_iter().flatten();
        let texts: Vec<&str> = texts.map(|text| text.trim()).filter(|text| !text.is_empty()).collect();
        let prompt = if texts.is_empty() {
            Vec::new()
        } else {
            model.tokenizer()?.encode(&format!(" {}", texts.join(" ")), Specials::AsText)?
        };
        let language = request.language.as_deref().map(|name| known_language(speech, name)).transpose()?;
        Ok(Self { language, prompt, temperature })
    }
}

/// Returns the code of a language that the model knows.
fn known_language(speech: &SpeechEntry, name: &str) -> Result<String, Error> {
    let code = check_language(name)?;
    let knows = if speech.languages.is_empty() { code == "en" } else { speech.languages.contains_key(code) };
    if knows {
        return Ok(code.to_owned());
    }
    let message = match speech.languages.len() {
        0 => format!("expected en, the only language of this model, found {code}"),
        count => format!("expected one of the {count} languages of this model, found {code}"),
    };
    Err(Error::invalid("language", message))
}

/// Recogniser of the windows of a transcription.
pub(super) struct WhisperWindows<'a> {
    model: &'a LoadedModel,
    request: &'a TranscriptionRequest,
    speech: &'a SpeechEntry,
    bins: mel::MelBins,
    /// Code of the language; `None` until it is detected.
    language: Option<String>,
    temperature: f32,
    queued: QueuePlace<'a, SupervisedSpeech>,
    /// Tokens of the text so far.
    tokens: Vec<TokenId>,
    /// Number of these tokens that are no context for the next window.
    context: usize,
}

/// Properties of the speech in a window.
struct Spoken<'a> {
    /// Tokens of the language and the task.
    task: &'a [TokenId],
    language: Option<&'a str>,
    /// Number of samples.
    samples: usize,
    /// Number of rows of the encoder.
    rows: usize,
}

/// Audio of a window.
struct Window<'a> {
    /// Log-mel features of a whole window, `[bins, frames]`.
    features: &'a [f32],
    /// Number of samples.
    samples: usize,
}

impl Window<'_> {
    /// Returns the features that the model encodes: those of a short window for a preliminary text, if the model takes
    /// short windows.
    fn encoded(&self, model: &dyn SpeechModel, is_preliminary: bool) -> Cow<'_, [f32]> {
        let limits = model.limits();
        if !is_preliminary || !limits.takes_short_windows {
            return self.features.into();
        }
        let samples = (self.samples + SHORT_WINDOW_END).max(SHORT_WINDOW);
        let rows = samples.div_ceil(TIMESTAMP_SAMPLES).min(limits.positions);
        let frames = rows * SpeechArch::FRAMES_PER_ROW;
        self.features.chunks_exact(limits.frames).flat_map(|bin| &bin[..frames]).copied().collect()
    }
}

/// Tokens of a window and their division, with the times of words from the start of the window.
struct RecognizedWindow {
    decoded: WindowTokens,
    divided: WindowSegments,
    words: Vec<Word>,
}

impl<'a> WhisperWindows<'a> {
    /// Checks a request, and enters the queue of its model.
    pub(super) fn new(
        model: &'a LoadedModel,
        queue: &'a TurnQueue<SupervisedSpeech>,
        request: &'a TranscriptionRequest,
        cancel: &'a Cancel,
    ) -> Result<Self, Error> {
        let manifest = &model.package.manifest;
        let (Structure::Speech(arch), Some(speech)) = (&manifest.architecture, &manifest.speech) else {
            return Err(model.no_speech_tokens());
        };
        let bins = mel::MelBins::from_count(arch.bins).filter(|_| arch.frames() == mel::WINDOW_FRAMES);
        let bins = bins.ok_or_else(|| model.no_speech_tokens())?;
        let Settings { language, prompt, temperature } = Settings::new(model, arch, speech, request)?;
        let queued = queue.enter(cancel)?;
        Ok(Self { model, request, speech, bins, language, temperature, queued, tokens: prompt, context: 0 })
    }
}

impl WindowRecognizer for WhisperWindows<'_> {
    fn check(&self) -> Result<(), Error> {
        self.queued.check()
    }

    fn language(&self) -> Option<String> {
        let known = if self.speech.languages.is_empty() { Some("en") } else { None };
        self.language.as_deref().or(known).map(str::to_owned)
    }

    fn window(
        &mut self,
        window: &[f32],
        progress: &mut Progress<'_>,
        on: OnEvent<'_>,
    ) -> Result<usize, Error> {
        let features = mel::log_mel(window, self.bins);
        let start = progress.time_of_start(0);
        let mut on_token = || self.report(TranscriptionEvent::Progress { seconds: start }, on);
        let window = Window { features: &features, samples: window.len() };
        let mut language = self.language.clone();
        let RecognizedWindow { decoded, divided, words } = self.queued.turn(|model| {
            match self.recognize(model, &window, &mut language, &mut on_token) {
                // The device was opened again, without the window.
                Err(Error::Step(StepError::Lost { .. })) => {
                    self.recognize(model, &window, &mut language, &mut on_token)
                }
                outcome => outcome,
            }
        })?;

        self.language = language;
        if decoded.is_silence() || self.request.preliminary && decoded.is_poor() {
            return Ok(window.samples);
        }
        let words: Vec<Word> = words.into_iter().map(|word| progress.timed(word)).collect();
        progress.words.extend(words);
        self.keep(&decoded, divided, progress, on)
    }
}

impl WhisperWindows<'_> {
    /// Encodes a window and decodes its tokens. The language is detected in the first window with speech.
    fn recognize(
        &self,
        model: &mut dyn SpeechModel,
        window: &Window<'_>,
        language: &mut Option<String>,
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<RecognizedWindow, Error> {
        let features = window.encoded(model, self.request.preliminary);
        model.encode(&features)?;
        if language.is_none() && !self.speech.languages.is_empty() {
            *language = detect_language(self.speech, model)?.map(str::to_owned);
        }
        let language = language.as_deref();
        let tokenizer = self.model.tokenizer()?;
        let decoder = WindowDecoder {
            speech: self.speech,
            task: self.task(language),
            temperature: self.temperature,
            beams: self.request.beams,
            only_attempt: self
                .request
                .preliminary
                .then(|| CONTROL_TOKENS + window.samples * TOKENS_PER_SECOND / SPEECH_RATE as usize),
            text: &|tokens| tokenizer.decode(tokens),
        };

        let decoded = decoder.decode(model, &self.tokens[self.context..], on_token)?;
        let divided = divide(self.speech, &decoded.tokens, window.samples);
        let words = if self.request.words && !decoded.is_silence() {
            let rows = encoder_rows(model.limits(), features.len())?;
            let spoken = Spoken { task: &decoder.task, language, samples: window.samples, rows };
            self.words(model, &decoded.tokens, &divided, &spoken)?
        } else {
            Vec::new()
        };
        Ok(RecognizedWindow { decoded, divided, words })
    }

    /// Returns the tokens of the language and the task.
    fn task(&self, language: Option<&str>) -> Vec<TokenId> {
        let language = language.and_then(|code| self.speech.languages.get(code)).copied();
        let task = match self.request.task {
            Task::Transcribe => self.speech.transcribe,
            Task::Translate => self.speech.translate,
        };
        language.into_iter().chain(task).collect()
    }

    /// Returns the words of a window's segments, with their times from the start of the window. The model reads the text
    /// again, and the attention of its alignment heads states when each token is spoken.
    fn words(
        &self,
        model: &mut dyn SpeechModel,
        tokens: &[TokenId],
        divided: &WindowSegments,
        spoken: &Spoken<'_>,
    ) -> Result<Vec<Word>, Error> {
        let speech = self.speech;
        let kept = divided.segments.iter().flat_map(|segment| &tokens[segment.tokens.clone()]);
        let texts = speech.texts(kept.copied());
        let control = [&[speech.start][..], spoken.task, &[speech.no_timestamps]].concat();
        let first = control.len();
        let all = [&control[..], &texts, &[speech.end]].concat();
        if texts.is_empty() || all.len() > model.limits().context {
            return Ok(Vec::new());
        }

        let rows: Vec<usize> = (first - 1..first - 1 + texts.len()).collect();
        let vocab = model.limits().vocab;
        let logits = model.decode(0, &all, &rows)?.chunks_exact(vocab);
        let probabilities: Vec<f32> = logits
            .zip(&texts)
            .map(|(row, &token)| probability(row[token as usize], &row[..speech.end as usize]))
            .collect();
        let weights = model.alignment()?;
        let attention = HeadAttention {
            weights: &weights,
            tokens: all.len(),
            positions: spoken.rows,
            texts: first..all.len(),
            sounding: spoken.samples.div_ceil(TIMESTAMP_SAMPLES),
        };
        let starts = attention.starts();

        let tokenizer = self.model.tokenizer()?;
        let divided = words(&texts, spoken.language, &|tokens| tokenizer.decode(tokens));
        let time = |token: usize| starts.get(token).map_or(0.0, |row| seconds(row * TIMESTAMP_SAMPLES));
        let mut times: Vec<_> =
            divided.iter().map(|word| time(word.tokens.start)..time(word.tokens.end)).collect();
        shorten_pauses(&divided, &mut times);
        let words = divided.into_iter().zip(times).map(|(WordTokens { text, tokens }, time)| {
            let of_word = &probabilities[tokens];
            let probability = Some(of_word.iter().sum::<f32>() / of_word.len().max(1) as f32);
            Word { word: text.trim().to_owned(), start: time.start, end: time.end, probability }
        });
        Ok(words.filter(|word| !word.word.is_empty()).collect())
    }

    /// Returns the tokens of a text with their probabilities, if the request asks for them.
    fn logprobs(&self, tokens: &[TokenId], log_probabilities: &[f32]) -> Result<Vec<TokenLogprob>, Error> {
        if !self.request.logprobs {
            return Ok(Vec::new());
        }
        let tokenizer = self.model.tokenizer()?;
        let texts = tokens.iter().zip(log_probabilities).filter(|(token, _)| **token < self.speech.end);
        let logprobs = texts.map(|(&token, &logprob)| {
            let bytes = tokenizer.token_bytes(token);
            TokenLogprob { token: String::from_utf8_lossy(&bytes).into_owned(), logprob, bytes }
        });
        Ok(logprobs.collect())
    }

    /// Adds the segments of a window to the transcript.
    fn keep(
        &mut self,
        decoded: &WindowTokens,
        divided: WindowSegments,
        progress: &mut Progress<'_>,
        on: OnEvent<'_>,
    ) -> Result<usize, Error> {
        for TokenSegment { samples, tokens } in divided.segments {
            let log_probabilities = &decoded.log_probabilities[tokens.clone()];
            let tokens = &decoded.tokens[tokens];
            let texts = self.speech.texts(tokens.iter().copied());
            let text = self.model.tokenizer()?.decode(&texts);
            if samples.is_empty() || text.trim().is_empty() {
                continue;
            }

            let segment = Segment {
                id: progress.segments.len() as u32,
                seek: (progress.time_of_start(0) * 100.0) as u32,
                start: progress.time_of_start(samples.start),
                end: progress.time_of_end(samples.end),
                text,
                tokens: tokens.to_vec(),
                temperature: decoded.temperature,
                avg_logprob: decoded.log_probability,
                compression_ratio: decoded.compression,
                no_speech_prob: decoded.no_speech,
                logprobs: self.logprobs(tokens, log_probabilities)?,
            };
            self.tokens.extend_from_slice(tokens);
            progress.segments.push(segment.clone());
            self.report(TranscriptionEvent::Segment(segment), on)?;
        }

        if decoded.temperature > MAX_CONTEXT_TEMPERATURE {
            self.context = self.tokens.len();
        }
        Ok(divided.advance)
    }
}

impl LoadedModel {
    fn no_speech_tokens(&self) -> Error {
        bad_package(&self.package.key, "its windows or its control tokens are not those of Whisper")
    }
}
