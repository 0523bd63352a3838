//! Nomic BERT (Nussbaum et al. 2024, arXiv:2402.01613): BERT's structure with rotary positions, gated feed-forward parts
//! and no biases in its linear layers.

use narthex_spec::arch::{Activation, EncoderArch, EncoderHead, EncoderNorm, Family, Rope, RopeScaling};
use serde::Deserialize;

use super::{GgufFamily, GgufReader, HfFamily, HfReader, bert};
use crate::{
    error::Result,
    gguf::decoder::{GgufKeys, rows},
    hf::{config::Config, pooling::SentenceEmbedding},
    limits::{LAYERS, bounded, unsupported},
    names::{NameTable, TensorPart},
    tensors::Tensors,
    weight::WeightSource,
};

/// `NomicBertModel` (`NomicBertConfig` of `transformers`, and of the code that is published with the models).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["NomicBertModel"],
    model_type: "nomic_bert",
    names: &NameTable {
        prefixes: &["", "nomic_bert."],
        layer: "encoder.layers.",
        outer: &[
            ("embed.word", "embeddings.word_embeddings"),
            ("embed.type", "embeddings.token_type_embeddings"),
            ("embed.norm", "emb_ln"),
        ],
        inner: &[
            ("attn.o_proj", "attn.out_proj"),
            ("attn_norm", "norm1"),
            ("mlp.up_proj", "mlp.fc11"),
            ("mlp.gate_proj", "mlp.fc12"),
            ("mlp.down_proj", "mlp.fc2"),
            ("mlp_norm", "norm2"),
        ],
        parts: &[
            ("attn.q_proj", "attn.Wqkv", TensorPart::Third(0)),
            ("attn.k_proj", "attn.Wqkv", TensorPart::Third(1)),
            ("attn.v_proj", "attn.Wqkv", TensorPart::Third(2)),
        ],
        ..NameTable::NONE
    },
    read: HfReader::Encoder(hf),
};

/// `nomic-bert` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily = GgufFamily {
    name: "nomic-bert",
    names: &NameTable {
        base: Some(&bert::GGUF_NAMES),
        prefixes: &[""],
        layer: "blk.",
        inner: &[("mlp.gate_proj", "ffn_gate")],
        parts: &[
            ("attn.q_proj", "attn_qkv", TensorPart::Third(0)),
            ("attn.k_proj", "attn_qkv", TensorPart::Third(1)),
            ("attn.v_proj", "attn_qkv", TensorPart::Third(2)),
        ],
        ..NameTable::NONE
    },
    read: GgufReader::Encoder(gguf),
};

/// Base of the rotary frequencies of files that do not state it.
const THETA: f64 = 1000.0;

/// Number of positions in training of files that do not state it.
const POSITIONS: usize = 2048;

