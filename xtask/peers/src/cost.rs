//! Work and memory traffic of a model's tokens, from which shares of the machine's limits follow.

use std::{fs, path::Path};

use anyhow::{Context, bail};
use narthex_spec::{
    arch::{DecoderArch, FeedForward, Mixer, Structure},
    manifest::{MANIFEST_FILE, Manifest},
};

/// Properties of a compiled model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModelCost {
    /// Multiply-accumulates of the linear layers for a token of a prompt, whose logits are not computed.
    pub(super) multiply_accumulates: u64,
    /// Bytes of the weights, all of which are read for each generated token: every file of the package other than the
    /// tokenizer.
    pub(super) weight_bytes: u64,
}

impl ModelCost {
    /// Reads the manifest of a package.
    pub(super) fn of_package(package: &Path) -> anyhow::Result<Self> {
        let path = package.join(MANIFEST_FILE);
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Self::of(&serde_json::from_str(&text).with_context(|| path.display().to_string())?)
    }

    fn of(manifest: &Manifest) -> anyhow::Result<Self> {
        let Structure::Decoder(decoder) = &manifest.architecture else {
            bail!("expected the package of a compiled decoder");
        };
        let tokenizer = manifest.tokenizer.as_ref().map(|tokenizer| &tokenizer.file);
        let weights = manifest.files.iter().filter(|(name, _)| Some(*name) != tokenizer);
        Ok(Self {
            multiply_accumulates: multiply_accumulates(decoder),
            weight_bytes: weights.map(|(_, file)| file.bytes).sum(),
        })
    }
}

/// Returns the number of weights in the linear layers of a plain decoder, each of which is multiplied once for a token.
fn multiply_accumulates(decoder: &DecoderArch) -> u64 {
    let layers = decoder.layers.iter().map(|layer| {
        let mixer = match &layer.mixer {
            Mixer::Attention(attention) => 2 * (attention.heads + attention.kv_heads) * attention.head_size,
            Mixer::Convolution(_) => 4 * decoder.hidden,
            Mixer::DeltaRule(rule) => rule.width() + 2 * (rule.value_width() + rule.value_heads),
            Mixer::Mamba2(mamba) => mamba.width() + 2 * mamba.inner() + mamba.heads,
        };
        mixer
            + match &layer.feed_forward {
                FeedForward::Dense(mlp) => mlp.inner * if mlp.gated { 3 } else { 2 },
                // The experts of a token, the network beside them and the router.
                FeedForward::Experts(experts) => {
                    3 * (experts.per_token * experts.inner + experts.shared.unwrap_or(0)) + experts.count
                }
            }
    });
    (layers.sum::<usize>() * decoder.hidden) as u64
}

#[cfg(test)]
mod tests {
    use narthex_testkit::architecture;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_cost_of_a_token_follows_from_the_manifest() {
        let file = |bytes: u64| json!({"bytes": bytes, "sha256": "0".repeat(64)});
        let manifest = json!({
            "format": 1,
            "name": "tiny",
            "architecture": Structure::Decoder(architecture::llama()),
            "recipe": {"scheme": "w8", "block": 32, "accuracy_level": 4, "calibration": "none", "part_bytes": 1},
            "max_length": 256,
            "graphs": [{"file": "model.onnx", "variant": "dynamic", "inputs": [], "outputs": [], "kv": []}],
            "tables": [],
            "tokenizer": {"file": "tokenizer.json", "bos": null, "stop": [], "pad": null},
            "chat": null,
            "files": {"model.onnx": file(10), "model.onnx.data": file(500), "tokenizer.json": file(7000)},
            "provenance": {"source": "local /x", "checkpoint": {}, "license": null, "compiler": "narthex 0.1.0"},
        });
        let found = ModelCost::of(&serde_json::from_value(manifest).unwrap()).unwrap();
        // Four heads of queries and outputs and two of keys and values, 16 elements each, and three products of 96.
        let multiply_accumulates = 64 * (2 * (4 + 2) * 16 + 3 * 96);
        assert_eq!(found, ModelCost { multiply_accumulates, weight_bytes: 510 });
    }
}
