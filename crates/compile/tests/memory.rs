//! Peak memory of a compile: a counting allocator sees a few pieces of a weight, never a whole model.

#![allow(clippy::unwrap_used, reason = "a step that fails fails its test")]

mod support;

use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    sync::atomic::AtomicBool,
};

use narthex_compile::pipeline::compile;
use narthex_spec::{Recipe, Scheme, progress::Quiet, recipe::FixedShapes};
use narthex_testkit::{allocator::CountingAllocator, checkpoint::tiny_llama_safetensors};
use serde_json::{Value, json};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const HIDDEN: usize = 1024;
const INNER: usize = 2816;
const LAYERS: usize = 4;
const VOCAB: usize = 32768;

/// Returns every tensor of the checkpoint, in half precision.
fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let square =
            ["q", "k", "v", "o"].map(|part| (format!("self_attn.{part}_proj"), vec![HIDDEN, HIDDEN]));
        let norms =
            ["input_layernorm", "post_attention_layernorm"].map(|norm| (norm.to_owned(), vec![HIDDEN]));
        let wide = ["gate", "up"].map(|part| (format!("mlp.{part}_proj"), vec![INNER, HIDDEN]));
        let narrow = [("mlp.down_proj".to_owned(), vec![HIDDEN, INNER])];
        let parts = square.into_iter().chain(norms).chain(wide).chain(narrow);
        all.extend(parts.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
    }
    all
}

/// Writes a checkpoint of zeros as a sparse file. Returns the size of all tensors in bytes.
fn checkpoint(folder: &Path) -> u64 {
    tiny_llama_safetensors(folder, 7).unwrap();
    let config = folder.join("config.json");
    let mut keys: Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
    keys["hidden_size"] = HIDDEN.into();
    keys["intermediate_size"] = INNER.into();
    keys["num_hidden_layers"] = LAYERS.into();
    for heads in ["num_attention_heads", "num_key_value_heads"] {
        keys[heads] = 16.into();
    }
    keys["head_dim"] = (HIDDEN / 16).into();
    keys["vocab_size"] = VOCAB.into();
    keys["tie_word_embeddings"] = false.into();
    fs::write(&config, keys.to_string()).unwrap();
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors() {
        let end = at + 2 * shape.iter().product::<usize>() as u64;
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
        at = end;
    }
    let text = Value::Object(header).to_string();
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(text.len() as u64).to_le_bytes()).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.set_len(8 + text.len() as u64 + at).unwrap();
    at
}

fn peak(folder: &Path, recipe: Recipe) -> usize {
    let out = tempfile::tempdir().unwrap();
    let job = support::job(folder, recipe, out.path());
    let before = ALLOCATOR.reset_peak();
    compile(job, &Quiet, &AtomicBool::new(false)).unwrap();
    ALLOCATOR.peak().saturating_sub(before)
}

#[test]
fn a_compile_holds_pieces_of_a_weight() {
    /// Two pieces of 16 MiB, one being read and one being written, and memory that does not depend on the model's size.
    const MOST: usize = 48 << 20;
    let folder = tempfile::tempdir().unwrap();
    let bytes = checkpoint(folder.path());
    // The whole model is far larger, as is the largest tensor after decoding.
    assert!(bytes as usize > 4 * MOST && 4 * VOCAB * HIDDEN > 2 * MOST, "{bytes}");
    let fixed = Some(FixedShapes { context: 64, shorter: vec![], prefill: vec![16], buckets: Vec::new() });
    let with_npu = |scheme| Recipe { fixed: fixed.clone(), ..Recipe::new(scheme) };
    for recipe in [with_npu(Scheme::W8), Recipe::new(Scheme::W4), with_npu(Scheme::F16)] {
        let scheme = recipe.scheme;
        let peak = peak(folder.path(), recipe);
        assert!(peak < MOST, "{scheme}: {peak} bytes at once, of a checkpoint of {bytes}");
    }
}
