//! Voice activity: division of sound into speech and pauses, from the probability of speech in each frame.
//!
//! Speech begins with a frame whose probability reaches a threshold, and ends where a pause begins that is long enough: its
//! first frame is clearly below the threshold, and none of the following ones reaches it. These are the rules of Silero
//! VAD and of faster-whisper. [`SpeechDivider`] applies them to a stream, with at most one pause in memory, and
//! [`Timeline`] returns times in the sound from those in its speech.

use crate::SPEECH_RATE;

/// Number of samples in a frame.
pub const FRAME_SAMPLES: usize = 512;

/// Distance of the lower threshold, below which a pause begins, from the threshold of speech.
const HYSTERESIS: f32 = 0.15;

/// Minimum of the lower threshold.
const LEAST_THRESHOLD: f32 = 0.01;

/// Settings of voice activity detection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActivitySettings {
    /// Probability from which a frame is speech, above 0 and below 1.
    pub threshold: f32,
    /// Minimum duration of a pause that ends speech, in milliseconds.
    pub pause_ms: u32,
    /// Duration that is added before and after speech, in milliseconds.
    pub padding_ms: u32,
}

impl Default for ActivitySettings {
    /// Returns the settings of faster-whisper.
    fn default() -> Self {
        Self { threshold: 0.5, pause_ms: 2000, padding_ms: 400 }
    }
}

/// A run of samples with speech.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeechRun {
    /// Index of the first sample.
    pub start: usize,
    /// The samples.
    pub samples: Vec<f32>,
}

/// Divides a stream of frames into speech and pauses.
pub struct SpeechDivider {
    threshold: f32,
    /// Samples of a pause that divides speech.
    pause: usize,
    padding: usize,
    state: State,
    /// Samples that are not yet known to be speech, or may precede it.
    pending: Vec<f32>,
    /// Index of the first pending sample.
    start: usize,
}

/// State after a frame.
#[derive(Debug, Clone, Copy)]
enum State {
    /// A pause. Speech before it ends at this sample, with its padding.
    Pause { speech_end: usize },
    /// Speech, with the sample at which a pause may have begun.
    Speech { pause_start: Option<usize> },
}

impl SpeechDivider {
    /// Creates a divider at the start of a sound.
    pub fn new(settings: ActivitySettings) -> Self {
        Self {
            threshold: settings.threshold,
            pause: samples(settings.pause_ms),
            padding: samples(settings.padding_ms),
            state: State::Pause { speech_end: 0 },
            pending: Vec::new(),
            start: 0,
        }
    }

    /// Takes the next frame with its probability of speech. Returns the samples that are now known to be speech.
    pub fn push(&mut self, frame: &[f32], probability: f32) -> Option<SpeechRun> {
        let at = self.start + self.pending.len();
        self.pending.extend_from_slice(frame);
        let end = at + frame.len();
        let is_speech = probability >= self.threshold;
        let is_quiet = probability < (self.threshold - HYSTERESIS).max(LEAST_THRESHOLD);

        let known = match self.state {
            _ if is_speech => {
                self.state = State::Speech { pause_start: None };
                end
            }
            State::Pause { speech_end } => speech_end,
            State::Speech { pause_start } => {
                let pause_start = pause_start.or(is_quiet.then_some(at));
                let speech_end = pause_start.map_or(end, |start| start + self.padding);
                self.state = match pause_start {
                    Some(start) if is_quiet && at - start >= self.pause => State::Pause { speech_end },
                    _ => State::Speech { pause_start },
                };
                speech_end
            }
        };

        let run = self.take(known);
        if let State::Pause { .. } = self.state {
            // The rest may only be the padding before the next speech.
            let dropped = self.pending.len().saturating_sub(self.padding);
            self.pending.drain(..dropped);
            self.start += dropped;
        }
        run
    }

    /// Returns whether the last frame belongs to speech. The pause at the end of speech does, until it is long enough.
    pub fn is_in_speech(&self) -> bool {
        matches!(self.state, State::Speech { .. })
    }

    /// Returns the last samples of speech at the end of the sound.
    pub fn finish(mut self) -> Option<SpeechRun> {
        match self.state {
            State::Pause { speech_end } => self.take(speech_end),
            State::Speech { .. } => self.take(usize::MAX),
        }
    }

    /// Removes the samples before `end`.
    fn take(&mut self, end: usize) -> Option<SpeechRun> {
        let count = end.saturating_sub(self.start).min(self.pending.len());
        if count == 0 {
            return None;
        }
        let run = SpeechRun { start: self.start, samples: self.pending.drain(..count).collect() };
        self.start += count;
        Some(run)
    }
}

