//! Transcripts of audio of any length, in windows of 30 seconds. Memory holds one window and the transcript.
//!
//! `source` has the samples, without pauses if the request asks for it. `whisper` recognises the windows of Whisper,
//! and `imported` those of imported models.

mod compression;
mod imported;
mod source;
mod whisper;

use std::ops::ControlFlow;

use narthex_audio::{AudioError, SPEECH_RATE, activity::ActivitySettings, language, mel::WINDOW_SAMPLES};

use crate::{
    cancel::Cancel,
    error::Error,
    load::{residency::ReadyModel, transcriber::Recognizer},
    serve::request::{Segment, Transcript, TranscriptionEvent, TranscriptionRequest, Word},
};
use imported::ImportedWindows;
use source::SampleSource;
use whisper::WhisperWindows;

/// Minimum samples of a window. A tenth of a second has no word.
const MIN_SAMPLES: usize = SPEECH_RATE as usize / 10;

/// Root mean square below which a window is silent: -66 dB of full scale.
const SILENCE: f32 = 5e-4;

/// Maximum duration of a pause and of padding, which are in memory.
const MAX_PAUSE_MS: u32 = 60_000;

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
        check_activity(request.vad)?;
        let mut recognizer: Box<dyn WindowRecognizer> = match model.recognizer()? {
            Recognizer::Whisper(queue) => Box::new(WhisperWindows::new(model, queue, request, cancel)?),
            Recognizer::Imported(queue) => Box::new(ImportedWindows::new(model, queue, request, cancel)?),
        };
        let source = match request.vad {
            None => SampleSource::whole(audio),
            Some(activity) => {
                let mut detector = model.detector.open()?;
                let detect = Box::new(move |samples: &[f32]| detector.probabilities(samples));
                SampleSource::speech(audio, activity, detect)
            }
        };
        transcribe(&mut *recognizer, request, source, on)
    }
}

/// Recogniser of the windows of a transcription.
trait WindowRecognizer {
    /// Fails if the request was cancelled or the model's queue is closed.
    fn check(&self) -> Result<(), Error>;

    /// Returns the code of the language of the speech, if it is known.
    fn language(&self) -> Option<String>;

    /// Transcribes a window, which is not silent, and adds its final segments. Returns the number of samples to the start of
    /// the next window.
    fn window(
        &mut self,
        window: &[f32],
        progress: &mut Progress<'_>,
        on: OnEvent<'_>,
    ) -> Result<usize, Error>;

    /// Reports an event. Fails if the request was ended.
    fn report(&self, event: TranscriptionEvent, on: OnEvent<'_>) -> Result<(), Error> {
        self.check()?;
        match on(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
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

/// Returns the code of a language.
fn check_language(name: &str) -> Result<&'static str, Error> {
    language::code(name).ok_or_else(|| {
        let found = narthex_catalog::resolve::excerpt(name);
        Error::invalid("language", format!("expected a code such as en or de, found {found:?}"))
    })
}

/// Parts of the transcript that are final, and the place of the window.
struct Progress<'a> {
    source: SampleSource<'a>,
    /// Samples of the source before the window.
    start: usize,
    segments: Vec<Segment>,
    words: Vec<Word>,
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

/// Transcribes the samples of a source window by window.
fn transcribe(
    recognizer: &mut dyn WindowRecognizer,
    request: &TranscriptionRequest,
    source: SampleSource<'_>,
    on: OnEvent<'_>,
) -> Result<Transcript, Error> {
    let mut samples: Vec<f32> = Vec::new();
    let mut progress = Progress { source, start: 0, segments: Vec::new(), words: Vec::new() };
    loop {
        while !progress.source.has_ended() && samples.len() < WINDOW_SAMPLES {
            recognizer.check()?;
            progress.source.read(&mut samples)?;
        }
        if progress.source.has_ended() && samples.len() < MIN_SAMPLES {
            break;
        }

        let window = &samples[..samples.len().min(WINDOW_SAMPLES)];
        let advance =
            if is_silent(window) { window.len() } else { recognizer.window(window, &mut progress, on)? };
        let advance = advance.clamp(1, window.len());
        samples.drain(..advance);
        progress.start += advance;
        recognizer.report(TranscriptionEvent::Progress { seconds: progress.time_of_end(0) }, on)?;
    }

    let text: String = progress.segments.iter().map(|segment| segment.text.as_str()).collect();
    Ok(Transcript {
        task: request.task,
        language: recognizer.language(),
        duration: seconds(progress.source.samples_read()),
        text: text.trim().to_owned(),
        segments: progress.segments,
        words: progress.words,
    })
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
