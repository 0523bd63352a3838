//! Checkpoints: GGUF files, safetensors folders, and the other small files of such a folder.
//!
//! Tensors are left out: the targets replace them by zeros, so that mutations affect only the parsed parts.

use std::{fs, path::Path};

use anyhow::Context;
use narthex_testkit::checkpoint::{
    Gguf, GgufTensor, HEADS, INNER, Meta, tiny_bert, tiny_bert_safetensors, tiny_llama,
    tiny_llama_safetensors, tiny_llama_shards,
};
use serde_json::{Value, json};

use super::Input;

/// Alignment of the tensors in the files of the testkit.
const ALIGNMENT: usize = 32;

/// Hidden size of the Llama with blocks of 256.
const WIDE: usize = 256;

pub(super) fn gguf() -> Vec<Input> {
    let mut inputs = vec![
        Input::valid("llama", header(&tiny_llama(1))),
        Input::valid("bert", header(&tiny_bert(1))),
        Input::valid("llama-super-blocks", header(&super_blocks())),
        Input::valid("llama-sentence-piece", header(&sentence_piece())),
        Input::valid("llama-scaled", header(&scaled())),
    ];
    inputs.extend(gguf_bombs());
    inputs
}

/// Number of bytes of tensor data in a seed.
const KEPT: usize = 64;

/// Returns a file up to a few bytes after the start of its tensors.
fn header(file: &Gguf) -> Vec<u8> {
    let mut bytes = file.to_bytes();
    let data = file
        .tensors
        .iter()
        .fold(0, |end: usize, tensor| end.next_multiple_of(ALIGNMENT) + tensor.bytes.len());
    bytes.truncate(bytes.len() - data + KEPT.min(data));
    bytes
}

/// Returns the Llama with rows long enough for blocks of 256, in all three types of such blocks.
fn super_blocks() -> Gguf {
    let mut file = tiny_llama(1);
    file.set("llama.embedding_length", Meta::U32(WIDE as u32));
    file.set("llama.attention.key_length", Meta::U32(16));
    file.set("llama.attention.value_length", Meta::U32(16));
    for (at, tensor) in file.tensors.iter_mut().enumerate() {
        let (rows, cols) = match tensor.name.as_str() {
            name if name.contains("norm") => (1, WIDE),
            name if name.contains("attn_output") => (WIDE, HEADS * 16),
            name if name.contains("ffn_down") => (WIDE, INNER),
            _ => (tensor.shape[0], WIDE),
        };
        let (kind, block, bytes) = match (tensor.shape.len(), cols) {
            (1, _) => (0, 1, 4),
            (_, WIDE) => [(12, 256, 144), (13, 256, 176), (14, 256, 210)][at % 3],
            _ => (1, 1, 2),
        };
        tensor.shape = if tensor.shape.len() == 1 { vec![cols] } else { vec![rows, cols] };
        tensor.kind = kind;
        tensor.bytes = vec![0; rows * cols / block * bytes];
    }
    file
}

/// Returns the Llama with pieces and scores instead of merges.
fn sentence_piece() -> Gguf {
    let mut file = tiny_llama(1);
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "a", "b", "ab", "▁a", "▁ab", "abab", "é"].map(str::to_owned));
    let kind = |id: usize| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    };
    file.set("tokenizer.ggml.model", Meta::Text("llama".into()));
    file.set("tokenizer.ggml.token_type", Meta::I32s((0..tokens.len()).map(kind).collect()));
    file.set("tokenizer.ggml.scores", Meta::F32s((0..tokens.len()).map(|id| -(id as f32)).collect()));
    file.set("tokenizer.ggml.tokens", Meta::Texts(tokens));
    file.set("tokenizer.ggml.add_bos_token", Meta::Bool(true));
    for key in ["pre", "merges"] {
        file.unset(&format!("tokenizer.ggml.{key}"));
    }
    file
}

