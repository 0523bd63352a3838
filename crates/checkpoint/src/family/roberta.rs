//! RoBERTa and XLM-R (arXiv:1907.11692, arXiv:1911.02116): BERT's structure; position ids start after the padding
//! position.

use narthex_spec::arch::{Activation, EncoderArch, Family};
use serde::Deserialize;

use super::{HfFamily, HfReader, bert};
use crate::{
    error::Result,
    hf::{
        config::Config,
        encoder::{EncoderKeys, Heads, head},
        pooling::SentenceEmbedding,
    },
    limits::malformed,
    names::NameTable,
};

/// `RobertaModel` (`RobertaConfig` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &[
        "RobertaModel",
        "RobertaForMaskedLM",
        "RobertaForSequenceClassification",
        "RobertaForTokenClassification",
        "RobertaForQuestionAnswering",
    ],
    model_type: "roberta",
    names: &HF_NAMES,
    read: HfReader::Encoder(hf),
};

/// `XLMRobertaModel`: RoBERTa with another vocabulary.
pub(super) const HF_XLM: HfFamily = HfFamily {
    classes: &[
        "XLMRobertaModel",
        "XLMRobertaForMaskedLM",
        "XLMRobertaForSequenceClassification",
        "XLMRobertaForTokenClassification",
        "XLMRobertaForQuestionAnswering",
    ],
    model_type: "xlm-roberta",
    ..HF
};

const HF_NAMES: NameTable = NameTable {
    base: Some(&bert::HF_NAMES),
    prefixes: &["", "roberta."],
    layer: "encoder.layer.",
    outer: &[
        ("score.dense", "classifier.dense"),
        ("score.out", "classifier.out_proj"),
        ("mlm.dense", "lm_head.dense"),
        ("mlm.norm", "lm_head.layer_norm"),
        ("mlm", "lm_head"),
    ],
    ..NameTable::NONE
};

/// A key that BERT does not use.
#[derive(Debug, Deserialize)]
struct PadKey {
    pad_token_id: Option<usize>,
}

fn hf(config: &Config, sentence: &SentenceEmbedding) -> Result<EncoderArch> {
    let keys: EncoderKeys = config.keys()?;
    let heads = Heads { score: Some(Activation::Tanh), masked: Activation::Gelu };
    let arch = keys.encoder(config, head(config, sentence, &heads)?)?;
    // The first token of a text has the position id `pad_token_id` + 1.
    let first = config.keys::<PadKey>()?.pad_token_id.unwrap_or(1).saturating_add(1);
    let Some(positions) = arch.positions.checked_sub(first).filter(|&left| left > 0) else {
        let expected = format!("max_position_embeddings above pad_token_id + 1, {first}");
        return Err(malformed(config.path(), expected, arch.positions));
    };
    Ok(EncoderArch { family: Family::Roberta, positions, first_position: first, ..arch })
}

#[cfg(test)]
mod tests {
    use narthex_spec::arch::Pooling;
    use serde_json::{Value, json};

    use super::*;

    fn encoder(changes: Value) -> Result<EncoderArch> {
        let keys = json!({
            "architectures": ["XLMRobertaModel"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 514, "type_vocab_size": 1,
        });
        let sentence = SentenceEmbedding::of_pooling(Pooling::Mean, crate::pooling::PoolingSource::Files);
        hf(&Config::changed(keys, &changes)?, &sentence)
    }

    #[test]
    fn positions_begin_behind_the_padding_s() {
        let check = |changes: Value, expect| {
            let found = encoder(changes).unwrap();
            assert_eq!((found.first_position, found.positions), expect);
        };
        check(json!({}), (2, 512));
        check(json!({"pad_token_id": 0}), (1, 513));
        let error = encoder(json!({"max_position_embeddings": 2})).unwrap_err().to_string();
        assert!(error.contains("above pad_token_id + 1, 2, found 2"), "{error}");
        assert!(encoder(json!({"pad_token_id": u64::MAX})).is_err());
    }
}
