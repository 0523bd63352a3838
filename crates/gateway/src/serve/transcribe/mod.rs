//! Transcripts of audio of any length, in windows of 30 seconds. Memory holds one window and the transcript.
//!
//! `source` has the samples, without pauses if the request asks for it, `decode` the loop over the tokens of a window,
//! `rules` the tokens that may come next, `segments` the division of a window's tokens, and `words` the times of words.

mod decode;
mod rules;
mod segments;
mod source;
mod words;

use std::ops::ControlFlow;

use narthex_audio::{AudioError, SPEECH_RATE, activity::ActivitySettings, language, mel};
use narthex_engine::{executor::StepError, speech::SpeechModel, supervise::SupervisedSpeech};
use narthex_spec::{
    TokenId,
    arch::{SpeechArch, Structure},
    manifest::SpeechEntry,
};
use narthex_text::tokenizer::Specials;

use crate::{
    cancel::Cancel,
    error::Error,
    library::package::bad_package,
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    serve::request::{Segment, Task, Transcript, TranscriptionEvent, TranscriptionRequest, Word},
    turn_queue::QueuePlace,
};
use decode::{MAX_CONTEXT_TEMPERATURE, WindowDecoder, WindowTokens, detect_language, probability};
use segments::{TIMESTAMP_SAMPLES, TokenSegment, WindowSegments, divide};
use source::SampleSource;
use words::{HeadAttention, WordTokens, shorten_pauses, words};

/// Minimum samples of a window. A tenth of a second has no word.
const MIN_SAMPLES: usize = SPEECH_RATE as usize / 10;

/// Root mean square below which a window is silent: -66 dB of full scale.
const SILENCE: f32 = 5e-4;

/// Maximum duration of a pause and of padding, which are in memory.
const MAX_PAUSE_MS: u32 = 60_000;

/// Maximum temperature.
const MAX_TEMPERATURE: f32 = 1.0;

/// Chunks of mono samples with [`SPEECH_RATE`].
pub(crate) type Chunks<'a> = &'a mut dyn Iterator<Item = Result<Vec<f32>, AudioError>>;

/// Receiver of the events of a transcription, which `Break` ends.
pub(crate) type OnEvent<'a> = &'a mut dyn FnMut(TranscriptionEvent) -> ControlFlow<()>;

impl ReadyModel {
    /// Transcribes audio: chunks of any length of mono samples with 16,000 Hz. Segments are passed to `on` as soon as they
    /// are final. Ends with [`Error::Cancelled`] once `cancel` is set or `on` returns `Break`.
    pub fn transcribe(
        &self,
        request: &TranscriptionRequest,
        audio: Chunks<'_>,
        on: OnEvent<'_>,
        cancel: &Cancel,
    ) -> Result<Transcript, Error> {
        let model = &*self.loaded;
        let queue = model.speech()?;
        let manifest = &model.package.manifest;
        let (Structure::Speech(arch), Some(speech)) = (&manifest.architecture, &manifest.speech) else {
            return Err(model.no_speech_tokens());
        };
        let bins = mel::MelBins::from_count(arch.bins).filter(|_| arch.frames() == mel::WINDOW_FRAMES);
        let bins = bins.ok_or_else(|| model.no_speech_tokens())?;
        let settings = Settings::new(model, arch, speech, request)?;
        let source = match request.vad {
            None => SampleSource::whole(audio),
            Some(activity) => {
                let mut detector = model.detector.open()?;
                let detect = Box::new(move |samples: &[f32]| detector.probabilities(samples));
                SampleSource::speech(audio, activity, detect)
            }
        };

        let queued = queue.enter(cancel)?;
        let transcription = Transcription { model, speech, settings, bins, queued };
        transcription.run(request, source, on)
    }
}

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
        check_activity(request.vad)?;
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

        let prompt = match request.prompt.as_deref().map(str::trim).filter(|prompt| !prompt.is_empty()) {
            Some(prompt) => model.tokenizer()?.encode(&format!(" {prompt}"), Specials::AsText)?,
            None => Vec::new(),
        };
        let language = request.language.as_deref().map(|name| known_language(speech, name)).transpose()?;
        Ok(Self { language, prompt, temperature })
    }
}

