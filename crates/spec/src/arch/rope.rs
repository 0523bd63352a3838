//! Rotary position embeddings and the changes of their frequencies for long contexts.

use serde::{Deserialize, Serialize};

/// Rotary position embedding (Su et al. 2021, arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Elements per head over which the frequencies are spread; at most the head size, even.
    pub dims: usize,
    /// Change of the frequencies for contexts longer than the original training context.
    pub scaling: RopeScaling,
}

impl Rope {
    /// Returns the number of pairs of elements per head that rotate, without the last ones whose frequency
    /// [`RopeScaling::Factors`] divides to nothing.
    pub fn rotating_pairs(&self) -> usize {
        match &self.scaling {
            RopeScaling::Factors { factors } => {
                factors.iter().rposition(|&factor| factor < RopeScaling::STILL).map_or(0, |last| last + 1)
            }
            _ => self.dims / 2,
        }
    }

    /// Returns the number of pairs in the cosines and sines of heads with `head_size` elements: those that rotate, and as
    /// many others as make a multiple of 8, which ONNX Runtime's `GroupQueryAttention` requires.
    pub fn pairs(&self, head_size: usize) -> usize {
        self.rotating_pairs().next_multiple_of(8).min(head_size / 2)
    }
}

impl RopeScaling {
    /// Divisor of the frequency of a pair that does not rotate, as in GGUF files.
    pub const STILL: f32 = 1e30;

    /// Returns YaRN scaling with the constants of its paper, for Llama's and most other models.
    pub fn yarn(factor: f64, original_context: usize) -> Self {
        let attention_factor = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        let [beta_fast, beta_slow] = [32.0, 1.0];
        Self::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor, truncate: true }
    }
}

fn truncates() -> bool {
    true
}

/// Scaling of rotary frequencies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// No scaling.
    None,
    /// All frequencies are divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies are divided, high ones are kept, with a linear transition between them.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Original training context, in tokens.
        original_context: usize,
    },
    /// YaRN (Peng et al. 2023, arXiv:2309.00071): pairs that rotate often in the original context keep their
    /// frequencies, those that rotate rarely are divided, with a linear transition between them.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// Original training context, in tokens.
        original_context: usize,
        /// Pairs with more rotations in the original context keep their frequencies.
        beta_fast: f64,
        /// Pairs with fewer rotations in the original context are divided.
        beta_slow: f64,
        /// Factor on rotated queries and keys.
        attention_factor: f64,
        /// True if the transition begins and ends at whole pairs.
        #[serde(default = "truncates", skip_serializing_if = "Clone::clone")]
        truncate: bool,
    },
    /// LongRoPE (Ding et al. 2024, arXiv:2402.13753): divisors per frequency. One set is for sequences up to the
    /// original context and another for longer ones; all keys of a sequence use the same set.
    LongRope {
        /// One divisor per pair of rotated elements, for sequences up to `original_context` tokens.
        short: Vec<f32>,
        /// One divisor per pair of rotated elements, for longer sequences.
        long: Vec<f32>,
        /// Original training context, in tokens.
        original_context: usize,
        /// Factor on rotated queries and keys.
        attention_factor: f64,
    },
    /// Divisors per frequency given by the checkpoint (GGUF's `rope_freqs.weight`).
    Factors {
        /// One divisor per pair of rotated elements.
        factors: Vec<f32>,
    },
}
