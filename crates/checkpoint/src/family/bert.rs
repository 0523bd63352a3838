//! BERT and models with the same structure: MiniLM, BGE, E5.

use narthex_spec::arch::{Activation, EncoderArch, EncoderHead, EncoderNorm, Family, Pooling};

use super::{GgufFamily, GgufReader, HfFamily, HfReader};
use crate::{
    error::Result,
    gguf::decoder::{GgufKeys, rows},
    hf::{
        config::Config,
        encoder::{EncoderKeys, Heads, head},
        pooling::SentenceEmbedding,
    },
    limits::unsupported,
    names::NameTable,
    pooling::{self, PoolingSource},
    tensors::{Tensors, file_name},
    weight::WeightSource,
};

/// `BertModel` (`BertConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &[
        "BertModel",
        "BertForMaskedLM",
        "BertForPreTraining",
        "BertForSequenceClassification",
        "BertForTokenClassification",
        "BertForQuestionAnswering",
    ],
    model_type: "bert",
    names: &HF_NAMES,
    read: HfReader::Encoder(hf),
};

/// `bert` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "bert", names: &GGUF_NAMES, read: GgufReader::Encoder(gguf) };

/// Names that several encoders share.
pub(super) const HF_NAMES: NameTable = NameTable {
    prefixes: &["", "bert."],
    layer: "encoder.layer.",
    outer: &[
        ("embed.word", "embeddings.word_embeddings"),
        ("embed.position", "embeddings.position_embeddings"),
        ("embed.type", "embeddings.token_type_embeddings"),
        ("embed.norm", "embeddings.LayerNorm"),
        ("score.dense", "pooler.dense"),
        ("score.out", "classifier"),
        ("tokens", "classifier"),
        ("spans", "qa_outputs"),
        ("mlm.dense", "cls.predictions.transform.dense"),
        ("mlm.norm", "cls.predictions.transform.LayerNorm"),
        ("mlm", "cls.predictions"),
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
    ..NameTable::NONE
};

pub(super) const GGUF_NAMES: NameTable = NameTable {
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
    ..NameTable::NONE
};

fn hf(config: &Config, sentence: &SentenceEmbedding) -> Result<EncoderArch> {
    let keys: EncoderKeys = config.keys()?;
    let heads = Heads { score: Some(Activation::Tanh), masked: keys.activation("gelu")? };
    keys.encoder(config, head(config, sentence, &heads)?)
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<EncoderArch> {
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
        first_position: 0,
        types: tensors.weight("embed.type.weight")?.rows_len(),
        layers: keys.layers()?,
        heads: keys.need_count("attention.head_count")?,
        inner: keys.need_count("feed_forward_length")?,
        // The converter accepts no other activation and writes no key for it.
        activation: Activation::Gelu,
        gated: false,
        biases: true,
        rope: None,
        norm: EncoderNorm::Layer,
        norm_epsilon: epsilon as f32,
        factored: None,
        bottleneck: None,
        // The format has no key for scaling; llama.cpp scales embeddings by default.
        head: EncoderHead::Embedding { pooling: pooling(keys)?.0, normalize: true },
    })
}

