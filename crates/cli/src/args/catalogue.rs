//! Arguments of `list`, `plan`, `compare`, `show` and `rm`.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use narthex_gateway::{check::NpuTarget, models::ModelKind};
use narthex_spec::{ContextFactor, Scheme};

use super::DecoderLoadArgs;

/// `narthex list`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ListArgs {
    /// List the whole catalogue, ranked for this machine by memory, expected speed, size and quality
    #[arg(long)]
    pub(crate) available: bool,

    /// Only models of this kind: chat, text, embedding, rerank, classification, token-classification, answer, masked,
    /// transcription or other
    #[arg(long, value_parser = kind)]
    pub(crate) kind: Option<ModelKind>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `narthex plan`.
#[derive(Debug, ClapArgs)]
pub(crate) struct PlanArgs {
    /// The model: a name, hf:owner/repo, a folder with config.json, or a GGUF file
    pub(crate) model: String,

    /// Check for this NPU, as in qnn:x-elite or ryzen-ai; repeatable [default: every known NPU]
    #[arg(long, value_name = "PROVIDER:CHIP")]
    pub(crate) target: Vec<NpuTarget>,

    /// Extend the context by this factor with YaRN, as `compile --yarn` does
    #[arg(long, value_name = "FACTOR")]
    pub(crate) yarn: Option<ContextFactor>,

    /// Plan the memory for conversations of this many tokens [default: those of the model]
    #[arg(long, value_name = "TOKENS")]
    pub(crate) context: Option<u64>,

    /// Plan the memory for this many conversations at the same time
    #[arg(long, value_name = "N")]
    pub(crate) users: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `narthex compare`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompareArgs {
    /// The installed package with which the other one is compared, as in smollm2:135m@f32
    pub(crate) reference: String,

    /// The other installed package, as in smollm2:135m@w4
    pub(crate) model: String,

    /// A text file that both packages read [default: a text of prose, code and dialogue]
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,

    /// Compare size and quality only
    #[arg(long)]
    pub(crate) skip_speed: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

/// `narthex show`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ShowArgs {
    /// The model
    pub(crate) model: String,

    /// Weight scheme, as in model@w4 [default: the installed one]
    #[arg(long)]
    pub(crate) scheme: Option<Scheme>,

    /// Print the manifest
    #[arg(long)]
    pub(crate) json: bool,
}

/// `narthex rm`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RmArgs {
    /// The model, with @w4 for only one scheme
    pub(crate) model: String,

    /// Remove without asking
    #[arg(short, long)]
    pub(crate) yes: bool,
}

/// Parses a kind of models.
fn kind(text: &str) -> Result<ModelKind, String> {
    let found = ModelKind::ALL.iter().copied().find(|kind| kind.as_str() == text);
    found.ok_or_else(|| {
        format!(
            "expected chat, text, embedding, rerank, classification, token-classification, answer, masked, transcription or \
             other, found {text:?}"
        )
    })
}
