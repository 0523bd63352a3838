//! Roles of the inputs and outputs of graphs.

use serde::{Deserialize, Serialize};

/// A typed role of a graph input or output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Slot {
    /// Input `[batch, sequence, hidden]`: embedded tokens.
    Embeds,
    /// Input `[batch, sequence]` i64: token ids, for imported graphs that contain their embedding.
    Tokens,
    /// Input `[batch, sequence]` i64: 0 for tokens of the first text, 1 for those of the second.
    Segments,
    /// Input `[batch, sequence]` i64: index of each token in its text, for rotary positions, or of each row of an audio
    /// encoder in its window.
    Positions,
    /// Input `[batch, sequence, layers · width]`: the tokens' rows of the per-layer table.
    PerLayerEmbeds,
    /// Input `[batch]` i32: for each row, the number of past and new tokens together, minus one.
    SeqlensK,
    /// Input scalar i32: maximum over the batch of the number of past and new tokens together.
    TotalLength,
    /// Input `[rows]` i64: rows of the flattened `[batch · sequence]` hidden states to compute logits for.
    LogitsRows,
    /// Input `[batch, sequence]` i32: 1 for a token, 0 for padding.
    PaddingMask,
    /// Input `[batch, kv_heads, capacity, head_size]`: past keys.
    PastKey {
        /// Entry of the cache.
        layer: usize,
    },
    /// Input, as [`Slot::PastKey`]: past values.
    PastValue {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output, the same buffer as [`Slot::PastKey`]: past and new keys. Each layer that shares an entry has such an
    /// output and writes the same values again.
    PresentKey {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output, the same buffer as [`Slot::PastValue`]: past and new values.
    PresentValue {
        /// Entry of the cache.
        layer: usize,
    },
    /// Input `[batch, kernel - 1, hidden]`: inputs of a short convolution for the last tokens of each sequence, zero before
    /// its start.
    PastConvolution {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output `[batch, sequence, hidden]`: inputs of a short convolution for the new tokens. The host writes them into the
    /// cache.
    NewConvolution {
        /// Entry of the cache.
        layer: usize,
    },
    /// Input `[1, kernel - 1 + tokens, 1]`: 1 for the rows of past and new tokens that a short convolution reads in place, 0
    /// for padding and for rows that [`Slot::ConvolutionShift`] moves.
    ConvolutionRows,
    /// Input `[1, kernel - 1 + tokens, kernel - 1]`: matrix that moves the rows of [`Slot::PastConvolution`] to the place
    /// before the first new token.
    ConvolutionShift,
    /// Input `[batch, heads, key_size, value_size]` f32: state of a recurrence after the past tokens.
    PastState {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output, as [`Slot::PastState`]: state after the new tokens too.
    PresentState {
        /// Entry of the cache.
        layer: usize,
    },
    /// Input `[batch, kernel - 1, width]` f32: inputs of the convolution before a recurrence for the last past tokens,
    /// zero before the first one.
    PastConvolutionState {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output, as [`Slot::PastConvolutionState`]: inputs for the last of past and new tokens.
    PresentConvolutionState {
        /// Entry of the cache.
        layer: usize,
    },
    /// Input `[batch, sequence]` f32: 1 for a new token, 0 for padding. A row has its tokens first and its padding after them.
    /// A graph with a state has this input. Padding leaves the states of its row unchanged, also if the row has no token.
    TokenMask,
    /// Output `[rows, vocab]`: logits of the kept tokens.
    Logits,
    /// Output `[batch, hidden]`: one vector per text.
    Embedding,
    /// Input `[1, 1, tokens, head_size / 2]`: cosines of the new tokens' rotary angles.
    Cos,
    /// Input, as [`Slot::Cos`]: sines.
    Sin,
    /// Input, as [`Slot::Cos`], for layers with local rotary positions.
    LocalCos,
    /// Input, as [`Slot::LocalCos`]: sines.
    LocalSin,
    /// Input `[positions, head_size / 2]`: cosines of the rotary angles of every position, for models with two sets of
    /// rotary factors. It has at least as many positions as the longest sequence of the batch has tokens.
    CosTable,
    /// Input, as [`Slot::CosTable`]: sines.
    SinTable,
    /// Input `[1, 1, tokens, past + tokens]`, or `[1, 1, 1, length]` for an encoder: additive attention mask, 0 for
    /// visible tokens.
    Mask {
        /// Sliding window of the layers that use it.
        window: Option<usize>,
    },
    /// Output `[1, kv_heads, head_size, tokens]`, or `[1, kv_heads, tokens, head_size]` if the cache has keys in rows:
    /// keys of the new tokens. The host writes them into the cache.
    NewKey {
        /// Entry of the cache.
        layer: usize,
    },
    /// Output `[1, kv_heads, tokens, head_size]`: the new tokens' values, as [`Slot::NewKey`].
    NewValue {
        /// Entry of the cache.
        layer: usize,
    },
    /// Hidden states after a graph's last layer, `[1, tokens, hidden]`: the input of further layers or of the head.
    /// With several residual streams, all of them: `[1, tokens, streams · hidden]`.
    Hidden,
    /// Gated per-layer rows of the tokens, `[1, tokens, layers · width]`: an output of the first of several graphs and
    /// an input of the others.
    PerLayerRows,
    /// Input `[1, 1, length]`: weight of each row in an encoder's pooled vector.
    PoolWeights,
    /// Input `[batch, sequence, hidden]`: sum of position and segment embeddings, for factored embeddings.
    PositionEmbeds,
    /// Output `[batch, labels]`: scores of a text or of a pair of texts.
    Scores,
    /// Output `[batch, sequence, 2]`: start and end scores of an answer at each token.
    Spans,
    /// Output `[batch, sequence, labels]`: scores of each token.
    TokenScores,
    /// Input `[1, bins, frames]`: the log-mel spectrogram of a window, or of the beginning of one.
    Features,
    /// Output of an encoder and input of its decoder, `[1, heads, positions, head_size]`: keys of the encoder's rows in
    /// one of the decoder's layers.
    CrossKey {
        /// The decoder's layer.
        layer: usize,
    },
    /// As [`Slot::CrossKey`]: values.
    CrossValue {
        /// The decoder's layer.
        layer: usize,
    },
    /// Output `[1, tokens, heads · head_size]`: queries of the tokens to the encoder's rows, in a layer with alignment
    /// heads.
    CrossQuery {
        /// The decoder's layer.
        layer: usize,
    },
    /// Input `[1, 3, height, width]`: values of a picture.
    Pixels,
    /// Output `[1, rows, hidden]`: embedding rows of a picture, in place of embedded tokens.
    PictureRows,
    /// Input `[1, frames, bins]`: the log-mel spectrogram of a sound, and zeros after its end.
    FrameFeatures,
    /// Input `[1, frames]`: 1 for a frame of the sound, 0 after its end.
    FrameMask,
    /// Output `[1, rows + 2, hidden]`: embedding rows of the frames of a sound, and those of the tokens in place of missing rows
    /// and after the rows.
    SoundRows,
    /// Input `[1, phonemes]` i64: ids of phonemes, between two zeros or with pads.
    Phonemes,
    /// Input `[1]` i64: length of [`Slot::Phonemes`].
    PhonemeCount,
    /// Input `[1]` f32: factor of the speed of speech.
    Speed,
    /// Input `[1, width]` f32: style of a speaker for a number of phonemes.
    Style,
    /// Input `[1]` i64: number of a speaker.
    SpeakerNumber,
    /// Input `[3]` f32: scales of the noise, of the durations, and of the noise of the durations.
    NoiseScales,
    /// Input `[1]` i64: seed of the noise, from 0 to 2³¹ - 2.
    Seed,
    /// Output f32: samples of speech. Also the input `[1, samples]` of an encoder that reads samples.
    Samples,
    /// Output `[1, bins, frames]`: logarithm of the magnitude of the harmonics of speech.
    HarmonicMagnitude,
    /// Output `[1, bins, frames]`: phase of the harmonics, before its limitation to -π to π.
    HarmonicPhase,
    /// Output `[1, bins, frames]`: logarithm of the magnitude of noise.
    NoiseMagnitude,
    /// Output `[1, bins, frames]`: logarithm of the magnitude of the rest of the spectrum.
    RestMagnitude,
    /// Output `[1, bins, frames]`: phase of the rest of the spectrum.
    RestPhase,
    /// Output `[1, frames]`: pitch in Hz, 0 without a voice.
    Pitch,
    /// Input `[1]` i64: number of frames of [`Slot::Features`].
    FrameCount,
    /// Input `[1, samples]` i64: 1 for each sample.
    SampleMask,
    /// Output of an encoder and input of its decoder, f32: rows of the encoder. A transducer's encoder has
    /// `[1, hidden, rows]`, and its decoder reads one row, `[1, hidden, 1]`; other models have `[1, rows, hidden]`.
    EncoderRows,
    /// Output `[1]` i64: number of rows of [`Slot::EncoderRows`].
    EncoderRowCount,
    /// Output `[1, rows, vocab]` f32: logarithms of the tokens' probabilities for each row of the encoder.
    TokenLogProbabilities,
    /// Input `[1]`: length of [`Slot::Tokens`].
    TokenCount,
    /// Input and output `[layers, 1, width]` f32: state of the network that reads a transducer's tokens.
    PredictionState {
        /// Number of the state.
        index: usize,
    },
    /// Input `[1]` bool: whether the graph reads the cache.
    ReadsCache,
}

impl Slot {
    /// Outputs of a voice that computes a spectrum.
    pub const SPECTRUM: [Self; 6] = [
        Self::HarmonicMagnitude,
        Self::HarmonicPhase,
        Self::NoiseMagnitude,
        Self::RestMagnitude,
        Self::RestPhase,
        Self::Pitch,
    ];
}
