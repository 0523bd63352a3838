//! Well-known models that the catalogue lacks, with models in their place.

/// A known model that the catalogue lacks.
pub(crate) struct KnownModel {
    /// Beginning of its names.
    pub(crate) beginning: &'static str,
    /// Models for the same purpose.
    pub(crate) instead: &'static [&'static str],
    /// Its architecture, if that is not supported.
    unsupported: Option<&'static str>,
}

impl KnownModel {
    /// Describes a model that can be compiled, but is not in the catalogue.
    const fn new(beginning: &'static str, instead: &'static [&'static str]) -> Self {
        Self { beginning, instead, unsupported: None }
    }

    /// Describes a model of an architecture that is not supported.
    const fn unsupported(
        beginning: &'static str,
        architecture: &'static str,
        instead: &'static [&'static str],
    ) -> Self {
        Self { beginning, instead, unsupported: Some(architecture) }
    }
}

/// Models by the beginning of their names; of several that fit, the first counts.
pub(crate) const KNOWN_MODELS: &[KnownModel] = &[
    KnownModel::unsupported("aya", "cohere", &["qwen3:8b", "gemma3:4b"]),
    KnownModel::new("bge-m3", &["multilingual-e5-base", "bge-large-en-v1.5"]),
    KnownModel::new("codegemma", &["qwen2.5-coder:1.5b", "qwen2.5-coder:7b"]),
    KnownModel::new("codellama", &["qwen2.5-coder:7b", "qwen2.5-coder:14b"]),
    KnownModel::new("codestral", &["qwen2.5-coder:14b", "qwen2.5-coder:32b"]),
    KnownModel::unsupported("command-r", "cohere", &["qwen2.5:14b", "qwen2.5:32b"]),
    KnownModel::new("deepseek-coder", &["qwen2.5-coder:7b", "qwen2.5-coder:14b"]),
    KnownModel::unsupported("deepseek-v3", "deepseek_v3", &["qwen3:32b", "qwen3:14b"]),
    KnownModel::new("deepseek", &["qwen3:8b", "qwen3:4b", "qwen3:14b"]),
    KnownModel::new("devstral", &["qwen2.5-coder:14b", "qwen2.5-coder:32b"]),
    KnownModel::unsupported("glm4", "glm4", &["qwen3:8b", "qwen3:14b"]),
    KnownModel::new("gpt-oss:120b", &["gpt-oss:20b", "qwen3:30b-a3b"]),
    KnownModel::unsupported("kimi", "deepseek_v3", &["qwen3:32b", "qwen3:14b"]),
    KnownModel::new("llama2", &["llama3.2:3b", "qwen2.5:7b"]),
    KnownModel::new("llama3.1", &["qwen3:8b", "qwen2.5:7b", "llama3.2:3b"]),
    KnownModel::unsupported("llama3.2-vision", "mllama", &["gemma3:4b", "gemma3:12b"]),
    KnownModel::new("llama3:", &["qwen3:8b", "qwen2.5:7b", "llama3.2:3b"]),
    KnownModel::unsupported("llama4", "llama4", &["gemma3:27b", "llama3.3:70b"]),
    KnownModel::unsupported("llava", "llava", &["gemma3:4b", "smolvlm:500m"]),
    KnownModel::unsupported("minicpm-v", "minicpmv", &["gemma3:4b", "smolvlm:500m"]),
    KnownModel::unsupported("mixtral", "mixtral", &["mistral:7b", "qwen2.5:14b"]),
    KnownModel::new("mistral-nemo", &["mistral:7b", "qwen2.5:14b"]),
    KnownModel::new("mistral-small", &["qwen2.5:14b", "qwen2.5:32b"]),
    KnownModel::unsupported("moondream", "moondream", &["smolvlm:500m", "gemma3:4b"]),
    KnownModel::new("mxbai-embed", &["bge-large-en-v1.5", "bge-base-en-v1.5"]),
    KnownModel::unsupported(
        "nomic-embed-text-v2",
        "nomic_bert with experts",
        &["nomic-embed-text-v1.5", "multilingual-e5-base"],
    ),
    KnownModel::new("olmo2", &["qwen3:8b", "granite3.3:8b"]),
    KnownModel::new("phi4:", &["phi4-mini:3.8b", "qwen3:14b"]),
    KnownModel::unsupported("qwen2.5vl", "qwen2_5_vl", &["gemma3:4b", "gemma3:12b"]),
    KnownModel::new("qwen3-coder", &["qwen2.5-coder:7b", "qwen2.5-coder:14b"]),
    KnownModel::unsupported("qwen3-vl", "qwen3_vl", &["gemma3:4b", "gemma3:12b"]),
    KnownModel::new("qwq", &["qwen3:14b", "qwen3:32b"]),
    KnownModel::new("snowflake-arctic-embed", &["bge-base-en-v1.5", "multilingual-e5-base"]),
    KnownModel::new("starcoder", &["qwen2.5-coder:3b", "qwen2.5-coder:7b"]),
    KnownModel::new("yi:", &["qwen2.5:7b", "qwen3:8b"]),
];

fn known(text: &str) -> Option<&'static KnownModel> {
    let typed = format!("{}:", text.trim().to_ascii_lowercase());
    KNOWN_MODELS.iter().find(|model| typed.starts_with(model.beginning))
}

/// Returns models in place of a known one that the catalogue lacks.
pub(crate) fn in_place_of(text: &str) -> &'static [&'static str] {
    known(text).map_or(&[], |model| model.instead)
}

/// Returns the architecture of a known model, if it is not supported.
pub(crate) fn unsupported_architecture(text: &str) -> Option<&'static str> {
    known(text)?.unsupported
}
