//! Model architectures, without weights: enough to build either graph variant.
//!
//! A family (Llama, BERT, …) fills these structs from a checkpoint's configuration; the graph builder reads only the
//! structs. [`Architecture::weights`] states the weights.

mod altup;
mod conformer;
mod convolution;
mod delta_rule;
mod dynamic_only;
mod embedder;
mod encoder;
mod family;
mod feed_forward;
mod head;
mod limits;
mod mamba;
mod mobilenet;
mod recurrence;
mod rope;
mod speech;
mod structure;
mod vision;
mod weights;

use serde::{Deserialize, Serialize};

pub use altup::{AltUp, PerLayer};
pub use conformer::{ConformerTower, FrameConvolution};
pub use convolution::ShortConvolution;
pub use delta_rule::{GatedDeltaRule, KeyHeadOrder};
pub use dynamic_only::DynamicOnly;
pub use embedder::{AttentionDirection, ClassifierHidden, ClassifierLayers, EmbedderArch};
pub use encoder::{
    Bottleneck, BottleneckAttention, EncoderArch, EncoderHead, EncoderNorm, FactoredEmbedding, Pooling,
    UnknownPooling,
};
pub use family::Family;
pub use feed_forward::{Experts, FeedForward, GateClamp, Mlp, Routing};
pub use mamba::Mamba2;
pub use mobilenet::{EndToken, MobileBlock, MobileNetTower, PlacedBlock};
pub use recurrence::Recurrence;
pub use rope::{Rope, RopeScaling};
pub use speech::{SpeechArch, SpeechLayers};
pub use structure::{
    ImportedDecoder, ImportedEncoder, ImportedTranscriber, ImportedVoice, Steps, Structure,
    TranscriberFamily, VoiceFamily,
};
pub use vision::{Connector, PatchTower, VisionArch};
pub use weights::{Component, Projection, Table, WeightName, WeightRole, WeightSpec};

/// A model's structure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Architecture {
    /// A causal language model with a KV cache.
    Decoder(DecoderArch),
    /// A bidirectional encoder with a head, such as one vector per text.
    Encoder(EncoderArch),
    /// An embedding model or a classifier with the layers of a decoder.
    Embedder(EmbedderArch),
    /// An encoder-decoder model that transcribes speech.
    Speech(SpeechArch),
}

impl Architecture {
    /// Returns the maximum sequence length that the weights allow, in tokens.
    pub fn longest(&self) -> usize {
        match self {
            Self::Decoder(arch) => arch.context,
            Self::Encoder(arch) => arch.positions,
            Self::Embedder(arch) => arch.decoder.context,
            Self::Speech(arch) => arch.target_positions,
        }
    }

    /// Returns the head of an encoder; `None` for other models.
    pub fn head(&self) -> Option<&EncoderHead> {
        match self {
            Self::Encoder(arch) => Some(&arch.head),
            Self::Embedder(arch) => Some(&arch.head),
            Self::Decoder(_) | Self::Speech(_) => None,
        }
    }
}

/// A decoder-only transformer.
///
/// [`DecoderArch::weights`] states its weights.
///
/// In rows of q and k, the pairs of a head come first, in the rotate-half order: element `e` is rotated against element
/// `e + pairs`, where `pairs` is [`Rope::pairs`]. Of them, the first [`Rope::rotating_pairs`] rotate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DecoderArch {
    /// Model family.
    pub family: Family,
    /// Number of vocabulary entries.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Maximum sequence length, in tokens.
    pub context: usize,
    /// One entry per layer.
    pub layers: Vec<DecoderLayer>,
    /// Kind of the norms over the residual stream.
    #[serde(default)]
    pub norm: NormKind,
    /// Epsilon of every norm.
    pub norm_epsilon: f32,
    /// Rotary positions; `None` if positions are learned.
    pub rope: Option<Rope>,
    /// Rotary positions of the layers with local rotation.
    pub local_rope: Option<Rope>,
    /// Factor on embedded tokens.
    pub embed_scale: Option<f32>,
    /// True if embedded tokens have a norm, `embed.norm`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub embed_norm: bool,
    /// Soft cap of logits: `cap · tanh(x / cap)`.
    pub logit_cap: Option<f32>,
    /// Alternating updates over several residual streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub altup: Option<AltUp>,
    /// Per-layer embeddings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_layer: Option<PerLayer>,
    /// True if the residual stream is multiplied by a learned number, `scalar`, after each layer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layer_scalars: bool,
    /// True if the head shares the embedding's weight.
    pub tied_head: bool,
    /// Number of tokens in a reduced vocabulary of the head, which then has its own weight
    /// `head.weight [tokens, hidden]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_tokens: Option<usize>,
    /// Tower that reads pictures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<Box<VisionArch>>,
    /// Tower that reads sounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub audio: Option<Box<ConformerTower>>,
}

