//! Tiny checkpoints as files: the same seeded weights in GGUF and in safetensors, tokenizer included.
//!
//! Every weight is a small integer times a power of two, so each encoding stores it without loss and the formats can be
//! compared bit by bit. Nothing here reads a checkpoint. Start at [`tiny_llama_gguf`]; to change a file before it is
//! written, use [`tiny_llama`] or [`tiny_bert`] and the parts that they return.

mod gguf;
mod vision;
mod whisper;
mod words;

use std::{fs, io, path::Path};

use narthex_engine::sample::SplitMix64;
use serde_json::{Value, json};

pub use gguf::{Gguf, GgufTensor, GgufType, Meta};
pub use vision::{
    GEMMA3N_PICTURE_POSITIONS, GEMMA3N_SOUND_POSITIONS, PICTURE_POSITIONS, tiny_gemma_with_vision,
    tiny_gemma3n, tiny_idefics3,
};
pub use whisper::{tiny_whisper_safetensors, tiny_whisper_with_choice};
use words::CHAT_TEMPLATE;
pub use words::word_piece_meta;

/// Hidden size of the tiny Llama and the tiny BERT.
pub const HIDDEN: usize = 64;
/// Number of layers of both.
pub const LAYERS: usize = 2;
/// Number of query heads of both.
pub const HEADS: usize = 4;
/// Number of key/value heads of the Llama.
pub const KV_HEADS: usize = 2;
/// Elements of a head in both.
pub const HEAD_SIZE: usize = 16;
/// Inner width of the feed-forward networks in both.
pub const INNER: usize = 96;
/// Vocabulary size of the Llama: three special tokens, 256 bytes, 41 merges.
pub const LLAMA_VOCAB: usize = 300;
/// Context of the Llama, in tokens.
pub const LLAMA_CONTEXT: usize = 256;
/// Maximum length of a text that the BERT's position embeddings allow, in tokens.
pub const BERT_POSITIONS: usize = 128;
/// Maximum length of a text that the BERT's publisher states, in tokens.
pub const BERT_MAX_LENGTH: usize = 64;

/// One weight of a tiny model.
#[derive(Debug, Clone, PartialEq)]
pub struct TinyWeight {
    /// Canonical name, as in `narthex_spec::arch`.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Its elements, in canonical order.
    pub values: Vec<f32>,
    file_names: [String; 2],
    kind: GgufType,
    rotated: bool,
}

/// Returns a tiny Llama as GGUF: two layers, grouped-query attention, tied head, byte-level BPE, ChatML. The linear
/// weights are in every type of 4-bit, 5-bit and 8-bit blocks of 32, or in F16 or BF16.
pub fn tiny_llama_gguf(seed: u64) -> Vec<u8> {
    tiny_llama(seed).to_bytes()
}

