//! Model families.

use serde::{Deserialize, Serialize};

/// Model family, as named by its publisher's configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Llama and models with the same structure: TinyLlama, SmolLM2.
    #[default]
    Llama,
    /// Mistral.
    Mistral,
    /// SmolLM3.
    SmolLm3,
    /// Qwen2 and Qwen2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Qwen3.5, the dense models.
    Qwen35,
    /// Phi-3 and Phi-3.5.
    Phi3,
    /// Granite 3 and Granite 4.
    Granite,
    /// Gemma 2.
    Gemma2,
    /// The text part of Gemma 3.
    Gemma3,
    /// The text part of Gemma 3n.
    Gemma3n,
    /// The text part of Gemma 4, the dense models.
    Gemma4,
    /// gpt-oss.
    GptOss,
    /// GPT-2 and DistilGPT2.
    Gpt2,
    /// StableLM 3B, StableLM 2.
    StableLm,
    /// OpenELM.
    OpenElm,
    /// ChatGLM3.
    ChatGlm,
    /// ERNIE 4.5, the dense models.
    Ernie45,
    /// BERT and models with the same structure: MiniLM, BGE, E5.
    Bert,
    /// RoBERTa and XLM-R.
    Roberta,
    /// DistilBERT.
    DistilBert,
    /// MobileBERT.
    MobileBert,
    /// Nomic BERT, version 1 and 1.5.
    NomicBert,
    /// ModernBERT.
    ModernBert,
    /// OLMo 2.
    Olmo2,
    /// EXAONE 4.
    Exaone4,
    /// LFM2 and LFM2.5.
    Lfm2,
    /// Whisper and Distil-Whisper.
    Whisper,
}