/// Kind of norm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormKind {
    /// RMS norm, with a gain (Zhang and Sennrich 2019, arXiv:1910.07467).
    #[default]
    Rms,
    /// Layer norm, with a gain and a bias (Ba et al. 2016, arXiv:1607.06450).
    Layer,
    /// Layer norm with a gain and without a bias.
    Gain,
}

/// One decoder layer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecoderLayer {
    /// Part that mixes the tokens of a sequence.
    #[serde(flatten)]
    pub mixer: Mixer,
    /// Feed-forward part.
    #[serde(flatten)]
    pub feed_forward: FeedForward,
    /// Connection of the parts to the residual stream.
    #[serde(default)]
    pub residual: Residual,
}

/// Part of a layer that mixes the tokens of a sequence.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention over earlier tokens, with keys and values in a cache.
    Attention(Attention),
    /// A gated convolution over the last tokens.
    Convolution(ShortConvolution),
    /// A gated delta rule, with a state of fixed size instead of a cache.
    DeltaRule(GatedDeltaRule),
    /// Mamba-2, with a state of fixed size instead of a cache.
    Mamba2(Mamba2),
}

impl DecoderLayer {
    /// Returns a layer with attention and a dense feed-forward part, one after the other.
    pub fn dense(attention: Attention, mlp: Mlp) -> Self {
        Self {
            mixer: Mixer::Attention(attention),
            feed_forward: FeedForward::Dense(mlp),
            residual: Residual::Sequential,
        }
    }

    /// Returns the attention; `None` for another mixer.
    pub fn attention(&self) -> Option<&Attention> {
        match &self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Convolution(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => None,
        }
    }

    /// Returns the attention, for changes; `None` for another mixer.
    pub fn attention_mut(&mut self) -> Option<&mut Attention> {
        match &mut self.mixer {
            Mixer::Attention(attention) => Some(attention),
            Mixer::Convolution(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => None,
        }
    }

    /// Returns the short convolution; `None` for another mixer.
    pub fn convolution(&self) -> Option<&ShortConvolution> {
        match &self.mixer {
            Mixer::Attention(_) | Mixer::DeltaRule(_) | Mixer::Mamba2(_) => None,
            Mixer::Convolution(convolution) => Some(convolution),
        }
    }

    /// Returns the recurrence; `None` for another mixer.
    pub fn recurrence(&self) -> Option<Recurrence<'_>> {
        match &self.mixer {
            Mixer::Attention(_) | Mixer::Convolution(_) => None,
            Mixer::DeltaRule(rule) => Some(Recurrence::DeltaRule(rule)),
            Mixer::Mamba2(mamba) => Some(Recurrence::Mamba2(mamba)),
        }
    }

    /// Returns the layer whose cache entry this layer reads instead of its own.
    pub fn shared_entry(&self) -> Option<usize> {
        match self.attention()?.kv {
            KvSource::Own => None,
            KvSource::Layer(source) => Some(source),
        }
    }

    /// Returns the feed-forward part, if it is dense.
    pub fn mlp(&self) -> Option<&Mlp> {
        match &self.feed_forward {
            FeedForward::Dense(mlp) => Some(mlp),
            FeedForward::Experts(_) => None,
        }
    }

