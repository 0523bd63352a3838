//! Samples of a transcription: those of its audio, or of the speech in it.

use narthex_audio::activity::{ActivitySettings, FRAME_SAMPLES, SpeechDivider, SpeechRun, Timeline};

use super::Chunks;
use crate::error::Error;

/// Minimum samples that the detector reads at once, except at the end: two seconds. Chunks are often shorter than a frame.
const BLOCK_SAMPLES: usize = 64 * FRAME_SAMPLES;

/// Returns the probability of speech in each frame of the samples that follow.
pub(super) type Detect<'a> = Box<dyn FnMut(&[f32]) -> Result<Vec<f32>, Error> + 'a>;

/// A source of samples, with their times in the audio.
pub(super) struct SampleSource<'a> {
    audio: Chunks<'a>,
    filter: Option<SpeechFilter<'a>>,
    /// Number of samples of the audio that were read.
    read: usize,
    has_ended: bool,
}

/// Selection of the speech in audio.
struct SpeechFilter<'a> {
    detect: Detect<'a>,
    /// `None` after the end of the audio.
    divider: Option<SpeechDivider>,
    timeline: Timeline,
    /// Samples that the detector has not read.
    rest: Vec<f32>,
}

impl<'a> SampleSource<'a> {
    /// Returns the source of all samples.
    pub(super) fn whole(audio: Chunks<'a>) -> Self {
        Self { audio, filter: None, read: 0, has_ended: false }
    }

    /// Returns the source of the samples with speech.
    pub(super) fn speech(audio: Chunks<'a>, settings: ActivitySettings, detect: Detect<'a>) -> Self {
        let divider = Some(SpeechDivider::new(settings));
        let filter = SpeechFilter { detect, divider, timeline: Timeline::default(), rest: Vec::new() };
        Self { filter: Some(filter), ..Self::whole(audio) }
    }

    /// Adds the samples of the next chunk, of which there may be none.
    pub(super) fn read(&mut self, samples: &mut Vec<f32>) -> Result<(), Error> {
        let chunk = self.audio.next().transpose()?;
        self.has_ended = chunk.is_none();
        let chunk: Vec<f32> = chunk.unwrap_or_default().into_iter().map(finite).collect();
        self.read += chunk.len();
        match &mut self.filter {
            None => samples.extend(chunk),
            Some(filter) => filter.read(chunk, self.has_ended, samples)?,
        }
        Ok(())
    }

    /// Returns whether the audio has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns the number of samples of the audio that were read.
    pub(super) fn samples_read(&self) -> usize {
        self.read
    }

    /// Returns the number of samples of the audio that were left out before a sample of this source.
    pub(super) fn dropped_before(&self, sample: usize) -> usize {
        self.filter.as_ref().map_or(0, |filter| filter.timeline.dropped_before(sample))
    }
}

impl SpeechFilter<'_> {
    /// Adds the samples of a chunk that are known to be speech.
    fn read(&mut self, chunk: Vec<f32>, is_last: bool, samples: &mut Vec<f32>) -> Result<(), Error> {
        self.rest.extend(chunk);
        let count = match self.rest.len() {
            length if is_last => length,
            length if length < BLOCK_SAMPLES => return Ok(()),
            length => length / FRAME_SAMPLES * FRAME_SAMPLES,
        };
        let frames: Vec<f32> = self.rest.drain(..count).collect();
        let probabilities = if frames.is_empty() { Vec::new() } else { (self.detect)(&frames)? };
        for (frame, probability) in frames.chunks(FRAME_SAMPLES).zip(probabilities) {
            let run = self.divider.as_mut().and_then(|divider| divider.push(frame, probability));
            self.keep(run, samples);
        }
        if is_last {
            let run = self.divider.take().and_then(SpeechDivider::finish);
            self.keep(run, samples);
        }
        Ok(())
    }

    fn keep(&mut self, run: Option<SpeechRun>, samples: &mut Vec<f32>) {
        if let Some(run) = run {
            self.timeline.push(&run);
            samples.extend(run.samples);
        }
    }
}

/// Returns a sample, or 0 for one that is not a number.
fn finite(sample: f32) -> f32 {
    if sample.is_finite() { sample } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads audio whose frames are speech if their first sample is above 0.5. Returns the samples and the source.
    fn read(chunks: Vec<Vec<f32>>, check: impl FnOnce(&SampleSource<'_>, &[f32])) {
        let mut audio = chunks.into_iter().map(Ok);
        let settings = ActivitySettings { threshold: 0.5, pause_ms: 320, padding_ms: 32 };
        let detect = |frames: &[f32]| {
            Ok(frames.chunks(FRAME_SAMPLES).map(|frame| if frame[0] > 0.5 { 0.9 } else { 0.0 }).collect())
        };
        let mut source = SampleSource::speech(&mut audio, settings, Box::new(detect));
        let mut samples = Vec::new();
        while !source.has_ended() {
            source.read(&mut samples).unwrap();
        }
        check(&source, &samples);
    }

    #[test]
    fn pauses_are_left_out_and_times_are_those_of_the_audio() {
        let frames = |count: usize, value: f32| vec![value; count * FRAME_SAMPLES];
        let sound =
            [frames(40, 0.0), frames(10, 0.75), frames(60, 0.0), frames(5, 1.0), vec![1.0; 100]].concat();
        let length = sound.len();
        // Chunks of any length give the same samples.
        for size in [160, 512, 5_000, length] {
            read(sound.chunks(size).map(<[f32]>::to_vec).collect(), |source, samples| {
                assert_eq!(source.samples_read(), length);
                let first: Vec<usize> = [0.75, 1.0]
                    .iter()
                    .map(|value| samples.iter().position(|x| x == value).unwrap())
                    .collect();
                let times: Vec<usize> = first.iter().map(|&at| at + source.dropped_before(at)).collect();
                assert_eq!(times, [40 * FRAME_SAMPLES, 110 * FRAME_SAMPLES], "chunks of {size}");
                assert_eq!(samples.len(), (1 + 10 + 1 + 1 + 5) * FRAME_SAMPLES + 100);
            });
        }
        read(vec![frames(300, 0.0)], |source, samples| {
            assert_eq!((samples.len(), source.samples_read()), (0, 300 * FRAME_SAMPLES));
        });
        read(Vec::new(), |source, samples| assert_eq!((samples.len(), source.samples_read()), (0, 0)));
    }

    #[test]
    fn samples_that_are_no_numbers_are_silence() {
        let mut audio = [vec![f32::NAN, 0.5, f32::INFINITY]].into_iter().map(Ok);
        let mut source = SampleSource::whole(&mut audio);
        let mut samples = Vec::new();
        source.read(&mut samples).unwrap();
        assert_eq!(samples, [0.0, 0.5, 0.0]);
        assert_eq!(source.dropped_before(2), 0);
    }
}