/// The keys of `config.json`, under the names of `transformers` and of the published code.
#[derive(Debug, Deserialize)]
struct NomicKeys {
    vocab_size: usize,
    #[serde(alias = "n_embd")]
    hidden_size: usize,
    #[serde(alias = "n_layer")]
    num_hidden_layers: usize,
    #[serde(alias = "n_head")]
    num_attention_heads: usize,
    #[serde(alias = "n_inner")]
    intermediate_size: usize,
    head_dim: Option<usize>,
    #[serde(alias = "activation_function")]
    hidden_act: Option<String>,
    #[serde(alias = "layer_norm_epsilon")]
    layer_norm_eps: Option<f64>,
    #[serde(alias = "n_positions")]
    max_position_embeddings: Option<usize>,
    max_trained_positions: Option<usize>,
    type_vocab_size: Option<usize>,
    rope_parameters: Option<NomicRopeKeys>,
    rotary_emb_base: Option<f64>,
    rotary_emb_fraction: Option<f64>,
    rotary_emb_interleaved: Option<bool>,
    qkv_proj_bias: Option<bool>,
    mlp_fc1_bias: Option<bool>,
    mlp_fc2_bias: Option<bool>,
    prenorm: Option<bool>,
    use_rms_norm: Option<bool>,
    causal: Option<bool>,
    parallel_block: Option<bool>,
    num_experts: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct NomicRopeKeys {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

impl NomicKeys {
    /// Refuses settings of models with another structure than that of versions 1 and 1.5.
    fn check(&self) -> Result<()> {
        let flags = [
            ("rotary_emb_interleaved", self.rotary_emb_interleaved),
            ("qkv_proj_bias", self.qkv_proj_bias),
            ("mlp_fc1_bias", self.mlp_fc1_bias),
            ("mlp_fc2_bias", self.mlp_fc2_bias),
            ("prenorm", self.prenorm),
            ("use_rms_norm", self.use_rms_norm),
            ("causal", self.causal),
            ("parallel_block", self.parallel_block),
        ];
        if let Some((key, _)) = flags.into_iter().find(|(_, value)| *value == Some(true)) {
            return Err(unsupported(key, "false", true));
        }

        if let Some(other) = self.rotary_emb_fraction.filter(|&fraction| fraction != 1.0) {
            return Err(unsupported("rotary_emb_fraction", "1", other));
        }
        if let Some(experts) = self.num_experts.filter(|&experts| experts > 1) {
            return Err(unsupported("num_experts", "none", experts));
        }
        if let Some(size) = self.head_dim.filter(|size| size * self.num_attention_heads != self.hidden_size) {
            return Err(unsupported("head_dim", "hidden_size / num_attention_heads", size));
        }
        // Dynamic scaling changes nothing within the positions of the training.
        let kind = self.rope_parameters.as_ref().and_then(|rope| rope.rope_type.as_deref());
        match kind {
            None | Some("default" | "dynamic") => Ok(()),
            Some(other) => Err(unsupported("rope_type", "default or dynamic", other)),
        }
    }

    fn activation(&self) -> Result<Activation> {
        match self.hidden_act.as_deref() {
            None | Some("swiglu" | "silu") => Ok(Activation::Silu),
            Some("geglu" | "gelu") => Ok(Activation::Gelu),
            Some(other) => Err(unsupported("hidden_act", "swiglu, silu, geglu or gelu", other)),
        }
    }
}

fn hf(config: &Config, sentence: &SentenceEmbedding) -> Result<EncoderArch> {
    let keys: NomicKeys = config.keys()?;
    keys.check()?;
    let stated = keys.max_position_embeddings.unwrap_or(POSITIONS);
    let theta = keys.rope_parameters.as_ref().and_then(|rope| rope.rope_theta).or(keys.rotary_emb_base);
    let encoder = NomicEncoder {
        vocab: keys.vocab_size,
        hidden: keys.hidden_size,
        positions: stated.min(keys.max_trained_positions.unwrap_or(POSITIONS)),
        types: keys.type_vocab_size.unwrap_or(2),
        layers: bounded(config.path(), "num_hidden_layers", keys.num_hidden_layers, &LAYERS)?,
        heads: keys.num_attention_heads,
        inner: keys.intermediate_size,
        activation: keys.activation()?,
        norm_epsilon: keys.layer_norm_eps.unwrap_or(1e-12) as f32,
        theta: theta.unwrap_or(THETA),
    };
    Ok(encoder.with_head(sentence.embedding()))
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<EncoderArch> {
    let encoder = NomicEncoder {
        vocab: rows(tensors, "embed.word.weight")?,
        hidden: keys.need_count("embedding_length")?,
        positions: keys.need_count("context_length")?,
        types: tensors.weight("embed.type.weight")?.rows_len(),
        layers: keys.layers()?,
        heads: keys.need_count("attention.head_count")?,
        inner: keys.need_count("feed_forward_length")?,
        activation: Activation::Silu,
        norm_epsilon: keys.need_float("attention.layer_norm_epsilon")? as f32,
        theta: keys.float_or("rope.freq_base", THETA)?,
    };
    if keys.flag("attention.causal")? == Some(true) {
        return Err(unsupported(keys.name("attention.causal"), "false", true));
    }
    // llama.cpp scales embeddings by default.
    Ok(encoder.with_head(EncoderHead::Embedding { pooling: bert::pooling(keys)?.0, normalize: true }))
}

/// The settings in which files differ.
struct NomicEncoder {
    vocab: usize,
    hidden: usize,
    positions: usize,
    types: usize,
    layers: usize,
    heads: usize,
    inner: usize,
    activation: Activation,
    norm_epsilon: f32,
    theta: f64,
}

impl NomicEncoder {
    fn with_head(self, head: EncoderHead) -> EncoderArch {
        let dims = self.hidden / self.heads.max(1);
        EncoderArch {
            family: Family::NomicBert,
            vocab: self.vocab,
            hidden: self.hidden,
            positions: self.positions,
            first_position: 0,
            types: self.types,
            layers: self.layers,
            heads: self.heads,
            inner: self.inner,
            activation: self.activation,
            gated: true,
            biases: false,
            rope: Some(Rope { theta: self.theta, dims, scaling: RopeScaling::None }),
            norm: EncoderNorm::Layer,
            norm_epsilon: self.norm_epsilon,
            factored: None,
            bottleneck: None,
            head,
        }
    }
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::Pooling;
    use serde_json::{Value, json};

    use super::*;
    use crate::pooling::PoolingSource;

    fn encoder(changes: Value) -> Result<EncoderArch> {
        let keys = json!({
            "architectures": ["NomicBertModel"], "vocab_size": 300, "n_embd": 64, "n_inner": 96, "n_layer": 2, "n_head": 4,
            "n_positions": 8192, "max_trained_positions": 2048, "activation_function": "swiglu",
            "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "layer_norm_epsilon": 1e-12, "qkv_proj_bias": false,
        });
        let sentence = SentenceEmbedding::of_pooling(Pooling::Mean, PoolingSource::Files);
        hf(&Config::changed(keys, &changes)?, &sentence)
    }

    #[test]
    fn both_forms_of_settings_are_read() {
        let found = encoder(json!({})).unwrap();
        assert_eq!((found.hidden, found.positions, found.layers, found.heads), (64, 2048, 2, 4));
        assert_eq!(found.rope, Some(Rope { theta: 1000.0, dims: 16, scaling: RopeScaling::None }));
        let keys = json!({
            "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 4, "hidden_act": "silu", "max_position_embeddings": 2048, "layer_norm_eps": 1e-12,
            "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
        });
        let sentence = SentenceEmbedding::of_pooling(Pooling::Mean, PoolingSource::Files);
        let other = hf(&Config::new("config.json".into(), keys).unwrap(), &sentence).unwrap();
        assert_eq!(other, found);
    }

    #[test]
    fn other_structures_are_refused_by_name() {
        let check = |changes: Value, expect: &str| {
            let error = encoder(changes).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        check(json!({"prenorm": true}), "prenorm: found true");
        check(json!({"qkv_proj_bias": true}), "qkv_proj_bias");
        check(json!({"rotary_emb_fraction": 0.5}), "rotary_emb_fraction: found 0.5");
        check(json!({"num_experts": 8}), "num_experts: found 8");
        check(json!({"activation_function": "glu"}), "hidden_act: found glu");
        check(json!({"rope_parameters": {"rope_type": "yarn"}}), "rope_type: found yarn");
        check(json!({"head_dim": 8}), "head_dim: found 8");
    }
}