    /// Returns the feed-forward part, if it is dense, for changes.
    pub fn mlp_mut(&mut self) -> Option<&mut Mlp> {
        match &mut self.feed_forward {
            FeedForward::Dense(mlp) => Some(mlp),
            FeedForward::Experts(_) => None,
        }
    }
}

/// Connection of a layer's parts to the residual stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residual {
    /// `x += attn(attn_norm(x)); x += mlp(mlp_norm(x))`.
    #[default]
    Sequential,
    /// Sequential, with `attn_post_norm` and `mlp_post_norm` before each addition.
    Sandwich,
    /// `x += attn(n) + mlp(n)`, where `n = attn_norm(x)`; there is no `mlp_norm`.
    Parallel,
    /// `x += attn(x); x += mlp(mlp_norm(x))`; there is no `attn_norm`.
    Unnormed,
    /// `x += attn_post_norm(attn(x)); x += mlp_post_norm(mlp(x))`; there are no norms before the parts.
    Post,
}

/// Attention with grouped key/value heads (Ainslie et al. 2023, arXiv:2305.13245).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attention {
    /// Number of query heads.
    pub heads: usize,
    /// Number of key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_size: usize,
    /// True if q, k and v have biases.
    pub qkv_bias: bool,
    /// True if the output projection has a bias.
    pub output_bias: bool,
    /// Sliding window in tokens, including the token itself.
    pub window: Option<usize>,
    /// Norm of each head of queries and keys before rotation.
    #[serde(default)]
    pub qk_norm: QkNorm,
    /// Rotary positions of queries and keys.
    #[serde(default)]
    pub rotation: Rotation,
    /// Factor on scores; `None` is `1 / √head_size`.
    pub scale: Option<f32>,
    /// Soft cap of scores before the mask: `cap · tanh(x / cap)`.
    pub score_cap: Option<f32>,
    /// True if each head of values has an RMS norm without a gain.
    #[serde(default)]
    pub value_norm: bool,
    /// True if the output of the heads is multiplied by the sigmoid of a projection, `gate_proj` (Qiu et al. 2025,
    /// arXiv:2505.06708).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gated: bool,
    /// True if each head has a sink, `attn.sinks`: one more score in its softmax, whose value is zeros (Xiao et al. 2023,
    /// arXiv:2309.17453).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sinks: bool,
    /// Source of keys and values.
    #[serde(default)]
    pub kv: KvSource,
}

/// Source of a layer's keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvSource {
    /// The layer itself, with an entry in the KV cache.
    #[default]
    Own,
    /// An earlier layer with its own. The layer has no `k_proj`, `v_proj`, `k_norm` and no entry in the cache.
    Layer(usize),
}

/// Norm of queries and keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    /// No norm.
    #[default]
    None,
    /// RMS norm with one gain `[head_size]` for all heads (Henry et al. 2020, arXiv:2010.04245).
    Rms,
    /// Layer norm without bias, with a gain for each head: `[heads, head_size]`.
    LayerPerHead,
    /// RMS norm of all heads together, with a gain for each element: `[heads · head_size]`.
    RmsOfAllHeads,
}

/// Rotary positions of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rotation {
    /// [`DecoderArch::rope`].
    #[default]
    Global,
    /// [`DecoderArch::local_rope`].
    Local,
    /// No rotation: the layer has no positions or learned ones.
    None,
}

impl Attention {
    /// Returns causal attention with rotary positions, without biases, norms and window.
    pub fn plain(heads: usize, kv_heads: usize, head_size: usize) -> Self {
        Self {
            heads,
            kv_heads,
            head_size,
            qkv_bias: false,
            output_bias: false,
            window: None,
            qk_norm: QkNorm::None,
            rotation: Rotation::Global,
            scale: None,
            score_cap: None,
            value_norm: false,
            gated: false,
            sinks: false,
            kv: KvSource::Own,
        }
    }

    /// Returns the factor on scores.
    pub fn scale(&self) -> f64 {
        self.scale.map_or_else(|| (self.head_size as f64).sqrt().recip(), f64::from)
    }
}