/// Returns the parts of [`tiny_llama_gguf`].
pub fn tiny_llama(seed: u64) -> Gguf {
    let mut meta = vec![
        ("general.architecture", Meta::Text("llama".into())),
        ("general.license", Meta::Text("apache-2.0".into())),
        ("llama.block_count", count(LAYERS)),
        ("llama.context_length", count(LLAMA_CONTEXT)),
        ("llama.embedding_length", count(HIDDEN)),
        ("llama.feed_forward_length", count(INNER)),
        ("llama.attention.head_count", count(HEADS)),
        ("llama.attention.head_count_kv", count(KV_HEADS)),
        ("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ("llama.rope.freq_base", Meta::F32(10_000.0)),
        ("llama.rope.dimension_count", count(HEAD_SIZE)),
        ("llama.vocab_size", count(LLAMA_VOCAB)),
    ];
    meta.extend(words::llama_meta());
    Gguf::new(meta, tiny_llama_weights(seed).iter().map(TinyWeight::to_gguf).collect())
}

/// Returns the parts of a tiny BERT as GGUF, with the weights of [`tiny_bert_safetensors`].
pub fn tiny_bert(seed: u64) -> Gguf {
    let mut meta = vec![
        ("general.architecture", Meta::Text("bert".into())),
        ("bert.block_count", count(LAYERS)),
        ("bert.context_length", count(BERT_MAX_LENGTH)),
        ("bert.embedding_length", count(HIDDEN)),
        ("bert.feed_forward_length", count(INNER)),
        ("bert.attention.head_count", count(HEADS)),
        ("bert.attention.layer_norm_epsilon", Meta::F32(1e-12)),
        ("bert.attention.causal", Meta::Bool(false)),
        ("bert.pooling_type", count(1)),
    ];
    meta.extend(word_piece_meta(&words::bert_tokens()));
    Gguf::new(meta, tiny_bert_weights(seed).iter().map(TinyWeight::to_gguf).collect())
}

fn count(value: usize) -> Meta {
    Meta::U32(value as u32)
}

/// Returns the `tokenizer.json` of the tiny Llama: byte-level BPE whose token 2 is the end-of-text token.
pub fn tiny_tokenizer_json() -> Vec<u8> {
    words::llama_tokenizer().to_string().into_bytes()
}

/// Writes the Llama of [`tiny_llama_gguf`] into `folder` as `config.json`, one safetensors file and tokenizer files.
pub fn tiny_llama_safetensors(folder: &Path, seed: u64) -> io::Result<()> {
    write_llama_texts(folder)?;
    fs::write(folder.join("model.safetensors"), safetensors_bytes(&hf_tensors(&tiny_llama_weights(seed))))
}

/// Writes the files of [`tiny_llama_safetensors`], with the weights in two shards and an index.
pub fn tiny_llama_shards(folder: &Path, seed: u64) -> io::Result<()> {
    write_llama_texts(folder)?;
    let tensors = hf_tensors(&tiny_llama_weights(seed));
    let mut weight_map = serde_json::Map::new();
    let (first, second) = tensors.split_at(tensors.len() / 2);
    for (i, shard) in [first, second].into_iter().enumerate() {
        let file = format!("model-0000{}-of-00002.safetensors", i + 1);
        fs::write(folder.join(&file), safetensors_bytes(shard))?;
        weight_map.extend(shard.iter().map(|tensor| (tensor.name.clone(), Value::from(file.clone()))));
    }
    write_json(folder, "model.safetensors.index.json", &json!({"metadata": {}, "weight_map": weight_map}))
}

/// Writes a tiny BERT into `folder`: two layers, WordPiece, mean pooling, normalisation, with the files of
/// sentence-transformers.
pub fn tiny_bert_safetensors(folder: &Path, seed: u64) -> io::Result<()> {
    let config = json!({
        "architectures": ["BertModel"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "layer_norm_eps": 1e-12, "max_position_embeddings": BERT_POSITIONS,
        "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "pad_token_id": 0, "type_vocab_size": 2,
        "position_embedding_type": "absolute", "vocab_size": words::bert_tokens().len(),
    });
    write_json(folder, "config.json", &config)?;
    let module = |idx: usize, path: &str, kind: &str| {
        let kind = format!("sentence_transformers.models.{kind}");
        json!({"idx": idx, "name": idx.to_string(), "path": path, "type": kind})
    };
    let modules = json!([
        module(0, "", "Transformer"),
        module(1, "1_Pooling", "Pooling"),
        module(2, "2_Normalize", "Normalize")
    ]);
    write_json(folder, "modules.json", &modules)?;
    fs::create_dir_all(folder.join("1_Pooling"))?;
    let pooling = json!({
        "word_embedding_dimension": HIDDEN, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true,
        "pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false,
    });
    write_json(folder, "1_Pooling/config.json", &pooling)?;
    let limits = json!({"max_seq_length": BERT_MAX_LENGTH, "do_lower_case": false});
    write_json(folder, "sentence_bert_config.json", &limits)?;
    write_json(folder, "tokenizer.json", &words::bert_tokenizer())?;
    write_json(folder, "tokenizer_config.json", &words::bert_tokenizer_config())?;
    fs::write(folder.join("model.safetensors"), safetensors_bytes(&hf_tensors(&tiny_bert_weights(seed))))
}

fn write_llama_texts(folder: &Path) -> io::Result<()> {
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "max_position_embeddings": LLAMA_CONTEXT, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_SIZE, "num_hidden_layers": LAYERS, "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0, "rope_scaling": null, "attention_bias": false, "mlp_bias": false,
        "tie_word_embeddings": true, "vocab_size": LLAMA_VOCAB, "bos_token_id": 0, "eos_token_id": 2,
    });
    write_json(folder, "config.json", &config)?;
    write_json(folder, "generation_config.json", &json!({"bos_token_id": 0, "eos_token_id": [2]}))?;
    write_json(folder, "tokenizer.json", &words::llama_tokenizer())?;
    let tokenizer = json!({
        "bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
        "model_max_length": LLAMA_CONTEXT, "add_bos_token": false, "chat_template": CHAT_TEMPLATE,
    });
    write_json(folder, "tokenizer_config.json", &tokenizer)?;
    fs::write(folder.join("README.md"), "---\nlicense: apache-2.0\n---\n# Tiny\n")
}

fn write_json(folder: &Path, name: &str, value: &Value) -> io::Result<()> {
    fs::write(folder.join(name), value.to_string())
}