/// Returns the Llama with rotary factors, a window and numbers given per layer.
fn scaled() -> Gguf {
    let mut file = tiny_llama(1);
    file.set("llama.rope.scaling.type", Meta::Text("linear".into()));
    file.set("llama.rope.scaling.factor", Meta::F32(2.0));
    file.set("llama.attention.sliding_window", Meta::U32(64));
    file.set("llama.feed_forward_length", Meta::I32s(vec![96, 96]));
    let bytes = [1.0f32; 8].iter().flat_map(|factor| factor.to_le_bytes()).collect();
    file.tensors.insert(0, GgufTensor { name: "rope_freqs.weight".into(), shape: vec![8], kind: 0, bytes });
    file
}

fn gguf_bombs() -> Vec<Input> {
    let bomb = |name: &str, change: &dyn Fn(&mut Gguf)| {
        let mut file = tiny_llama(1);
        change(&mut file);
        Input::bomb(name, header(&file))
    };
    let giant = (1u64 << 62).to_le_bytes();
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let mut inputs = vec![
        bomb("text", &|f| f.set("a", Meta::Raw(8, giant.to_vec()))),
        bomb("floats", &|f| f.set("a", Meta::Raw(9, array(6, 1 << 62)))),
        bomb("texts", &|f| f.set("tokenizer.ggml.tokens", Meta::Raw(9, array(8, 1 << 40)))),
        bomb("nested", &|f| f.set("a", Meta::Raw(9, array(9, 1).repeat(2000)))),
        bomb("layers", &|f| f.set("llama.block_count", Meta::U32(u32::MAX))),
        bomb("hidden", &|f| f.set("llama.embedding_length", Meta::Raw(10, u64::MAX.to_le_bytes().to_vec()))),
        bomb("heads", &|f| f.set("llama.attention.head_count", Meta::U32(1 << 31))),
        bomb("head-size", &|f| f.set("llama.attention.key_length", Meta::U32(u32::MAX))),
        bomb("context", &|f| f.set("llama.context_length", Meta::U32(u32::MAX))),
        bomb("alignment", &|f| f.set("general.alignment", Meta::U32(1 << 31))),
        bomb("shape", &|f| f.tensors[0].shape = vec![usize::MAX, usize::MAX]),
        bomb("rows", &|f| f.tensors[0].shape = vec![1 << 40, 64]),
    ];
    for (name, at) in [("tensor-count", 8), ("value-count", 16)] {
        let mut bytes = header(&tiny_llama(1));
        bytes[at..at + 8].copy_from_slice(&giant);
        inputs.push(Input::bomb(name, bytes));
    }
    inputs
}

