//! Reading of sounds: the features that an audio tower reads, and the tokens that stand for a sound.

use serde::{Deserialize, Serialize};

use super::{Contradiction, GraphEntry, Part, Slot};
use crate::{TokenId, arch::ConformerTower};

/// Reading of sounds by a decoder with an audio tower.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AudioEntry {
    /// Graphs of the tower, one for each variant.
    pub graphs: Vec<GraphEntry>,
    /// Features that the tower reads.
    pub preprocessing: SoundPreprocessing,
    /// Tokens that stand for a sound.
    pub placeholder: SoundPlaceholder,
}

/// A token before the rows of a sound, the last of which is that of the token after them, as in Gemma 3n.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SoundPlaceholder {
    /// Token before the rows.
    pub start: TokenId,
    /// Token in place of a row. A chat template writes it once for a sound.
    pub row: TokenId,
}

/// Conversion of samples into the log-mel spectrogram that an audio tower reads, as `Gemma3nAudioFeatureExtractor` of
/// `transformers` computes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoundPreprocessing {
    /// Sample rate in Hz.
    pub sample_rate: usize,
    /// Maximum number of samples of a sound.
    pub max_samples: usize,
    /// Number of mel bins.
    pub bins: usize,
    /// Samples of a frame.
    pub frame: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Samples of the Fourier transform, a power of two.
    pub transform: usize,
    /// Lowest frequency of the mel bins in Hz.
    pub min_frequency: f64,
    /// Highest frequency of the mel bins in Hz.
    pub max_frequency: f64,
    /// Factor of the sample before each one, which is subtracted from it.
    pub preemphasis: f64,
    /// Emphasis within each frame, as HTK does, whose first sample is multiplied by one minus the factor.
    pub emphasis_in_frames: bool,
    /// Factor of the samples.
    pub scale: f64,
    /// Lowest magnitude of a mel bin.
    pub floor: f64,
    /// Means of the bins, which are subtracted from the logarithms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean: Option<Vec<f64>>,
    /// Divisors of the bins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub std: Option<Vec<f64>>,
}

impl SoundPreprocessing {
    /// Largest number of samples of a sound, and of a transform.
    pub const MAX_SAMPLES: usize = 1 << 24;

    /// Largest number of weights of the mel filters: the bins of a transform.
    const MAX_FILTERS: usize = 1 << 24;

    /// Largest number of samples of the transforms of all frames.
    const MAX_TRANSFORMED: usize = 1 << 28;

    /// Sounds are extended by silence to a multiple of this number of samples, as the extractor does.
    pub const PADDING: usize = 128;

    /// Returns the number of samples from which a sound of `samples` gets its frames.
    pub fn padded_samples(&self, samples: usize) -> usize {
        samples.max(self.frame + 1).next_multiple_of(Self::PADDING)
    }

    /// Returns the number of frames of a sound.
    pub fn frames(&self, samples: usize) -> usize {
        (self.padded_samples(samples) - self.frame - 1) / self.hop + 1
    }

    /// Returns the maximum duration of a sound in seconds, as in `30` or `1.63`.
    pub fn max_seconds(&self) -> String {
        let hundredths = self.max_samples * 100 / self.sample_rate;
        let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }

    /// Returns what was expected and what was found if the numbers cannot be those of an extractor.
    pub fn contradiction(&self) -> Option<[String; 2]> {
        let numbers = [self.sample_rate, self.max_samples, self.bins, self.frame, self.hop, self.transform];
        if let Some(number) = numbers.iter().find(|number| !(1..=Self::MAX_SAMPLES).contains(number)) {
            let expected = format!("numbers of the features of sounds from 1 to {}", Self::MAX_SAMPLES);
            return Some([expected, number.to_string()]);
        }
        if !self.transform.is_power_of_two() || self.transform < self.frame {
            let expected = format!("a transform of a power of two from {}", self.frame);
            return Some([expected, self.transform.to_string()]);
        }
        let filters = self.bins.saturating_mul(self.transform);
        let transformed = self.frames(self.max_samples).saturating_mul(self.transform);
        let costs = [
            (filters, Self::MAX_FILTERS, "mel bins times the samples of a transform"),
            (transformed, Self::MAX_TRANSFORMED, "frames times the samples of a transform"),
        ];
        if let Some((found, most, what)) = costs.into_iter().find(|(found, most, _)| found > most) {
            return Some([format!("at most {most} {what}"), found.to_string()]);
        }

        let vectors = [&self.mean, &self.std].into_iter().flatten();
        if let Some(values) = vectors.clone().find(|values| values.len() != self.bins) {
            return Some([format!("means and divisors of {} bins", self.bins), values.len().to_string()]);
        }
        let numbers = [self.min_frequency, self.max_frequency, self.preemphasis, self.scale, self.floor];
        let is_finite = numbers.iter().chain(vectors.flatten()).all(|value| value.is_finite());
        let is_zero = self.std.iter().flatten().any(|divisor| *divisor == 0.0);
        let is_ordered = 0.0 <= self.min_frequency && self.min_frequency < self.max_frequency;
        if !is_finite || is_zero || !is_ordered || self.floor <= 0.0 {
            let expected =
                "ascending frequencies, a floor above 0, and finite means and divisors other than 0";
            return Some([expected.to_owned(), format!("{numbers:?}, {:?} and {:?}", self.mean, self.std)]);
        }
        None
    }
}

impl AudioEntry {
    /// Fails if the entry contradicts the tower, or a token is not in a vocabulary of `vocab` tokens.
    pub(super) fn check(&self, arch: &ConformerTower, vocab: usize) -> Result<(), Contradiction> {
        for graph in &self.graphs {
            let slots = [graph.input(Slot::FrameFeatures), graph.input(Slot::FrameMask)];
            let has_slots = slots.iter().all(Option::is_some) && graph.output(Slot::SoundRows).is_some();
            if graph.part != Part::Audio || !has_slots {
                let expected = format!("a graph from the frames of a sound to rows in {}", graph.file);
                return Err(Contradiction::new(expected, format!("{:?}", graph.part)));
            }
        }

        if let Some([expected, found]) = self.preprocessing.contradiction() {
            return Err(Contradiction::new(expected, found));
        }
        let SoundPreprocessing { bins, max_samples, .. } = self.preprocessing;
        if bins != arch.bins {
            return Err(Contradiction::new(format!("{} bins of sounds", arch.bins), bins.to_string()));
        }
        let frames = self.preprocessing.frames(max_samples);
        if frames > arch.max_frames() {
            let expected = format!("at most {} frames of a sound", arch.max_frames());
            return Err(Contradiction::new(expected, frames.to_string()));
        }
        let SoundPlaceholder { start, row } = self.placeholder;
        match [start, row].into_iter().find(|&token| token as usize >= vocab) {
            Some(token) => {
                let expected = format!("tokens of sounds below the vocabulary size {vocab}");
                Err(Contradiction::new(expected, token.to_string()))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published() -> SoundPreprocessing {
        SoundPreprocessing {
            sample_rate: 16_000,
            max_samples: 480_000,
            bins: 128,
            frame: 512,
            hop: 160,
            transform: 1024,
            min_frequency: 125.0,
            max_frequency: 7600.0,
            preemphasis: 0.97,
            emphasis_in_frames: true,
            scale: 1.0,
            floor: 1e-5,
            mean: None,
            std: None,
        }
    }

    #[test]
    fn costs_of_features_are_bounded() {
        assert_eq!(published().contradiction(), None);
        let check = |change: fn(&mut SoundPreprocessing), expect: &str| {
            let mut numbers = published();
            change(&mut numbers);
            let [expected, found] = numbers.contradiction().unwrap();
            assert_eq!(format!("{expected}, found {found}"), expect);
        };
        check(
            |numbers| numbers.bins = 16_385,
            "at most 16777216 mel bins times the samples of a transform, found 16778240",
        );
        check(
            |numbers| {
                numbers.hop = 1;
                numbers.max_samples = 1 << 20;
            },
            "at most 268435456 frames times the samples of a transform, found 1073217536",
        );
        check(
            |numbers| numbers.transform = 0,
            "numbers of the features of sounds from 1 to 16777216, found 0",
        );
    }
}
