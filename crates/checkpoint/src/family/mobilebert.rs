//! MobileBERT (Sun et al. 2020, arXiv:2004.02984): a deep, narrow encoder with bottlenecks and without layer norms.

use narthex_spec::arch::{
    Activation, Bottleneck, BottleneckAttention, EncoderArch, EncoderNorm, FactoredEmbedding, Family,
};
use serde::Deserialize;

use super::{HfFamily, HfReader, bert};
use crate::{
    error::Result,
    hf::{
        config::Config,
        encoder::{EncoderKeys, Heads, head},
        pooling::SentenceEmbedding,
    },
    limits::unsupported,
    names::NameTable,
};

/// `MobileBertModel` (`MobileBertConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &[
        "MobileBertModel",
        "MobileBertForMaskedLM",
        "MobileBertForPreTraining",
        "MobileBertForSequenceClassification",
        "MobileBertForTokenClassification",
        "MobileBertForQuestionAnswering",
    ],
    model_type: "mobilebert",
    names: &HF_NAMES,
    read: HfReader::Encoder(hf),
};

const HF_NAMES: NameTable = NameTable {
    base: Some(&bert::HF_NAMES),
    prefixes: &["", "mobilebert."],
    layer: "encoder.layer.",
    outer: &[("embed.project", "embeddings.embedding_transformation"), ("mlm.rest", "cls.predictions.dense")],
    inner: &[
        ("bottleneck.input", "bottleneck.input.dense"),
        ("bottleneck.input_norm", "bottleneck.input.LayerNorm"),
        ("bottleneck.attn", "bottleneck.attention.dense"),
        ("bottleneck.attn_norm", "bottleneck.attention.LayerNorm"),
        ("bottleneck.output", "output.bottleneck.dense"),
        ("bottleneck.output_norm", "output.bottleneck.LayerNorm"),
        ("ffn.#.up_proj", "ffn.#.intermediate.dense"),
        ("ffn.#.down_proj", "ffn.#.output.dense"),
        ("ffn.#.norm", "ffn.#.output.LayerNorm"),
    ],
    ..NameTable::NONE
};

/// Keys that BERT does not have, with the class's defaults.
#[derive(Debug, Deserialize)]
struct MobileBertKeys {
    #[serde(default = "default_width")]
    embedding_size: usize,
    #[serde(default = "default_width")]
    intra_bottleneck_size: usize,
    #[serde(default = "default_num_feedforward_networks")]
    num_feedforward_networks: usize,
    #[serde(default = "default_true")]
    trigram_input: bool,
    #[serde(default = "default_true")]
    use_bottleneck: bool,
    #[serde(default)]
    use_bottleneck_attention: bool,
    #[serde(default = "default_true")]
    key_query_shared_bottleneck: bool,
    #[serde(default = "default_true")]
    classifier_activation: bool,
    normalization_type: Option<String>,
}

fn default_width() -> usize {
    128
}

fn default_num_feedforward_networks() -> usize {
    4
}

fn default_true() -> bool {
    true
}

fn hf(config: &Config, sentence: &SentenceEmbedding) -> Result<EncoderArch> {
    let shared: EncoderKeys = config.keys()?;
    let keys: MobileBertKeys = config.keys()?;
    if let Some(other) = keys.normalization_type.as_deref().filter(|&kind| kind != "no_norm") {
        return Err(unsupported("normalization_type", "no_norm", other));
    }
    if !keys.use_bottleneck {
        return Err(unsupported("use_bottleneck", "true", false));
    }

    let activation = shared.activation("relu")?;
    let heads = Heads { score: keys.classifier_activation.then_some(Activation::Tanh), masked: activation };
    let arch = shared.encoder(config, head(config, sentence, &heads)?)?;
    let factored = (keys.trigram_input || keys.embedding_size != arch.hidden)
        .then_some(FactoredEmbedding { width: keys.embedding_size, trigram: keys.trigram_input });
    let attention = match (keys.use_bottleneck_attention, keys.key_query_shared_bottleneck) {
        (true, _) => BottleneckAttention::Narrow,
        (false, true) => BottleneckAttention::Shared,
        (false, false) => BottleneckAttention::Wide,
    };
    let bottleneck = Bottleneck {
        width: keys.intra_bottleneck_size,
        attention,
        feed_forwards: keys.num_feedforward_networks,
    };

    Ok(EncoderArch {
        family: Family::MobileBert,
        activation,
        gated: false,
        biases: true,
        rope: None,
        norm: EncoderNorm::Affine,
        factored,
        bottleneck: Some(bottleneck),
        ..arch
    })
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::{EncoderHead, Pooling};
    use serde_json::{Value, json};

    use super::*;

    fn encoder(changes: Value) -> Result<EncoderArch> {
        let keys = json!({
            "architectures": ["MobileBertForSequenceClassification"], "vocab_size": 300, "hidden_size": 512,
            "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
        });
        let sentence = SentenceEmbedding::of_pooling(Pooling::Mean, crate::pooling::PoolingSource::Files);
        hf(&Config::changed(keys, &changes)?, &sentence)
    }

    #[test]
    fn bottlenecks_are_read() {
        let found = encoder(json!({})).unwrap();
        let (factored, bottleneck) = (found.factored.unwrap(), found.bottleneck.unwrap());
        assert_eq!((factored, factored.input()), (FactoredEmbedding { width: 128, trigram: true }, 384));
        let shared = Bottleneck { width: 128, attention: BottleneckAttention::Shared, feed_forwards: 4 };
        assert_eq!(
            (bottleneck, found.activation, found.norm),
            (shared, Activation::Relu, EncoderNorm::Affine)
        );
        assert_eq!(found.head, EncoderHead::Score { labels: 2, dense: Some(Activation::Tanh) });
        let check = |changes: Value, expect| {
            assert_eq!(encoder(changes).unwrap().bottleneck.unwrap().attention, expect);
        };
        check(json!({"use_bottleneck_attention": true}), BottleneckAttention::Narrow);
        check(json!({"key_query_shared_bottleneck": false}), BottleneckAttention::Wide);
        let bare =
            encoder(json!({"classifier_activation": false, "trigram_input": false, "embedding_size": 512}));
        let bare = bare.unwrap();
        assert_eq!((bare.head, bare.factored), (EncoderHead::Score { labels: 2, dense: None }, None));
    }

    #[test]
    fn what_is_not_compiled_is_refused_by_name() {
        for (changes, expect) in [
            (json!({"normalization_type": "layer_norm"}), "normalization_type: found layer_norm"),
            (json!({"use_bottleneck": false}), "use_bottleneck: found false"),
        ] {
            let error = encoder(changes).unwrap_err().to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
