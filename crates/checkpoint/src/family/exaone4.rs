//! EXAONE 4: norms after the parts of a layer, as in OLMo 2, and a norm of each head of queries and keys. The large model has a
//! window in most layers, and no positions in the others.

use narthex_spec::arch::{DecoderArch, Family, QkNorm, Residual, Rotation};
use serde::Deserialize;

use super::{
    Decoder, GgufFamily, GgufReader, HfFamily, HfReader,
    olmo2::{POST_NORM_GGUF_NAMES, POST_NORM_HF_NAMES},
};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults, LayerType},
    },
    limits::malformed,
    tensors::Tensors,
};

/// `Exaone4ForCausalLM` (`Exaone4Config` of `transformers`).
pub(super) const HF: HfFamily = HfFamily {
    classes: &["Exaone4ForCausalLM"],
    model_type: "exaone4",
    names: &POST_NORM_HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `exaone4` (llama.cpp's `llama_model_exaone4`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "exaone4", names: &POST_NORM_GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Distance between the layers without a window.
const INTERVAL: usize = 4;

/// Number of layers of the model with windows, by which llama.cpp recognises it.
const WINDOWED_LAYERS: usize = 64;

/// Keys that most decoders do not share.
#[derive(Debug, Deserialize)]
struct Exaone4Keys {
    /// Distance between the layers without a window, or a letter for each layer up to there.
    sliding_window_pattern: Option<Pattern>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Pattern {
    Interval(usize),
    Letters(String),
}

fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let Exaone4Keys { sliding_window_pattern } = config.keys()?;
    let mut arch = keys.decoder(config, Defaults { epsilon: 1e-5, ..Defaults::LLAMA })?;
    let window = keys.sliding_window.unwrap_or(Some(4096));
    let interval = match sliding_window_pattern {
        None => INTERVAL,
        Some(Pattern::Interval(interval)) => interval,
        Some(Pattern::Letters(letters)) => letters.len(),
    };
    let types = keys.layer_types.clone().unwrap_or_else(|| layer_types(arch.layers.len(), interval));
    if types.len() != arch.layers.len() {
        let expected = format!("layer_types of {} layers", arch.layers.len());
        return Err(malformed(config.path(), expected, types.len()));
    }
    apply_windows(&mut arch, &types, window);
    Ok(as_exaone4(arch).into())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    let mut arch = keys.decoder(tensors)?;
    let layers = arch.layers.len();
    let window = match layers {
        WINDOWED_LAYERS => Some(keys.count("attention.sliding_window")?.unwrap_or(4096)),
        _ => None,
    };
    apply_windows(&mut arch, &layer_types(layers, INTERVAL), window);
    Ok(as_exaone4(arch).into())
}

fn layer_types(layers: usize, interval: usize) -> Vec<LayerType> {
    (1..=layers)
        .map(|layer| match interval > 0 && layer.is_multiple_of(interval) {
            true => LayerType::Full,
            false => LayerType::Sliding,
        })
        .collect()
}

/// Applies windows. In a model with windows, the other layers have no positions.
fn apply_windows(arch: &mut DecoderArch, types: &[LayerType], window: Option<usize>) {
    let context = arch.context;
    for (attention, kind) in arch.attentions_mut().zip(types) {
        let is_sliding = *kind == LayerType::Sliding;
        // A window as long as the context masks nothing.
        attention.window = window.filter(|window| is_sliding && (1..context).contains(window));
        if window.is_some() && !is_sliding {
            attention.rotation = Rotation::None;
        }
    }
}

/// Applies the differences of EXAONE 4 from Llama, except for windows.
fn as_exaone4(mut arch: DecoderArch) -> DecoderArch {
    arch.family = Family::Exaone4;
    arch.attentions_mut().for_each(|attention| attention.qk_norm = QkNorm::Rms);
    arch.layers.iter_mut().for_each(|layer| layer.residual = Residual::Post);
    arch
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn layers(changes: serde_json::Value) -> Result<Vec<(Option<usize>, Rotation)>> {
        let keys = json!({
            "architectures": ["Exaone4ForCausalLM"], "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 8192,
        });
        let arch = hf(&Config::new("config.json".into(), keys)?.with(changes)?)?.arch;
        Ok(arch
            .layers
            .iter()
            .filter_map(|layer| layer.attention().map(|it| (it.window, it.rotation)))
            .collect())
    }

    #[test]
    fn layers_have_a_window_or_no_positions() {
        let window = (Some(4096), Rotation::Global);
        let full = (None, Rotation::None);
        assert_eq!(layers(json!({})).unwrap(), [window, window, window, full]);
        assert_eq!(layers(json!({"sliding_window_pattern": "LG"})).unwrap(), [window, full, window, full]);
        assert_eq!(layers(json!({"sliding_window_pattern": 3})).unwrap(), [window, window, full, window]);
        let types = json!({"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]});
        assert_eq!(layers(types).unwrap(), [full, window, full, full]);
        // The small model has positions everywhere.
        assert_eq!(layers(json!({"sliding_window": null})).unwrap(), [(None, Rotation::Global); 4]);
        let error = layers(json!({"layer_types": ["full_attention"]})).unwrap_err().to_string();
        assert!(error.contains("layer_types of 4 layers"), "{error}");
    }
}