/// Maps llama.cpp's `llama_pooling_type`, or else finds the family by the model's name. Returns the source too. The mean
/// stands for an unknown pooling.
pub(crate) fn pooling(keys: &GgufKeys<'_>) -> Result<(Pooling, PoolingSource)> {
    match keys.count("pooling_type")? {
        None | Some(0) => {
            let named = keys.metadata.text("general.name")?.map(str::to_owned);
            let names: Vec<String> = named.into_iter().chain([file_name(keys.path())]).collect();
            Ok(match pooling::family(&names) {
                Some((family, pooling)) => (pooling, PoolingSource::Family(family)),
                None => (Pooling::Mean, PoolingSource::Unknown),
            })
        }
        Some(1) => Ok((Pooling::Mean, PoolingSource::Files)),
        Some(2) => Ok((Pooling::Cls, PoolingSource::Files)),
        Some(3) => Ok((Pooling::Last, PoolingSource::Files)),
        Some(other) => {
            let expected = "0 or 1 (mean), 2 (first token) or 3 (last token)";
            Err(unsupported(keys.name("pooling_type"), expected, other))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn encoder(changes: Value) -> Result<EncoderArch> {
        let keys = json!({
            "architectures": ["BertModel"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4,
        });
        let sentence = SentenceEmbedding::of_pooling(Pooling::Cls, PoolingSource::Files);
        let sentence = SentenceEmbedding { normalize: false, ..sentence };
        hf(&Config::changed(keys, &changes)?, &sentence)
    }

    #[test]
    fn an_encoder_is_read() {
        let found = encoder(json!({"max_position_embeddings": 128})).unwrap();
        assert_eq!(
            (found.hidden, found.positions, found.layers, found.heads, found.inner),
            (64, 128, 2, 4, 96)
        );
        assert_eq!((found.activation, found.norm_epsilon), (Activation::Gelu, 1e-12));
        assert_eq!(found.head, EncoderHead::Embedding { pooling: Pooling::Cls, normalize: false });
        assert_eq!((found.types, found.first_position), (2, 0));
        assert_eq!(encoder(json!({"hidden_act": "gelu_new"})).unwrap().activation, Activation::GeluTanh);
    }

    #[test]
    fn the_class_names_the_head() {
        let check = |class: &str, keys: Value, expect: EncoderHead| {
            let mut changes = keys;
            changes["architectures"] = json!([class]);
            assert_eq!(encoder(changes).unwrap().head, expect, "{class}");
        };
        let score = |labels| EncoderHead::Score { labels, dense: Some(Activation::Tanh) };
        check("BertForSequenceClassification", json!({}), score(2));
        check("BertForSequenceClassification", json!({"id2label": {"0": "a"}}), score(1));
        check("BertForSequenceClassification", json!({"num_labels": 3}), score(3));
        check(
            "BertForTokenClassification",
            json!({"id2label": {"0": "O", "1": "B-PER", "2": "I-PER"}}),
            EncoderHead::Tokens { labels: 3 },
        );
        check("BertForQuestionAnswering", json!({}), EncoderHead::Spans {});
        let masked = EncoderHead::MaskedLm { activation: Some(Activation::Relu) };
        check("BertForMaskedLM", json!({"hidden_act": "relu"}), masked);
        let keys = json!({"architectures": ["BertForMaskedLM"], "num_hidden_layers": 1, "vocab_size": 9, "hidden_size": 8,
            "intermediate_size": 8, "num_attention_heads": 2});
        let sentence = SentenceEmbedding::of_pooling(Pooling::Mean, PoolingSource::Files);
        let sentence = SentenceEmbedding { listed: true, ..sentence };
        let found = hf(&Config::new("config.json".into(), keys).unwrap(), &sentence).unwrap();
        assert_eq!(found.head, EncoderHead::Embedding { pooling: Pooling::Mean, normalize: true });
    }

    #[test]
    fn what_is_not_compiled_is_refused_by_name() {
        let refused = |changes: Value, expect: &str| {
            let error = encoder(changes).unwrap_err().to_string();
            assert!(error.contains(expect), "{error} lacks {expect}");
        };
        refused(
            json!({"position_embedding_type": "relative_key"}),
            "position_embedding_type: found relative_key",
        );
        refused(json!({"is_decoder": true}), "is_decoder");
        let answers = json!({"architectures": ["BertForQuestionAnswering"], "id2label": {"0": "a"}});
        refused(answers, "question-answering model: found 1");
        let masked = json!({"architectures": ["BertForMaskedLM"], "tie_word_embeddings": false});
        refused(masked, "tie_word_embeddings");
    }
}
