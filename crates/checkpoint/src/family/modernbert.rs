//! ModernBERT (Warner et al. 2024, arXiv:2412.13663) as an embedding model or a classifier: pre-norm layers with gated networks,
//! in which most layers attend to a window with a RoPE base of their own.

use narthex_spec::arch::{
    Activation, Attention, ClassifierHidden, ClassifierLayers, DecoderArch, DecoderLayer, Family, Mlp,
    NormKind, Pooling, Residual, Rope, RopeScaling, Rotation,
};
use serde::Deserialize;

use super::{Decoder, HfFamily, HfReader, gemma::RopeByType};
use crate::{
    error::Result,
    hf::{
        config::Config,
        decoder::{LayerType, RopeKeys, activation},
    },
    limits::{HEADS, LAYERS, bounded, malformed, unsupported},
    names::{NameTable, TensorPart},
};

/// `ModernBertModel` (`ModernBertConfig` of `transformers`), the class of the masked language models that embedding models
/// were trained from, and the classifiers.
pub(super) const HF: HfFamily = HfFamily {
    classes: &[
        "ModernBertModel",
        "ModernBertForMaskedLM",
        "ModernBertForSequenceClassification",
        "ModernBertForTokenClassification",
    ],
    model_type: "modernbert",
    names: &HF_NAMES,
    read: HfReader::Embedder { decoder: hf, classifier },
};

const HF_NAMES: NameTable = NameTable {
    prefixes: &["model.", ""],
    layer: "layers.",
    outer: &[
        ("embed", "embeddings.tok_embeddings"),
        ("embed.norm", "embeddings.norm"),
        ("norm", "final_norm"),
        ("dense.#", "dense.#.linear"),
        ("score.dense", "head.dense"),
        ("score.norm", "head.norm"),
        ("score.out", "classifier"),
    ],
    inner: &[
        ("attn_norm", "attn_norm"),
        ("attn.o_proj", "attn.Wo"),
        ("mlp_norm", "mlp_norm"),
        ("mlp.down_proj", "mlp.Wo"),
    ],
    parts: &[
        ("attn.q_proj", "attn.Wqkv", TensorPart::Query),
        ("attn.k_proj", "attn.Wqkv", TensorPart::Key),
        ("attn.v_proj", "attn.Wqkv", TensorPart::Value),
        ("mlp.gate_proj", "mlp.Wi", TensorPart::Gate),
        ("mlp.up_proj", "mlp.Wi", TensorPart::Up),
    ],
    ..NameTable::NONE
};

/// Keys of `ModernBertConfig`.
#[derive(Debug, Deserialize)]
struct ModernBertKeys {
    vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    max_position_embeddings: Option<usize>,
    hidden_activation: Option<String>,
    norm_eps: Option<f64>,
    norm_bias: Option<bool>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    global_attn_every_n_layers: Option<usize>,
    layer_types: Option<Vec<LayerType>>,
    local_attention: Option<usize>,
    global_rope_theta: Option<f64>,
    local_rope_theta: Option<f64>,
    rope_parameters: Option<RopeByType>,
}

/// Keys of a classifier's head.
#[derive(Debug, Deserialize)]
struct PredictionHeadKeys {
    classifier_pooling: Option<String>,
    classifier_bias: Option<bool>,
    classifier_activation: Option<String>,
}

