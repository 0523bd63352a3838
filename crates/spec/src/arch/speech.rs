//! Encoder-decoder models that transcribe speech.

use serde::{Deserialize, Serialize};

use super::{Activation, DecoderArch, Family, NormKind};

/// A model that transcribes speech (Radford et al. 2022, arXiv:2212.04356): an encoder over the log-mel spectrogram of a
/// window, and a decoder that attends to its own tokens and to the encoder's rows. Every part is pre-norm. The head
/// shares the weight of the token embedding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SpeechArch {
    /// Model family.
    pub family: Family,
    /// Number of vocabulary entries.
    pub vocab: usize,
    /// Width of both residual streams.
    pub hidden: usize,
    /// Number of mel bands of a frame.
    pub bins: usize,
    /// Number of rows of the encoder, each for two frames.
    pub source_positions: usize,
    /// Maximum length of the decoder's sequence, in tokens.
    pub target_positions: usize,
    /// Layers of the encoder.
    pub encoder: SpeechLayers,
    /// Layers of the decoder.
    pub decoder: SpeechLayers,
    /// Activation of the convolutions and the feed-forward parts.
    pub activation: Activation,
    /// Epsilon of every layer norm.
    pub norm_epsilon: f32,
    /// Heads whose attention to the encoder's rows follows the speech, each as layer and head, for times of words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alignment_heads: Vec<[usize; 2]>,
}

/// Layers of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpeechLayers {
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads; divides the width.
    pub heads: usize,
    /// Inner width of the feed-forward parts.
    pub inner: usize,
}

impl SpeechArch {
    /// Number of frames of the spectrogram for each row of the encoder.
    pub const FRAMES_PER_ROW: usize = 2;

    /// Number of frames that a convolution reads for one of its outputs.
    pub const KERNEL: usize = 3;

    /// Returns the number of frames of a window's spectrogram.
    pub fn frames(&self) -> usize {
        self.source_positions.saturating_mul(Self::FRAMES_PER_ROW)
    }

    /// Returns the number of elements of a head of the decoder.
    pub fn head_size(&self) -> usize {
        self.hidden / self.decoder.heads.max(1)
    }

    /// Returns the decoder's layers with alignment heads, in ascending order.
    pub fn alignment_layers(&self) -> Vec<usize> {
        let mut layers: Vec<usize> = self.alignment_heads.iter().map(|[layer, _]| *layer).collect();
        layers.sort_unstable();
        layers.dedup();
        layers
    }

    /// Returns the embedding, the positions and the head of the decoder as those of a decoder without layers.
    pub fn outer_decoder(&self) -> DecoderArch {
        DecoderArch {
            family: self.family,
            vocab: self.vocab,
            hidden: self.hidden,
            context: self.target_positions,
            norm: NormKind::Layer,
            norm_epsilon: self.norm_epsilon,
            tied_head: true,
            ..DecoderArch::default()
        }
    }
}
