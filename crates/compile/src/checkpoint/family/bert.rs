//! BERT and MiniLM: `BertModel`, and heads on top of it, which are not read.

use narthex_spec::arch::{Activation, EncoderArch, Family, Pooling};
use serde::Deserialize;

use super::{GgufFamily, GgufReader, HfFamily, HfReader};
use crate::checkpoint::{
    CheckpointError,
    gguf::decoder::{Keys, rows},
    hf::{config::Config, decoder::activation, pooling::Sentence},
    limit::{LAYERS, bounded, unsupported},
    names::Words,
    tensors::Tensors,
};

/// `BertModel` (`BertConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["BertModel", "BertForMaskedLM", "BertForPreTraining"],
    model_type: "bert",
    words: &HF_WORDS,
    read: HfReader::Encoder(hf),
};

/// `bert` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "bert", words: &GGUF_WORDS, read: GgufReader::Encoder(gguf) };

const HF_WORDS: Words = Words {
    prefixes: &["", "bert."],
    layer: "encoder.layer.",
    outer: &[
        ("embed.word", "embeddings.word_embeddings"),
        ("embed.position", "embeddings.position_embeddings"),
        ("embed.type", "embeddings.token_type_embeddings"),
        ("embed.norm", "embeddings.LayerNorm"),
    ],
    inner: &[
        ("attn.q_proj", "attention.self.query"),
        ("attn.k_proj", "attention.self.key"),
        ("attn.v_proj", "attention.self.value"),
        ("attn.o_proj", "attention.output.dense"),
        ("attn_norm", "attention.output.LayerNorm"),
        ("mlp.up_proj", "intermediate.dense"),
        ("mlp.down_proj", "output.dense"),
        ("mlp_norm", "output.LayerNorm"),
    ],
    gamma_and_beta: Some("LayerNorm"),
    ..Words::NONE
};

const GGUF_WORDS: Words = Words {
    prefixes: &[""],
    layer: "blk.",
    outer: &[
        ("embed.word", "token_embd"),
        ("embed.position", "position_embd"),
        ("embed.type", "token_types"),
        ("embed.norm", "token_embd_norm"),
    ],
    inner: &[
        ("attn.q_proj", "attn_q"),
        ("attn.k_proj", "attn_k"),
        ("attn.v_proj", "attn_v"),
        ("attn.o_proj", "attn_output"),
        ("attn_norm", "attn_output_norm"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp_norm", "layer_output_norm"),
    ],
    ..Words::NONE
};

/// The keys of `config.json`.
#[derive(Debug, Deserialize)]
struct EncoderKeys {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    #[serde(default)]
    max_position_embeddings: Option<usize>,
    #[serde(default)]
    hidden_act: Option<String>,
    #[serde(default)]
    layer_norm_eps: Option<f64>,
    #[serde(default)]
    position_embedding_type: Option<String>,
    #[serde(default)]
    is_decoder: Option<bool>,
}

fn hf(config: &Config, sentence: &Sentence) -> Result<EncoderArch, CheckpointError> {
    let keys: EncoderKeys = config.keys()?;
    if let Some(other) = keys.position_embedding_type.as_deref().filter(|&kind| kind != "absolute") {
        return Err(unsupported("position_embedding_type", "absolute", other));
    }
    if keys.is_decoder == Some(true) {
        return Err(unsupported("is_decoder", "false: an encoder", true));
    }
    Ok(EncoderArch {
        family: Family::Bert,
        vocab: keys.vocab_size,
        hidden: keys.hidden_size,
        positions: keys.max_position_embeddings.unwrap_or(512),
        layers: bounded(config.path(), "num_hidden_layers", keys.num_hidden_layers, &LAYERS)?,
        heads: keys.num_attention_heads,
        inner: keys.intermediate_size,
        activation: activation(keys.hidden_act.as_deref().unwrap_or("gelu"))?,
        norm_epsilon: keys.layer_norm_eps.unwrap_or(1e-12) as f32,
        pooling: sentence.pooling,
        normalize: sentence.normalize,
    })
}

fn gguf(keys: &Keys<'_>, tensors: &Tensors) -> Result<EncoderArch, CheckpointError> {
    let positions = rows(tensors, "embed.position.weight")?;
    let epsilon = keys.need_float("attention.layer_norm_epsilon")?;
    if keys.flag("attention.causal")? == Some(true) {
        return Err(unsupported(keys.name("attention.causal"), "false", true));
    }
    Ok(EncoderArch {
        family: Family::Bert,
        vocab: rows(tensors, "embed.word.weight")?,
        hidden: keys.need_count("embedding_length")?,
        positions,
        layers: keys.layers()?,
        heads: keys.need_count("attention.head_count")?,
        inner: keys.need_count("feed_forward_length")?,
        // The converter takes no other activation, and writes none.
        activation: Activation::Gelu,
        norm_epsilon: epsilon as f32,
        pooling: pooling(keys)?,
        // The format has no word for it; llama.cpp scales embeddings unless told otherwise.
        normalize: true,
    })
}

/// llama.cpp's `llama_pooling_type`; the mean where the file leaves it open.
fn pooling(keys: &Keys<'_>) -> Result<Pooling, CheckpointError> {
    match keys.count("pooling_type")? {
        None | Some(0 | 1) => Ok(Pooling::Mean),
        Some(2) => Ok(Pooling::Cls),
        Some(other) => Err(unsupported(keys.name("pooling_type"), "0 or 1 (mean) or 2 (first token)", other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn encoder(changes: Value) -> Result<EncoderArch, CheckpointError> {
        let mut keys = json!({
            "architectures": ["BertModel"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4,
        });
        for (key, value) in changes.as_object().unwrap() {
            keys[key] = value.clone();
        }
        let sentence = Sentence { pooling: Pooling::Cls, normalize: false, max_length: None };
        hf(&Config::new("config.json".into(), keys)?, &sentence)
    }

    #[test]
    fn an_encoder_is_read() {
        let found = encoder(json!({"max_position_embeddings": 128})).unwrap();
        assert_eq!(
            (found.hidden, found.positions, found.layers, found.heads, found.inner),
            (64, 128, 2, 4, 96)
        );
        assert_eq!((found.activation, found.norm_epsilon), (Activation::Gelu, 1e-12));
        assert_eq!((found.pooling, found.normalize), (Pooling::Cls, false));
        assert_eq!(encoder(json!({"hidden_act": "gelu_new"})).unwrap().activation, Activation::GeluTanh);
    }

    #[test]
    fn what_is_not_compiled_is_refused_by_name() {
        let refused = |changes: Value, expect: &str| {
            let error = encoder(changes).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        refused(
            json!({"position_embedding_type": "relative_key"}),
            "position_embedding_type \"relative_key\"",
        );
        refused(json!({"is_decoder": true}), "is_decoder");
    }
}