/// Returns the weights of the tiny Llama.
pub fn tiny_llama_weights(seed: u64) -> Vec<TinyWeight> {
    use GgufType::*;
    let mut weights = vec![
        weight(seed, "embed.weight", &[LLAMA_VOCAB, HIDDEN], ["token_embd", "model.embed_tokens"], Q8_0),
        weight(seed, "norm.weight", &[HIDDEN], ["output_norm", "model.norm"], F32),
    ];
    let q = HEADS * HEAD_SIZE;
    let kv = KV_HEADS * HEAD_SIZE;
    for i in 0..LAYERS {
        let inner: [(&str, &[usize], [&str; 2], GgufType); 9] = [
            ("attn_norm", &[HIDDEN], ["attn_norm", "input_layernorm"], F32),
            ("attn.q_proj", &[q, HIDDEN], ["attn_q", "self_attn.q_proj"], Q4_0),
            ("attn.k_proj", &[kv, HIDDEN], ["attn_k", "self_attn.k_proj"], Q4_1),
            ("attn.v_proj", &[kv, HIDDEN], ["attn_v", "self_attn.v_proj"], F16),
            ("attn.o_proj", &[HIDDEN, q], ["attn_output", "self_attn.o_proj"], Q5_0),
            ("mlp_norm", &[HIDDEN], ["ffn_norm", "post_attention_layernorm"], F32),
            ("mlp.gate_proj", &[INNER, HIDDEN], ["ffn_gate", "mlp.gate_proj"], Q5_1),
            ("mlp.up_proj", &[INNER, HIDDEN], ["ffn_up", "mlp.up_proj"], Bf16),
            ("mlp.down_proj", &[HIDDEN, INNER], ["ffn_down", "mlp.down_proj"], Q4_1),
        ];
        weights.extend(inner.into_iter().map(|(module, shape, [gguf, hf], kind)| {
            let names = [format!("blk.{i}.{gguf}"), format!("model.layers.{i}.{hf}")];
            let names = names.each_ref().map(String::as_str);
            weight(seed, &format!("layers.{i}.{module}.weight"), shape, names, kind)
        }));
    }
    weights
}

/// Returns the weights of the tiny BERT.
pub fn tiny_bert_weights(seed: u64) -> Vec<TinyWeight> {
    use GgufType::*;
    let vocab = words::bert_tokens().len();
    let norm = ["token_embd_norm", "embeddings.LayerNorm"];
    let mut weights = vec![
        weight(
            seed,
            "embed.word.weight",
            &[vocab, HIDDEN],
            ["token_embd", "embeddings.word_embeddings"],
            F16,
        ),
        weight(
            seed,
            "embed.position.weight",
            &[BERT_POSITIONS, HIDDEN],
            ["position_embd", "embeddings.position_embeddings"],
            F32,
        ),
        weight(
            seed,
            "embed.type.weight",
            &[2, HIDDEN],
            ["token_types", "embeddings.token_type_embeddings"],
            F32,
        ),
        weight(seed, "embed.norm.weight", &[HIDDEN], norm, F32),
        weight(seed, "embed.norm.bias", &[HIDDEN], norm, F32),
    ];
    let modules: [(&str, &[usize], [&str; 2]); 8] = [
        ("attn.q_proj", &[HIDDEN, HIDDEN], ["attn_q", "attention.self.query"]),
        ("attn.k_proj", &[HIDDEN, HIDDEN], ["attn_k", "attention.self.key"]),
        ("attn.v_proj", &[HIDDEN, HIDDEN], ["attn_v", "attention.self.value"]),
        ("attn.o_proj", &[HIDDEN, HIDDEN], ["attn_output", "attention.output.dense"]),
        ("attn_norm", &[HIDDEN], ["attn_output_norm", "attention.output.LayerNorm"]),
        ("mlp.up_proj", &[INNER, HIDDEN], ["ffn_up", "intermediate.dense"]),
        ("mlp.down_proj", &[HIDDEN, INNER], ["ffn_down", "output.dense"]),
        ("mlp_norm", &[HIDDEN], ["layer_output_norm", "output.LayerNorm"]),
    ];
    for (i, (module, shape, [gguf, hf])) in (0..LAYERS).flat_map(|i| modules.into_iter().map(move |m| (i, m)))
    {
        let names = [format!("blk.{i}.{gguf}"), format!("encoder.layer.{i}.{hf}")];
        let names = names.each_ref().map(String::as_str);
        let kind = if shape.len() > 1 { F16 } else { F32 };
        weights.push(weight(seed, &format!("layers.{i}.{module}.weight"), shape, names, kind));
        weights.push(weight(seed, &format!("layers.{i}.{module}.bias"), &shape[..1], names, F32));
    }
    weights
}

