//! Canonical weight names and what files call them.
//!
//! Pure tables and string work: canonical names follow `narthex_spec::arch`, file names follow llama.cpp's
//! converter (GGUF) and the `transformers` library (safetensors). No tensors are touched here.

/// A file format's way of naming one family's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// GGUF, architecture `llama`.
    GgufLlama,
    /// GGUF, architecture `bert`.
    GgufBert,
    /// Safetensors of `LlamaForCausalLM` and `MistralForCausalLM`.
    HfLlama,
    /// Safetensors of `BertModel` and models around it.
    HfBert,
}

/// One dialect's words.
struct Words {
    /// What may stand before every name but the head's.
    prefixes: &'static [&'static str],
    /// What stands before a layer's number.
    layer: &'static str,
    /// Canonical module outside layers, then the file's.
    outer: &'static [(&'static str, &'static str)],
    /// Canonical module inside a layer, then the file's.
    inner: &'static [(&'static str, &'static str)],
}

const GGUF_LLAMA: Words = Words {
    prefixes: &[""],
    layer: "blk.",
    outer: &[("embed", "token_embd"), ("norm", "output_norm"), ("head", "output")],
    inner: &[
        ("attn_norm", "attn_norm"),
        ("attn.q_proj", "attn_q"),
        ("attn.k_proj", "attn_k"),
        ("attn.v_proj", "attn_v"),
        ("attn.o_proj", "attn_output"),
        ("mlp_norm", "ffn_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ],
};

const GGUF_BERT: Words = Words {
    prefixes: &[""],
    layer: "blk.",
    outer: &[
        ("embed.word", "token_embd"),
        ("embed.position", "position_embd"),
        ("embed.type", "token_types"),
        ("embed.norm", "token_embd_norm"),
    ],
    inner: &[
        ("attn.q_proj", "attn_q"),
        ("attn.k_proj", "attn_k"),
        ("attn.v_proj", "attn_v"),
        ("attn.o_proj", "attn_output"),
        ("attn_norm", "attn_output_norm"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp_norm", "layer_output_norm"),
    ],
};

const HF_LLAMA: Words = Words {
    prefixes: &["model.", ""],
    layer: "layers.",
    outer: &[("embed", "embed_tokens"), ("norm", "norm"), ("head", "lm_head")],
    inner: &[
        ("attn_norm", "input_layernorm"),
        ("attn.q_proj", "self_attn.q_proj"),
        ("attn.k_proj", "self_attn.k_proj"),
        ("attn.v_proj", "self_attn.v_proj"),
        ("attn.o_proj", "self_attn.o_proj"),
        ("mlp_norm", "post_attention_layernorm"),
        ("mlp.gate_proj", "mlp.gate_proj"),
        ("mlp.up_proj", "mlp.up_proj"),
        ("mlp.down_proj", "mlp.down_proj"),
    ],
};

const HF_BERT: Words = Words {
    prefixes: &["", "bert."],
    layer: "encoder.layer.",
    outer: &[
        ("embed.word", "embeddings.word_embeddings"),
        ("embed.position", "embeddings.position_embeddings"),
        ("embed.type", "embeddings.token_type_embeddings"),
        ("embed.norm", "embeddings.LayerNorm"),
    ],
    inner: &[
        ("attn.q_proj", "attention.self.query"),
        ("attn.k_proj", "attention.self.key"),
        ("attn.v_proj", "attention.self.value"),
        ("attn.o_proj", "attention.output.dense"),
        ("attn_norm", "attention.output.LayerNorm"),
        ("mlp.up_proj", "intermediate.dense"),
        ("mlp.down_proj", "output.dense"),
        ("mlp_norm", "output.LayerNorm"),
    ],
};

/// Tensors inside layers that carry no weights: tables that old exporters stored.
const DERIVED: [&str; 3] = ["rotary_emb.inv_freq", "attn_rot_embd.weight", "attention.self.position_ids"];

impl Dialect {
    fn words(self) -> &'static Words {
        match self {
            Self::GgufLlama => &GGUF_LLAMA,
            Self::GgufBert => &GGUF_BERT,
            Self::HfLlama => &HF_LLAMA,
            Self::HfBert => &HF_BERT,
        }
    }

    /// What a file may call the weight `canonical`, the usual name first; empty for names that are not canonical.
    pub(super) fn file_names(self, canonical: &str) -> Vec<String> {
        let words = self.words();
        let Some((module, leaf)) = canonical.rsplit_once('.') else { return Vec::new() };
        let find = |table: &[(&str, &'static str)], wanted: &str| {
            table.iter().find(|(name, _)| *name == wanted).map(|(_, file)| *file)
        };
        let path = match module.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            Some((layer, module)) => {
                find(words.inner, module).map(|file| format!("{}{layer}.{file}", words.layer))
            }
            None => find(words.outer, module).map(str::to_owned),
        };
        let Some(path) = path else { return Vec::new() };
        let mut names: Vec<String> =
            words.prefixes.iter().map(|prefix| format!("{prefix}{path}.{leaf}")).collect();
        if module == "head" {
            // The head stands beside the model, not inside it.
            names.reverse();
        }
        if self == Self::HfBert && path.ends_with("LayerNorm") {
            // Checkpoints from before 2019 carry TensorFlow's names.
            let old = if leaf == "weight" { "gamma" } else { "beta" };
            names.extend(words.prefixes.iter().map(|prefix| format!("{prefix}{path}.{old}")));
        }
        names
    }

    /// Whether `file_name` is a tensor of a layer that a graph must use: one that is left unread means that the
    /// model computes something its architecture does not say.
    pub(super) fn is_layer_weight(self, file_name: &str) -> bool {
        let words = self.words();
        words.prefixes.iter().any(|prefix| {
            file_name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_prefix(words.layer))
                .is_some_and(|rest| !DERIVED.iter().any(|derived| rest.ends_with(derived)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dialect: Dialect, canonical: &str, expect: &[&str]) {
        assert_eq!(dialect.file_names(canonical), expect);
    }

    #[test]
    fn names_are_translated() {
        use Dialect::*;
        check(GgufLlama, "embed.weight", &["token_embd.weight"]);
        check(GgufLlama, "head.weight", &["output.weight"]);
        check(GgufLlama, "layers.12.attn.q_proj.bias", &["blk.12.attn_q.bias"]);
        check(GgufLlama, "layers.0.mlp_norm.weight", &["blk.0.ffn_norm.weight"]);
        check(GgufBert, "layers.3.mlp_norm.bias", &["blk.3.layer_output_norm.bias"]);
        check(GgufBert, "embed.norm.weight", &["token_embd_norm.weight"]);
        check(HfLlama, "norm.weight", &["model.norm.weight", "norm.weight"]);
        check(HfLlama, "head.weight", &["lm_head.weight", "model.lm_head.weight"]);
        let q = "layers.1.self_attn.q_proj.weight";
        check(HfLlama, "layers.1.attn.q_proj.weight", &[&format!("model.{q}"), q]);
        let up = "encoder.layer.5.intermediate.dense.bias";
        check(HfBert, "layers.5.mlp.up_proj.bias", &[up, &format!("bert.{up}")]);
        let norm = "embeddings.LayerNorm";
        let spellings =
            ["weight", "gamma"].map(|leaf| [format!("{norm}.{leaf}"), format!("bert.{norm}.{leaf}")]);
        assert_eq!(HfBert.file_names("embed.norm.weight"), spellings.concat());
    }

    #[test]
    fn unknown_names_have_no_file_name() {
        for name in
            ["", "embed", "nonsense.weight", "layers.0.weight", "layers..weight", "layers.0.attn.z.weight"]
        {
            check(Dialect::HfLlama, name, &[]);
        }
    }

    #[test]
    fn unread_layer_tensors_are_told_from_derived_ones() {
        use Dialect::*;
        assert!(HfLlama.is_layer_weight("model.layers.0.self_attn.q_norm.weight"));
        assert!(!HfLlama.is_layer_weight("model.layers.0.self_attn.rotary_emb.inv_freq"));
        assert!(!HfLlama.is_layer_weight("lm_head.weight"));
        assert!(HfBert.is_layer_weight("bert.encoder.layer.0.attention.self.distance_embedding.weight"));
        assert!(!HfBert.is_layer_weight("pooler.dense.weight"));
        assert!(GgufLlama.is_layer_weight("blk.0.attn_q.scale"));
        assert!(!GgufLlama.is_layer_weight("rope_freqs.weight"));
    }
}
