//! What a model computes, without its weights: enough to build either graph variant.
//!
//! A family (Llama, BERT, …) is a way of filling these structs from a checkpoint's configuration; the graph
//! builder reads only the structs. Weight names that go with them are in [`DecoderArch`] and [`EncoderArch`].

use serde::{Deserialize, Serialize};

/// A model's structure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Architecture {
    /// A causal language model with a KV cache.
    Decoder(DecoderArch),
    /// A bidirectional encoder that gives one vector per text.
    Encoder(EncoderArch),
}

/// The model family, as named by its publisher's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Llama and what shares its structure: TinyLlama, SmolLM2, Mistral.
    Llama,
    /// BERT and MiniLM.
    Bert,
}

/// A decoder-only transformer with pre-norm residual blocks.
///
/// Canonical weight names, linear weights as `[out, in]`:
/// `embed.weight [vocab, hidden]`, `layers.{i}.attn_norm.weight`, `layers.{i}.attn.{q,k,v,o}_proj.{weight,bias}`,
/// `layers.{i}.mlp_norm.weight`, `layers.{i}.mlp.{gate,up,down}_proj.{weight,bias}`, `norm.weight`,
/// `head.weight [vocab, hidden]` (absent when tied).
/// Rows of q and k are in the rotate-half order (the two halves of a head are rotated against each other).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecoderArch {
    /// The family.
    pub family: Family,
    /// Vocabulary entries.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// One entry per layer.
    pub layers: Vec<DecoderLayer>,
    /// Epsilon of every RMS norm.
    pub norm_epsilon: f32,
    /// Rotary positions.
    pub rope: Rope,
    /// Whether the head's weight is the embedding's.
    pub tied_head: bool,
}

/// One decoder layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecoderLayer {
    /// Attention part.
    pub attention: Attention,
    /// Feed-forward part.
    pub mlp: Mlp,
}

/// Attention with grouped key/value heads (Ainslie et al. 2023, arXiv:2305.13245).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_size: usize,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// Sliding window in tokens, where the layer has one.
    pub window: Option<usize>,
}

/// A feed-forward part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    /// Inner width.
    pub inner: usize,
    /// Activation function.
    pub activation: Activation,
    /// Whether a gate multiplies the up projection (Shazeer 2020, arXiv:2002.05202).
    pub gated: bool,
    /// Whether the projections have biases.
    pub bias: bool,
}

/// Activation functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// Exact GELU, through the error function.
    Gelu,
    /// GELU through the tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

/// Rotary position embedding (Su et al. 2021, arXiv:2104.09864).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Rotated elements per head; at most the head size, even.
    pub dims: usize,
    /// Change of the frequencies for contexts longer than the model was first trained on.
    pub scaling: RopeScaling,
}

/// How rotary frequencies are stretched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1's: low frequencies divided, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// The context the model was first trained on.
        original_context: usize,
    },
    /// Divisors per frequency given by the checkpoint (GGUF's `rope_freqs.weight`).
    Factors {
        /// One divisor per pair of rotated elements.
        factors: Vec<f32>,
    },
}

/// A BERT-like encoder with post-norm residual blocks, and how its rows become one vector.
///
/// Canonical weight names: `embed.word.weight [vocab, hidden]`, `embed.position.weight [positions, hidden]`,
/// `embed.type.weight [types, hidden]`, `embed.norm.{weight,bias}`, `layers.{i}.attn.{q,k,v,o}_proj.{weight,bias}`,
/// `layers.{i}.attn_norm.{weight,bias}`, `layers.{i}.mlp.{up,down}_proj.{weight,bias}`,
/// `layers.{i}.mlp_norm.{weight,bias}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EncoderArch {
    /// The family.
    pub family: Family,
    /// Vocabulary entries.
    pub vocab: usize,
    /// Width of the residual stream, and of the vector.
    pub hidden: usize,
    /// Learned positions: the longest text the weights allow, in tokens.
    pub positions: usize,
    /// Number of layers.
    pub layers: usize,
    /// Attention heads; divides `hidden`.
    pub heads: usize,
    /// Inner width of the feed-forward part.
    pub inner: usize,
    /// Activation of the feed-forward part.
    pub activation: Activation,
    /// Epsilon of every layer norm.
    pub norm_epsilon: f32,
    /// How rows become one vector.
    pub pooling: Pooling,
    /// Whether the vector is scaled to unit length.
    pub normalize: bool,
}

/// How an encoder's rows become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The mean over the text's tokens.
    Mean,
    /// The first token's row.
    Cls,
}