/// Refuses settings of voice activity detection outside of their ranges.
fn check_activity(activity: Option<ActivitySettings>) -> Result<(), Error> {
    let Some(ActivitySettings { threshold, pause_ms, padding_ms }) = activity else { return Ok(()) };
    if !(threshold > 0.0 && threshold < 1.0) {
        let message = format!("expected a threshold of speech between 0 and 1, found {threshold}");
        return Err(Error::invalid("vad", message));
    }
    match [pause_ms, padding_ms].into_iter().find(|duration| *duration > MAX_PAUSE_MS) {
        Some(found) => {
            let message = format!("expected pauses and padding of at most {MAX_PAUSE_MS} ms, found {found}");
            Err(Error::invalid("vad", message))
        }
        None => Ok(()),
    }
}

/// Returns the code of a language that the model knows.
fn known_language(speech: &SpeechEntry, name: &str) -> Result<String, Error> {
    let code = language::code(name).ok_or_else(|| {
        let found = narthex_catalog::resolve::excerpt(name);
        Error::invalid("language", format!("expected a code such as en or de, found {found:?}"))
    })?;
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

/// A transcription in progress.
struct Transcription<'a> {
    model: &'a LoadedModel,
    speech: &'a SpeechEntry,
    settings: Settings,
    bins: mel::MelBins,
    queued: QueuePlace<'a, SupervisedSpeech>,
}

/// Properties of the speech in a window.
struct Spoken<'a> {
    /// Tokens of the language and the task.
    task: &'a [TokenId],
    language: Option<&'a str>,
    /// Number of samples.
    samples: usize,
}

/// Audio of a window.
struct Window<'a> {
    /// Log-mel features, `[bins, frames]`.
    features: &'a [f32],
    /// Number of samples.
    samples: usize,
}

/// Tokens of a window and their division, with the times of words from the start of the window.
struct RecognizedWindow {
    decoded: WindowTokens,
    divided: WindowSegments,
    words: Vec<Word>,
}

/// Parts of the transcript that are final, and the state between windows.
struct Progress<'a> {
    source: SampleSource<'a>,
    /// Samples of the source before the window.
    start: usize,
    segments: Vec<Segment>,
    words: Vec<Word>,
    /// Tokens of the text so far.
    tokens: Vec<TokenId>,
    /// Number of these tokens that are no context for the next window.
    context: usize,
    language: Option<String>,
}

impl Progress<'_> {
    /// Returns the time in the audio of a sample of the window. It is before the pause that begins there.
    fn time_of_end(&self, sample: usize) -> f64 {
        let at = self.start + sample;
        seconds(at + self.source.dropped_before(at.saturating_sub(1)))
    }

    /// Returns the time in the audio of a sample of the window. It is after the pause that ends there.
    fn time_of_start(&self, sample: usize) -> f64 {
        let at = self.start + sample;
        seconds(at + self.source.dropped_before(at))
    }

    /// Returns a word of the window with its times in the audio. Both are on the side of a pause that the middle is on.
    fn timed(&self, word: Word) -> Word {
        let middle = (word.start + word.end) / 2.0 * f64::from(SPEECH_RATE);
        let before = self.start + self.source.dropped_before(self.start + middle as usize);
        Word { start: seconds(before) + word.start, end: seconds(before) + word.end, ..word }
    }
}

