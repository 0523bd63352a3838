//! The files next to the graph: `genai_config.json` and the tokenizer's files.

use std::collections::BTreeMap;

use narthex_checkpoint::limits::read_small;
use narthex_spec::{
    arch::{DecoderArch, Mixer},
    manifest::{GraphEntry, Manifest},
};
use serde_json::{Map, Value, json};

use super::ExportJob;
use crate::{
    error::Result,
    import::refused,
    package::{TEMPLATE_FILE, TOKENIZER_FILE},
};

/// File name of the graph.
pub(super) const GRAPH: &str = "model.onnx";

/// Names of the graph's inputs and outputs.
pub(super) const TOKENS: &str = "input_ids";
pub(super) const MASK: &str = "attention_mask";
pub(super) const POSITIONS: &str = "position_ids";
pub(super) const LOGITS: &str = "logits";

/// Name and content of a file.
type File = (&'static str, Vec<u8>);

/// Returns every file except the graph and its data.
pub(super) fn files(job: &ExportJob<'_>, arch: &DecoderArch, entry: &GraphEntry) -> Result<Vec<File>> {
    let ExportJob { package, manifest, .. } = job;
    let mut files = vec![("genai_config.json", pretty(&genai_config(manifest, arch, entry)?))];
    if let Some(tokenizer) = &manifest.tokenizer {
        files.push((TOKENIZER_FILE, read_small(&package.join(&tokenizer.file))?));
    }
    let mut template = None;
    if let Some(chat) = &manifest.chat {
        let bytes = read_small(&package.join(&chat.template))?;
        template = String::from_utf8(bytes.clone()).ok();
        files.push((TEMPLATE_FILE, bytes));
    }
    let none = BTreeMap::new();
    let said = TokenizerSettings {
        bos: manifest.bos(),
        longest: manifest.max_length,
        special: manifest.chat.as_ref().map_or(&none, |chat| &chat.special_tokens),
        template: template.as_deref(),
    };
    files.push(("tokenizer_config.json", pretty(&said.tokenizer_config())));
    Ok(files)
}

pub(super) fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// Returns the maximum sequence length of the export. If the model has two sets of rotary factors, the graph has only
/// the first.
pub(super) fn context(manifest: &Manifest, arch: &DecoderArch) -> usize {
    arch.switch().map_or(manifest.max_length, |first| first.min(manifest.max_length))
}

fn genai_config(manifest: &Manifest, arch: &DecoderArch, entry: &GraphEntry) -> Result<Value> {
    let what = format!("export of {} for onnxruntime-genai", manifest.name);
    if arch.per_layer.is_some() {
        let expected = "a model whose embeddings are inputs of the first layer only";
        return Err(refused(what, expected, "per-layer embeddings, which are inputs of every layer"));
    }

    let other = arch.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(_) => None,
        Mixer::Convolution(_) => Some("short convolutions, whose rows the program does not store"),
        Mixer::DeltaRule(_) => Some("gated delta rules, whose states the program does not store"),
        Mixer::Mamba2(_) => Some("Mamba-2, whose states the program does not store"),
    });
    if let Some(other) = other {
        return Err(refused(what, "attention in every layer", other));
    }

    let uniform = entry.kv.first().filter(|first| {
        entry.kv.iter().all(|other| (other.heads, other.head_size) == (first.heads, first.head_size))
    });
    let Some((first, attention)) = uniform.zip(arch.attentions().next()) else {
        let expected = "one number of key and value heads, and one head size, in all layers";
        return Err(refused(what, expected, "several"));
    };

    let context = context(manifest, arch);
    let mut inputs = json!({
        "input_ids": TOKENS,
        "attention_mask": MASK,
        "past_key_names": "past.%d.key",
        "past_value_names": "past.%d.value",
    });

    if arch.learned_positions()
        && let Some(inputs) = inputs.as_object_mut()
    {
        inputs.insert("position_ids".to_owned(), POSITIONS.into());
    }

    let mut model = json!({
        // onnxruntime-genai's type for a language model without special handling.
        "type": "decoder",
        "context_length": context,
        "vocab_size": arch.vocab,
        "decoder": {
            "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
            "filename": GRAPH,
            "hidden_size": arch.hidden,
            "head_size": first.head_size,
            "num_attention_heads": attention.heads,
            "num_key_value_heads": first.heads,
            "num_hidden_layers": entry.kv.len(),
            "inputs": inputs,
            "outputs": {
                "logits": LOGITS,
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
        },
    });

    let stop = manifest.stop_tokens();
    let pad = manifest.tokenizer.as_ref().and_then(|tokenizer| tokenizer.pad);
    let ids = [
        ("bos_token_id", manifest.bos().map(Value::from)),
        ("eos_token_id", (!stop.is_empty()).then(|| json!(stop))),
        ("pad_token_id", pad.or(stop.first().copied()).map(Value::from)),
    ];
    if let Some(model) = model.as_object_mut() {
        model.extend(ids.into_iter().filter_map(|(key, id)| Some((key.to_owned(), id?))));
    }
    let search = json!({"max_length": context, "past_present_share_buffer": true, "do_sample": false});
    Ok(json!({"model": model, "search": search}))
}

/// Model settings in a tokenizer's configuration.
pub(super) struct TokenizerSettings<'a> {
    /// Token at the beginning of every sequence, if the model requires one.
    pub(super) bos: Option<u32>,
    /// Maximum sequence length, in tokens.
    pub(super) longest: usize,
    /// Special tokens by role.
    pub(super) special: &'a BTreeMap<String, String>,
    pub(super) template: Option<&'a str>,
}

impl TokenizerSettings<'_> {
    /// Returns the content of `tokenizer_config.json`.
    pub(super) fn tokenizer_config(&self) -> Value {
        let mut config = Map::new();
        config.insert("tokenizer_class".to_owned(), "PreTrainedTokenizerFast".into());
        config.insert("add_bos_token".to_owned(), self.bos.is_some().into());
        config.insert("model_max_length".to_owned(), self.longest.into());
        config.extend(self.special.iter().map(|(role, text)| (role.clone(), text.as_str().into())));
        config.extend(self.template.map(|template| ("chat_template".to_owned(), template.into())));
        Value::Object(config)
    }
}