/// Returns a weight whose elements depend only on the seed and its name. Norms are around one, everything else around
/// zero.
fn weight(seed: u64, name: &str, shape: &[usize], modules: [&str; 2], kind: GgufType) -> TinyWeight {
    let leaf = if name.ends_with(".bias") { "bias" } else { "weight" };
    let seed = name.bytes().fold(seed ^ 0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let mut rng = SplitMix64::new(seed);
    let middle = if name.ends_with("norm.weight") { 1.0 } else { 0.0 };
    let values = (0..shape.iter().product()).map(|_| middle + next_level(&mut rng) * gguf::SCALE).collect();
    TinyWeight {
        name: name.to_owned(),
        shape: shape.to_vec(),
        values,
        file_names: modules.map(|module| format!("{module}.{leaf}")),
        kind,
        rotated: ["self_attn.q_proj", "self_attn.k_proj"].iter().any(|module| modules[1].ends_with(module)),
    }
}

/// Returns an integer from -8 to 7.
fn next_level(rng: &mut SplitMix64) -> f32 {
    (rng.next_u64() % 16) as f32 - 8.0
}

impl TinyWeight {
    fn to_gguf(&self) -> GgufTensor {
        let values = if self.rotated { neighbours(&self.values, HIDDEN) } else { self.values.clone() };
        GgufTensor {
            name: self.file_names[0].clone(),
            shape: self.shape.clone(),
            kind: self.kind as u32,
            bytes: self.kind.encode(&values),
        }
    }
}

/// Reorders rows of `cols` elements from rotary pairs in two halves of a head to adjacent pairs, as llama.cpp's
/// converter does.
fn neighbours(values: &[f32], cols: usize) -> Vec<f32> {
    let rows: Vec<&[f32]> = values.chunks_exact(cols).collect();
    let half = HEAD_SIZE / 2;
    let head = |head: &[&[f32]]| {
        (0..HEAD_SIZE).flat_map(|e| head[e / 2 + e % 2 * half].to_vec()).collect::<Vec<_>>()
    };
    rows.chunks_exact(HEAD_SIZE).flat_map(head).collect()
}

/// One tensor of a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HfTensor {
    /// Name in the file.
    pub name: String,
    /// Element type: `F32`, `F16`, `BF16`, ….
    pub dtype: &'static str,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Its elements, little-endian.
    pub bytes: Vec<u8>,
}

/// Returns the tensors of a safetensors file with these weights.
pub fn hf_tensors(weights: &[TinyWeight]) -> Vec<HfTensor> {
    let tensor = |weight: &TinyWeight| {
        let (dtype, kind) = match weight.kind {
            GgufType::F32 => ("F32", GgufType::F32),
            GgufType::F16 => ("F16", GgufType::F16),
            _ => ("BF16", GgufType::Bf16),
        };
        let bytes = kind.encode(&weight.values);
        HfTensor { name: weight.file_names[1].clone(), dtype, shape: weight.shape.clone(), bytes }
    };
    weights.iter().map(tensor).collect()
}

/// Returns the bytes of a safetensors file.
pub fn safetensors_bytes(tensors: &[HfTensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.bytes.len();
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, end]});
        header.insert(tensor.name.clone(), entry);
        at = end;
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.extend(tensors.iter().flat_map(|tensor| &tensor.bytes));
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_depend_on_the_seed_and_nothing_else() {
        assert_eq!(tiny_llama_gguf(7), tiny_llama_gguf(7));
        assert_ne!(tiny_llama_gguf(7), tiny_llama_gguf(8));
        let weights = tiny_llama_weights(7);
        assert_ne!(weights[0].values[..64], weights[3].values[..64]);
    }

    #[test]
    fn values_are_integers_times_the_scale() {
        for weight in tiny_llama_weights(3).iter().chain(&tiny_bert_weights(3)) {
            let middle = if weight.name.ends_with("norm.weight") { 1.0 } else { 0.0 };
            assert_eq!(weight.values.len(), weight.shape.iter().product::<usize>());
            let fits = |x: &f32| {
                ((x - middle) / gguf::SCALE).fract() == 0.0 && (x - middle).abs() <= 8.0 * gguf::SCALE
            };
            assert!(weight.values.iter().all(fits), "{}", weight.name);
        }
    }

    #[test]
    fn neighbours_interleave_the_halves_of_each_head() {
        let rows: Vec<f32> = (0..2 * HEAD_SIZE).map(|row| row as f32).collect();
        let moved = neighbours(&rows, 1);
        assert_eq!(moved[..4], [0.0, 8.0, 1.0, 9.0]);
        assert_eq!(moved[14..18], [7.0, 15.0, 16.0, 24.0]);
    }

    #[test]
    fn vocabularies_have_the_sizes_that_the_weights_have() {
        assert_eq!(words::llama_tokens().len(), LLAMA_VOCAB);
        assert!(words::bert_tokens().len() > words::BERT_WORDS.len() + 5);
    }
}