impl DecoderArch {
    /// Returns the dense feed-forward parts, for changes.
    pub fn mlps_mut(&mut self) -> impl Iterator<Item = &mut Mlp> {
        self.layers.iter_mut().filter_map(DecoderLayer::mlp_mut)
    }

    /// Returns the index of the cache entry that a layer reads: its own, or that of the layer whose keys and values it
    /// shares. A convolution has an entry for its inputs, and a recurrence one for its state.
    pub fn kv_index(&self, layer: usize) -> usize {
        let source = self.layers.get(layer).and_then(DecoderLayer::shared_entry).unwrap_or(layer);
        self.layers.iter().take(source).filter(|layer| layer.shared_entry().is_none()).count()
    }

    /// Returns the attention of each layer that has one.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(DecoderLayer::attention)
    }

    /// Returns the attention of each layer that has one, for changes.
    pub fn attentions_mut(&mut self) -> impl Iterator<Item = &mut Attention> {
        self.layers.iter_mut().filter_map(DecoderLayer::attention_mut)
    }

    /// Returns true if positions are learned embeddings.
    pub fn learned_positions(&self) -> bool {
        self.rope.is_none()
    }

    /// Returns the maximum sequence length for the first of two sets of rotary factors; longer sequences use the
    /// second.
    pub fn switch(&self) -> Option<usize> {
        match &self.rope.as_ref()?.scaling {
            RopeScaling::LongRope { original_context, .. } if *original_context < self.context => {
                Some(*original_context)
            }
            _ => None,
        }
    }

    /// Returns the rotary positions for a kind of rotation.
    pub fn rope_of(&self, rotation: Rotation) -> Option<&Rope> {
        match rotation {
            Rotation::Global => self.rope.as_ref(),
            Rotation::Local => self.local_rope.as_ref(),
            Rotation::None => None,
        }
    }
}

/// Activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x · sigmoid(x)`.
    Silu,
    /// Exact GELU, with the error function.
    Gelu,
    /// GELU with the tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_written_with_the_names_of_their_parts() {
        let mlp =
            Mlp { inner: 96, activation: Activation::Silu, gated: true, bias: false, cutoff: Some(0.25) };
        let layer = DecoderLayer::dense(Attention { scale: Some(0.1), ..Attention::plain(4, 2, 16) }, mlp);
        let written = serde_json::to_string(&layer).unwrap();
        let expected = r#"{"attention":{"heads":4,"kv_heads":2,"head_size":16,"qkv_bias":false,"output_bias":false,"window":null,"qk_norm":"none","rotation":"global","scale":0.1,"score_cap":null,"value_norm":false,"kv":"own"},"mlp":{"inner":96,"activation":"silu","gated":true,"bias":false,"cutoff":0.25},"residual":"sequential"}"#;
        assert_eq!(written, expected);
        assert_eq!(serde_json::from_str::<DecoderLayer>(&written).unwrap(), layer);
        let old = written.replace(r#","residual":"sequential""#, "");
        assert_eq!(serde_json::from_str::<DecoderLayer>(&old).unwrap(), layer);
        assert!(serde_json::from_str::<DecoderLayer>(r#"{"attention":{}}"#).is_err());

        let experts = Experts::plain(8, 2, 64);
        let layer = DecoderLayer { feed_forward: FeedForward::Experts(experts), ..layer };
        let written = serde_json::to_string(&layer).unwrap();
        let expected =
            r#""experts":{"count":8,"per_token":2,"inner":64,"activation":"silu","normalized":true}"#;
        assert!(written.contains(expected), "{written}");
        let arch = DecoderArch { layers: vec![layer.clone()], ..DecoderArch::default() };
        let described = Architecture::Decoder(arch).describe();
        assert_eq!(described, "1 layers, width 0, vocabulary 0, 2 of 8 experts for each token");
        assert_eq!(serde_json::from_str::<DecoderLayer>(&written).unwrap(), layer);
    }
}