/// Reads the layers of a classifier's head: `ModernBertPredictionHead` and a layer with a bias.
fn classifier(config: &Config) -> Result<ClassifierLayers> {
    let PredictionHeadKeys { classifier_pooling, classifier_bias, classifier_activation } = config.keys()?;
    let pooling = match classifier_pooling.as_deref() {
        None | Some("cls") => Pooling::Cls,
        Some("mean") => Pooling::Mean,
        Some(other) => return Err(unsupported("classifier_pooling", "cls or mean", other)),
    };
    let activation = activation(classifier_activation.as_deref().unwrap_or("gelu"))?;
    let hidden = ClassifierHidden { activation, bias: classifier_bias.unwrap_or(false) };
    Ok(ClassifierLayers { pooling, hidden: Some(hidden), bias: true })
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: ModernBertKeys = config.keys()?;
    let biases =
        [("norm_bias", keys.norm_bias), ("attention_bias", keys.attention_bias), ("mlp_bias", keys.mlp_bias)];
    if let Some((key, _)) = biases.into_iter().find(|(_, bias)| *bias == Some(true)) {
        return Err(unsupported(key, "false", true));
    }
    let hidden = keys.hidden_size;
    let layers = bounded(config.path(), "num_hidden_layers", keys.num_hidden_layers, &LAYERS)?;
    let heads = bounded(config.path(), "num_attention_heads", keys.num_attention_heads, &HEADS)?;
    if !hidden.is_multiple_of(heads) {
        let expected = format!("num_attention_heads that divide the hidden_size {hidden}");
        return Err(malformed(config.path(), expected, heads));
    }
    let head_size = hidden / heads;
    let activation = activation(keys.hidden_activation.as_deref().unwrap_or("gelu"))?;
    let types = keys.types(layers);

    let by_type = keys.rope_parameters.as_ref();
    let global = by_type.and_then(|keys| keys.full_attention.as_ref());
    let local = by_type.and_then(|keys| keys.sliding_attention.as_ref());
    let arch = DecoderArch {
        family: Family::ModernBert,
        vocab: keys.vocab_size,
        hidden,
        context: keys.max_position_embeddings.unwrap_or(8192),
        layers: keys.layers(&types, heads, head_size, activation),
        norm: NormKind::Gain,
        norm_epsilon: keys.norm_eps.unwrap_or(1e-5) as f32,
        rope: Some(rope(config, global, head_size, keys.global_rope_theta.unwrap_or(160_000.0))?),
        local_rope: Some(rope(config, local, head_size, keys.local_rope_theta.unwrap_or(10_000.0))?),
        embed_norm: true,
        tied_head: true,
        ..DecoderArch::default()
    };
    Ok(arch.into())
}

/// Returns the rotary positions of one type of layers; `theta` is the base if `stated` has none.
fn rope(config: &Config, stated: Option<&RopeKeys>, head_size: usize, theta: f64) -> Result<Rope> {
    match stated {
        Some(stated) => stated.rope(config, head_size, theta),
        None => Ok(Rope { theta, dims: head_size, scaling: RopeScaling::None }),
    }
}

impl ModernBertKeys {
    /// Returns the attention types: every n-th layer from the first one has full attention.
    fn types(&self, layers: usize) -> Vec<LayerType> {
        let every = self.global_attn_every_n_layers.unwrap_or(3).max(1);
        self.layer_types.clone().unwrap_or_else(|| {
            (0..layers)
                .map(|layer| if layer.is_multiple_of(every) { LayerType::Full } else { LayerType::Sliding })
                .collect()
        })
    }

    fn layers(
        &self,
        types: &[LayerType],
        heads: usize,
        head_size: usize,
        activation: Activation,
    ) -> Vec<DecoderLayer> {
        // Half of the window is on each side of the token itself.
        let window = self.local_attention.unwrap_or(128) / 2 + 1;
        let mut layers = Vec::with_capacity(types.len());
        for (index, kind) in types.iter().enumerate() {
            let (rotation, window) = match kind {
                LayerType::Full => (Rotation::Global, None),
                LayerType::Sliding => (Rotation::Local, Some(window)),
            };
            let mlp =
                Mlp { inner: self.intermediate_size, activation, gated: true, bias: false, cutoff: None };
            let attention = Attention { rotation, window, ..Attention::plain(heads, heads, head_size) };
            layers.push(DecoderLayer {
                // The norm of the embeddings is that of the first layer.
                residual: if index == 0 { Residual::Unnormed } else { Residual::Sequential },
                ..DecoderLayer::dense(attention, mlp)
            });
        }
        layers
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_head_of_a_classifier_has_the_stated_layers() {
        let read = |keys: Value| classifier(&Config::new("config.json".into(), keys)?);
        let layers = |pooling, activation, bias| ClassifierLayers {
            pooling,
            hidden: Some(ClassifierHidden { activation, bias }),
            bias: true,
        };
        assert_eq!(read(json!({})).unwrap(), layers(Pooling::Cls, Activation::Gelu, false));
        let stated =
            json!({"classifier_pooling": "mean", "classifier_bias": true, "classifier_activation": "silu"});
        assert_eq!(read(stated).unwrap(), layers(Pooling::Mean, Activation::Silu, true));
        let error = read(json!({"classifier_pooling": "max"})).unwrap_err().to_string();
        assert!(error.contains("expected cls or mean"), "{error}");
    }
}
