//! Words that a target's parser knows, which mutations would seldom find.

use crate::fuzz::Target;

const GGUF: &[&str] = &[
    "GGUF",
    "general.architecture",
    "general.alignment",
    "llama",
    "bert",
    "gpt2",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.chat_template",
    "split.count",
    "blk.0.attn_q.bias",
    "output.weight",
    "llama.expert_count",
    "llama.rope.scaling.type",
    "llama.vocab_size",
    "smollm",
    "llama-bpe",
    "qwen2",
];

const JSON: &[&str] = &[
    "null",
    "true",
    "false",
    "{}",
    "[]",
    "\"\"",
    "-1",
    "1e308",
    "18446744073709551615",
    "\\u0000",
    "\\ud800",
];

const SAFETENSORS: &[&str] = &[
    "__metadata__",
    "\"dtype\"",
    "\"shape\"",
    "\"data_offsets\"",
    "\"F16\"",
    "\"BF16\"",
    "\"I64\"",
    "\"F8_E4M3\"",
    "weight_map",
];

const CONFIG: &[&str] = &[
    "rope_scaling",
    "rope_type",
    "llama3",
    "linear",
    "low_freq_factor",
    "high_freq_factor",
    "sliding_window",
    "quantization_config",
    "MistralForCausalLM",
    "partial_rotary_factor",
    "\"model\"",
    "\"BPE\"",
    "\"Unigram\"",
    "\"WordPiece\"",
    "\"WordLevel\"",
    "\"vocab\"",
    "\"merges\"",
    "\"added_tokens\"",
    "\"normalizer\"",
    "\"Precompiled\"",
    "\"Sequence\"",
    "\"ByteFallback\"",
    "\"Replace\"",
    "\"Regex\"",
    "\"Split\"",
    "\"ByteLevel\"",
    "\"Digits\"",
    "\"Strip\"",
    "\"Prepend\"",
    "\"TemplateProcessing\"",
    "continuing_subword_prefix",
    "max_seq_length",
    "pooling_mode",
];

const EXPORT: &[&str] = &[
    "decoder-pipeline",
    "session_options",
    "provider_options",
    "context_length",
    "past_key_values.%d.key",
    "present.%d.value",
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "token_type_ids",
    "logits",
    "last_hidden_state",
    "If",
    "EPContext",
    "GroupQueryAttention",
    "MatMulNBits",
    "GatherBlockQuantized",
    "com.microsoft",
    "model.onnx.data",
];

const TEMPLATE: &[&str] = &[
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "set",
    "for",
    "in",
    "if",
    "elif",
    "else",
    "endif",
    "endfor",
    "endset",
    "macro",
    "endmacro",
    "call",
    "endcall",
    "filter",
    "endfilter",
    "with",
    "endwith",
    "recursive",
    "loop",
    "namespace",
    "messages",
    "content",
    "role",
    "|join",
    "|replace",
    "|tojson",
    "|list",
    "|map",
    "|batch",
    "|slice",
    "|indent",
    "|format",
    "|string",
    "|reverse",
    "|unique",
    "|groupby",
    "|sum",
    "range(",
    ".split(",
    ".format(",
    ".items()",
    ".strip(",
    "*",
    "**",
    "//",
    "~",
    "[::-1]",
    "not",
    "is",
    "raise_exception",
    "strftime_now",
    "generation",
];

const REQUEST: &[&str] = &[
    "\"model\"",
    "\"messages\"",
    "\"role\"",
    "\"content\"",
    "\"type\"",
    "\"text\"",
    "\"image_url\"",
    "\"prompt\"",
    "\"input\"",
    "\"stop\"",
    "\"n\"",
    "\"stream\"",
    "\"logit_bias\"",
    "\"logprobs\"",
    "\"tools\"",
    "\"tool_calls\"",
    "\"response_format\"",
    "\"encoding_format\"",
    "\"dimensions\"",
    "\"truncate\"",
    "\"best_of\"",
    "\"suffix\"",
    "\"seed\"",
];

const MANIFEST: &[&str] = &[
    "\"plain\"",
    "\"w8\"",
    "\"f16\"",
    "\"bf16\"",
    "\"role\"",
    "\"layer\"",
    "\"kv\"",
    "\"tables\"",
    "\"offset\"",
    "\"length\"",
    "\"position\"",
    "\"token_type\"",
    "\"files\"",
    "\"max_length\"",
    "\"decoder\"",
    "\"encoder\"",
];

/// The words of a target, in the form of libFuzzer's dictionaries.
pub(crate) fn of(target: Target) -> String {
    let lists: &[&[&str]] = match target {
        Target::Gguf => &[GGUF],
        Target::Safetensors => &[JSON, SAFETENSORS],
        Target::HfConfig => &[JSON, CONFIG],
        Target::Onnx => &[&["com.microsoft", "location", "offset", "length"]],
        Target::Template => &[TEMPLATE],
        // The kinds of models are told by fields that have numbers instead of names.
        Target::Pieces => &[&["▁", "<unk>", "<0x0A>", "\x18\x01", "\x18\x02"]],
        Target::Import => &[JSON, CONFIG, EXPORT],
        Target::Request => &[JSON, REQUEST],
        Target::Manifest => &[JSON, MANIFEST],
        Target::Keys => {
            &[JSON, &["\"version\"", "\"hash\"", "\"limits\"", "\"role\"", "\"admin\"", "\"models\""]]
        }
        Target::Wheel => &[&["PK\x01\x02", "PK\x03\x04", "PK\x05\x06", "PK\x06\x06", "PK\x06\x07", "../"]],
    };
    lists.iter().copied().flatten().map(|word| format!("\"{}\"\n", escaped(word))).collect()
}

fn escaped(word: &str) -> String {
    let byte = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' => char::from(byte).to_string(),
        other => format!("\\x{other:02X}"),
    };
    word.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use strum::VariantArray;

    use super::*;

    #[test]
    fn words_are_escaped() {
        assert_eq!(escaped("\"a\\\u{1}é"), "\\\"a\\\\\\x01\\xC3\\xA9");
        assert!(Target::VARIANTS.iter().all(|target| !of(*target).is_empty()));
        assert!(of(Target::Wheel).contains("\"PK\\x05\\x06\"\n"));
    }
}