impl Transcription<'_> {
    fn run(
        &self,
        request: &TranscriptionRequest,
        source: SampleSource<'_>,
        on: OnEvent<'_>,
    ) -> Result<Transcript, Error> {
        let mut samples: Vec<f32> = Vec::new();
        let mut progress = Progress {
            source,
            start: 0,
            segments: Vec::new(),
            words: Vec::new(),
            tokens: self.settings.prompt.clone(),
            context: 0,
            language: self.settings.language.clone(),
        };
        loop {
            while !progress.source.has_ended() && samples.len() < mel::WINDOW_SAMPLES {
                self.queued.check()?;
                progress.source.read(&mut samples)?;
            }
            if progress.source.has_ended() && samples.len() < MIN_SAMPLES {
                break;
            }

            let window = &samples[..samples.len().min(mel::WINDOW_SAMPLES)];
            let advance = self.window(request, window, &mut progress, on)?.clamp(1, window.len());
            samples.drain(..advance);
            progress.start += advance;
            self.report(TranscriptionEvent::Progress { seconds: progress.time_of_end(0) }, on)?;
        }

        let text: String = progress.segments.iter().map(|segment| segment.text.as_str()).collect();
        let known = if self.speech.languages.is_empty() { Some("en".to_owned()) } else { None };
        Ok(Transcript {
            task: request.task,
            language: progress.language.or(known),
            duration: seconds(progress.source.samples_read()),
            text: text.trim().to_owned(),
            segments: progress.segments,
            words: progress.words,
        })
    }

    fn report(&self, event: TranscriptionEvent, on: OnEvent<'_>) -> Result<(), Error> {
        self.queued.check()?;
        match on(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }

    /// Transcribes one window. Returns the number of samples to the start of the next one.
    fn window(
        &self,
        request: &TranscriptionRequest,
        window: &[f32],
        progress: &mut Progress<'_>,
        on: OnEvent<'_>,
    ) -> Result<usize, Error> {
        if is_silent(window) {
            return Ok(window.len());
        }

        let features = mel::log_mel(window, self.bins);
        let start = progress.time_of_start(0);
        let mut on_token = || self.report(TranscriptionEvent::Progress { seconds: start }, on);
        let window = Window { features: &features, samples: window.len() };
        let RecognizedWindow { decoded, divided, words } = self.queued.turn(|model| {
            match self.recognize(model, request, &window, progress, &mut on_token) {
                // The device was opened again, without the window.
                Err(Error::Step(StepError::Lost { .. })) => {
                    self.recognize(model, request, &window, progress, &mut on_token)
                }
                outcome => outcome,
            }
        })?;

        if decoded.is_silence() {
            return Ok(window.samples);
        }
        let words: Vec<Word> = words.into_iter().map(|word| progress.timed(word)).collect();
        progress.words.extend(words);
        self.keep(&decoded, divided, progress, on)
    }

    /// Encodes a window and decodes its tokens. The language is detected in the first window with speech.
    fn recognize(
        &self,
        model: &mut dyn SpeechModel,
        request: &TranscriptionRequest,
        window: &Window<'_>,
        progress: &mut Progress<'_>,
        on_token: &mut dyn FnMut() -> Result<(), Error>,
    ) -> Result<RecognizedWindow, Error> {
        model.encode(window.features)?;
        if progress.language.is_none() && !self.speech.languages.is_empty() {
            progress.language = detect_language(self.speech, model)?.map(str::to_owned);
        }
        let language = progress.language.as_deref();
        let tokenizer = self.model.tokenizer()?;
        let decoder = WindowDecoder {
            speech: self.speech,
            task: self.task(request.task, language),
            temperature: self.settings.temperature,
            text: &|tokens| tokenizer.decode(tokens),
        };

        let decoded = decoder.decode(model, &progress.tokens[progress.context..], on_token)?;
        let divided = divide(self.speech, &decoded.tokens, window.samples);
        let words = if request.words && !decoded.is_silence() {
            let spoken = Spoken { task: &decoder.task, language, samples: window.samples };
            self.words(model, &decoded.tokens, &divided, &spoken)?
        } else {
            Vec::new()
        };
        Ok(RecognizedWindow { decoded, divided, words })
    }

    /// Returns the tokens of the language and the task.
    fn task(&self, task: Task, language: Option<&str>) -> Vec<TokenId> {
        let language = language.and_then(|code| self.speech.languages.get(code)).copied();
        let task = match task {
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
            positions: model.limits().positions,
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

    /// Adds the segments of a window to the transcript.
    fn keep(
        &self,
        decoded: &WindowTokens,
        divided: WindowSegments,
        progress: &mut Progress<'_>,
        on: OnEvent<'_>,
    ) -> Result<usize, Error> {
        for TokenSegment { samples, tokens } in divided.segments {
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
            };
            progress.tokens.extend_from_slice(tokens);
            progress.segments.push(segment.clone());
            self.report(TranscriptionEvent::Segment(segment), on)?;
        }

        if decoded.temperature > MAX_CONTEXT_TEMPERATURE {
            progress.context = progress.tokens.len();
        }
        Ok(divided.advance)
    }
}

/// Returns the time of a sample.
fn seconds(samples: usize) -> f64 {
    samples as f64 / f64::from(SPEECH_RATE)
}

/// Returns whether every tenth of a second of a window is silent. A model invents text for silence.
fn is_silent(window: &[f32]) -> bool {
    window.chunks(MIN_SAMPLES).all(|part| {
        let power = part.iter().map(|sample| sample * sample).sum::<f32>() / part.len() as f32;
        power.sqrt() < SILENCE
    })
}

impl LoadedModel {
    fn no_speech_tokens(&self) -> Error {
        bad_package(&self.package.key, "its windows or its control tokens are not those of Whisper")
    }
}