/// Returns the number of samples of a duration.
fn samples(milliseconds: u32) -> usize {
    milliseconds as usize * (SPEECH_RATE as usize / 1000)
}

/// Positions in a sound of the samples of its speech.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// Number of samples of the speech.
    length: usize,
    /// For each pause, the number of samples of the speech before it, and of all pauses up to it.
    pauses: Vec<Pause>,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    at: usize,
    dropped: usize,
}

impl Timeline {
    /// Adds a run of the speech. Runs are added in order.
    pub fn push(&mut self, run: &SpeechRun) {
        let dropped = run.start.saturating_sub(self.length);
        if dropped != self.pauses.last().map_or(0, |pause| pause.dropped) {
            self.pauses.push(Pause { at: self.length, dropped });
        }
        self.length += run.samples.len();
    }

    /// Returns the number of samples of the pauses before a sample of the speech.
    pub fn dropped_before(&self, sample: usize) -> usize {
        let before = self.pauses.partition_point(|pause| pause.at <= sample);
        before.checked_sub(1).map_or(0, |last| self.pauses[last].dropped)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        threshold: f32,
        pause_ms: u32,
        padding_ms: u32,
        probabilities: Vec<f32>,
        length: usize,
        /// First and last samples of speech, exclusive.
        speech: Vec<[usize; 2]>,
    }

    /// Returns the runs of a sound whose samples are their own indices.
    fn runs(case: &Case) -> Vec<SpeechRun> {
        let settings = ActivitySettings {
            threshold: case.threshold,
            pause_ms: case.pause_ms,
            padding_ms: case.padding_ms,
        };
        let sound: Vec<f32> = (0..case.length).map(|sample| sample as f32).collect();
        let mut divider = SpeechDivider::new(settings);
        let mut found = Vec::new();
        for (frame, &probability) in sound.chunks(FRAME_SAMPLES).zip(&case.probabilities) {
            found.extend(divider.push(frame, probability));
            assert!(divider.pending.len() <= divider.pause + divider.padding + 2 * FRAME_SAMPLES);
        }
        found.extend(divider.finish());
        found
    }

    #[test]
    fn speech_is_where_silero_finds_it() {
        let cases: Vec<Case> = serde_json::from_str(include_str!("../tests/goldens/activity.json")).unwrap();
        assert!(cases.iter().any(|case| case.speech.len() > 2));
        for case in &cases {
            let mut found: Vec<[usize; 2]> = Vec::new();
            for run in runs(case) {
                assert!(run.samples.iter().enumerate().all(|(at, x)| *x == (run.start + at) as f32));
                let end = run.start + run.samples.len();
                match found.last_mut() {
                    Some([_, last]) if *last == run.start => *last = end,
                    _ => found.push([run.start, end]),
                }
            }
            assert_eq!(found, case.speech, "{} {} {}", case.threshold, case.pause_ms, case.padding_ms);
        }
    }

    #[test]
    fn close_speech_is_not_divided() {
        let case = Case {
            threshold: 0.5,
            pause_ms: 64,
            padding_ms: 500,
            probabilities: vec![0.9, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0],
            length: 9 * FRAME_SAMPLES,
            speech: Vec::new(),
        };
        let found: Vec<f32> = runs(&case).into_iter().flat_map(|run| run.samples).collect();
        assert_eq!(found.len(), case.length);
        assert!(found.is_sorted());
    }

    #[test]
    fn speech_lasts_until_its_pause_is_long_enough() {
        let settings = ActivitySettings { threshold: 0.5, pause_ms: 64, padding_ms: 0 };
        let mut divider = SpeechDivider::new(settings);
        let mut after = |probability| {
            divider.push(&[0.0; FRAME_SAMPLES], probability);
            divider.is_in_speech()
        };
        let states = [0.4, 0.9, 0.1, 0.4, 0.9, 0.1, 0.1, 0.1, 0.0].map(&mut after);
        assert_eq!(states, [false, true, true, true, true, true, true, false, false]);
    }

    #[test]
    fn times_in_speech_have_times_in_the_sound() {
        let run = |start, length| SpeechRun { start, samples: vec![0.0; length] };
        let mut timeline = Timeline::default();
        [run(100, 10), run(110, 5), run(200, 20)].iter().for_each(|run| timeline.push(run));
        let check = |sample, expected| assert_eq!(sample + timeline.dropped_before(sample), expected);
        check(0, 100);
        check(14, 114);
        check(15, 200);
        check(34, 219);
        assert_eq!(Timeline::default().dropped_before(7), 0);
    }
}