pub(super) fn safetensors() -> anyhow::Result<Vec<Input>> {
    let single = read(tiny_llama_safetensors, &["model.safetensors"])?;
    let names = [
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    let shards = read(tiny_llama_shards, &names)?;
    let file = |header: &str| Input::files(&[("model.safetensors", safetensors_header(header))]);
    let tensor = |shape: &str, end: &str| {
        file(&format!(r#"{{"t": {{"dtype": "F32", "shape": {shape}, "data_offsets": [0, {end}]}}}}"#))
    };
    let index = |text: String| Input::files(&[("model.safetensors.index.json", text.into_bytes())]);
    let many = (0..4200).map(|i| format!(r#""{i}":"{i}""#)).collect::<Vec<_>>().join(",");
    let mut long = u64::MAX.to_le_bytes().to_vec();
    long.extend(b"{}");
    Ok(vec![
        Input::valid("single", Input::files(&single)),
        Input::valid("shards", Input::files(&shards)),
        Input::bomb("length", Input::files(&[("model.safetensors", long)])),
        Input::bomb("shape", tensor("[18446744073709551615, 18446744073709551615]", "4")),
        Input::bomb("rows", tensor("[1099511627776]", "4398046511104")),
        Input::bomb("dimensions", tensor(&format!("[{}1]", "1,".repeat(5000)), "4")),
        Input::bomb("nested", file(&"[".repeat(5000))),
        Input::bomb("shards", index(format!(r#"{{"weight_map": {{{many}}}}}"#))),
        Input::bomb("index", index("[".repeat(5000))),
    ])
}

/// Returns a header preceded by its length.
fn safetensors_header(json: &str) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat()
}

/// Reads the named files of a folder that `make` fills; safetensors without their tensors.
fn read(
    make: fn(&Path, u64) -> std::io::Result<()>,
    names: &[&'static str],
) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
    let folder = tempfile::tempdir()?;
    make(folder.path(), 1)?;
    let mut files = Vec::new();
    for name in names {
        let path = folder.path().join(name);
        if !path.is_file() {
            continue;
        }
        let mut bytes = fs::read(&path).with_context(|| path.display().to_string())?;
        if let (true, Some(length)) = (name.ends_with(".safetensors"), bytes.first_chunk()) {
            bytes.truncate(8 + usize::try_from(u64::from_le_bytes(*length))?);
        }
        files.push((*name, bytes));
    }
    Ok(files)
}

/// Names of all small files that are parsed.
const CONFIGS: [&str; 8] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "modules.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "README.md",
];

pub(super) fn configs() -> anyhow::Result<Vec<Input>> {
    let llama = read(tiny_llama_safetensors, &CONFIGS)?;
    let bert = read(tiny_bert_safetensors, &CONFIGS)?;
    let mut more = llama.clone();
    more.push(("special_tokens_map.json", br#"{"bos_token": {"content": "<|endoftext|>"}}"#.to_vec()));
    more.push(("chat_template.jinja", b"{{ messages[0].content }}".to_vec()));
    let mut inputs = vec![
        Input::valid("llama", Input::files(&llama)),
        Input::valid("bert", Input::files(&bert)),
        Input::valid("llama-more-files", Input::files(&more)),
        Input::valid("llama-other-tokenizer", Input::files(&with(&llama, "tokenizer.json", &unigram()))),
    ];
    let number = |name: &str, key: &str, value: Value| {
        let mut config: Value = serde_json::from_slice(&llama[0].1).unwrap_or_default();
        config[key] = value;
        Input::bomb(name, Input::files(&with(&llama, "config.json", &config)))
    };
    inputs.extend([
        number("layers", "num_hidden_layers", json!(u64::MAX)),
        number("heads", "num_attention_heads", json!(1u64 << 40)),
        number("head-size", "head_dim", json!(u64::MAX)),
        number("hidden", "hidden_size", json!(u64::MAX)),
        number("vocabulary", "vocab_size", json!(u64::MAX)),
        number("context", "max_position_embeddings", json!(u64::MAX)),
        number("float", "rope_theta", json!(1e308)),
    ]);
    for (name, file) in [("nested-config", "config.json"), ("nested-tokenizer", "tokenizer.json")] {
        let files = llama.iter().map(|(other, bytes)| {
            (*other, if *other == file { "{\"a\":".repeat(3000).into_bytes() } else { bytes.clone() })
        });
        inputs.push(Input::bomb(name, Input::files(&files.collect::<Vec<_>>())));
    }
    let ids = json!({"model": {"type": "WordLevel", "vocab": {"a": u64::MAX}, "unk_token": "a"}});
    inputs.push(Input::bomb("token-id", Input::files(&with(&llama, "tokenizer.json", &ids))));
    Ok(inputs)
}

fn with(files: &[(&'static str, Vec<u8>)], name: &str, json: &Value) -> Vec<(&'static str, Vec<u8>)> {
    let replaced = |(other, bytes): &(&'static str, Vec<u8>)| {
        (*other, if *other == name { json.to_string().into_bytes() } else { bytes.clone() })
    };
    files.iter().map(replaced).collect()
}

/// Returns a tokenizer of another kind than those of the tiny models, with parts that those omit.
fn unigram() -> Value {
    json!({
        "added_tokens": [
            {"id": 0, "content": "<unk>", "special": true, "normalized": false, "single_word": false,
             "lstrip": false, "rstrip": false}
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<unk>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<unk>": {"id": "<unk>", "ids": [0], "tokens": ["<unk>"]}}},
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false,
            "vocab": [["<unk>", 0.0], ["▁", -1.0], ["a", -1.5], ["▁a", -1.2], ["b", -2.0], ["ab", -1.1]]}
    })
}
