//! Llama and models with the same structure and names: TinyLlama, SmolLM2, Mistral in GGUF.

use super::{Decoder, GgufFamily, GgufReader, HfFamily, HfReader};
use crate::{
    error::Result,
    gguf::decoder::GgufKeys,
    hf::{
        config::Config,
        decoder::{DecoderKeys, Defaults},
    },
    limits::unsupported,
    names::{NameTable, TensorPart},
    tensors::Tensors,
};

/// `LlamaForCausalLM` (`LlamaConfig` of `transformers`), and the classifiers.
pub(super) const HF: HfFamily = HfFamily {
    classes: &["LlamaForCausalLM", "LlamaForSequenceClassification", "LlamaForTokenClassification"],
    model_type: "llama",
    names: &HF_NAMES,
    read: HfReader::Decoder(hf),
};

/// `llama` (llama.cpp's `llama_model::load_hparams`).
pub(super) const GGUF: GgufFamily =
    GgufFamily { name: "llama", names: &GGUF_NAMES, read: GgufReader::Decoder(gguf) };

/// Names that most decoders share, including the names of norms that only some have.
pub(super) const HF_NAMES: NameTable = NameTable {
    prefixes: &["model.", ""],
    layer: "layers.",
    outer: &[
        ("embed", "embed_tokens"),
        ("norm", "norm"),
        ("head", "lm_head"),
        // Modules of sentence-transformers, each in a folder of its own.
        ("dense.#", "dense.#.linear"),
        // Classifiers of texts and of tokens.
        ("score.out", "score"),
    ],
    inner: &[
        ("attn_norm", "input_layernorm"),
        ("attn.q_proj", "self_attn.q_proj"),
        ("attn.k_proj", "self_attn.k_proj"),
        ("attn.v_proj", "self_attn.v_proj"),
        ("attn.o_proj", "self_attn.o_proj"),
        ("attn.q_norm", "self_attn.q_norm"),
        ("attn.k_norm", "self_attn.k_norm"),
        ("mlp_norm", "post_attention_layernorm"),
        ("mlp.gate_proj", "mlp.gate_proj"),
        ("mlp.up_proj", "mlp.up_proj"),
        ("mlp.down_proj", "mlp.down_proj"),
    ],
    ..NameTable::NONE
};

/// Names that most decoders share, including the names of norms that only some have.
pub(super) const GGUF_NAMES: NameTable = NameTable {
    prefixes: &[""],
    layer: "blk.",
    outer: &[
        ("embed", "token_embd"),
        ("norm", "output_norm"),
        ("head", "output"),
        // Rows of the head for the answers of a reranker.
        ("answers", "cls.output"),
    ],
    inner: &[
        ("attn_norm", "attn_norm"),
        ("attn.q_proj", "attn_q"),
        ("attn.k_proj", "attn_k"),
        ("attn.v_proj", "attn_v"),
        ("attn.o_proj", "attn_output"),
        ("attn.q_norm", "attn_q_norm"),
        ("attn.k_norm", "attn_k_norm"),
        ("mlp_norm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ],
    ..NameTable::NONE
};

/// Projections of experts, of which a layer has one stack each.
pub(super) const GGUF_EXPERTS: &[(&str, &str, TensorPart)] = &[
    ("mlp.experts.#.gate_proj", "ffn_gate_exps", TensorPart::Matrix(0)),
    ("mlp.experts.#.up_proj", "ffn_up_exps", TensorPart::Matrix(0)),
    ("mlp.experts.#.down_proj", "ffn_down_exps", TensorPart::Matrix(0)),
];

/// Parts of projections that some converters leave fused: queries, keys and values in one tensor; the gate before the
/// up projection in another.
pub(super) const GGUF_FUSED: &[(&str, &str, TensorPart)] = &[
    ("attn.q_proj", "attn_qkv", TensorPart::Query),
    ("attn.k_proj", "attn_qkv", TensorPart::Key),
    ("attn.v_proj", "attn_qkv", TensorPart::Value),
    ("mlp.gate_proj", "ffn_up", TensorPart::Gate),
    ("mlp.up_proj", "ffn_up", TensorPart::Up),
];

/// The parts of [`GGUF_FUSED`] that belong to attention, for families that fuse only these.
pub(super) const GGUF_FUSED_QKV: &[(&str, &str, TensorPart)] = GGUF_FUSED.split_at(3).0;

pub(super) fn hf(config: &Config) -> Result<Decoder> {
    let keys: DecoderKeys = config.keys()?;
    let mut arch = keys.decoder(config, Defaults::LLAMA)?;
    keys.apply_attention_bias(&mut arch);
    keys.apply_mlp_bias(&mut arch);
    Ok(arch.into())
}

fn gguf(keys: &GgufKeys<'_>, tensors: &Tensors) -> Result<Decoder> {
    refuse_variants(keys)?;
    // The converter permutes the rows of q and k.
    Ok(Decoder::from(keys.decoder(tensors)?).with_interleaved_rope())
}

/// Refuses the models that share the name `llama` but compute something else.
fn refuse_variants(keys: &GgufKeys<'_>) -> Result<()> {
    if let Some(experts) = keys.count("expert_count")?.filter(|&experts| experts > 0) {
        return Err(unsupported(keys.name("expert_count"), "0: a dense model", experts));
    }
    let key = "rope.scaling.attn_factor";
    if let Some(factor) = keys.float(key)?.filter(|&factor| factor != 1.0) {
        return Err(unsupported(keys.name(key), "1", factor));
    }
    Ok(())
}
