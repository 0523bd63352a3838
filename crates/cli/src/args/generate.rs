//! What can be typed behind `chat` and `complete`.

use clap::Args as ClapArgs;

use super::LoadArgs;

/// `narthex chat`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ChatArgs {
    /// The question; read from standard input when it is not a terminal
    pub(crate) prompt: Option<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "smollm2:135m")]
    pub(crate) model: String,

    /// Instructions for the model
    #[arg(long)]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// `narthex complete`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompleteArgs {
    /// The text to go on from; read from standard input when none is given
    pub(crate) prompt: Option<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "gemma3:270m-base")]
    pub(crate) model: String,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// Options that decide how a text is generated.
#[derive(Debug, ClapArgs)]
pub(crate) struct GenerateArgs {
    /// 0 always takes the likeliest token; up to 2
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Keep the likeliest tokens up to this probability
    #[arg(long, default_value_t = 1.0)]
    pub(crate) top_p: f32,

    /// Keep the K likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: usize,

    /// Drop tokens less likely than this share of the likeliest
    #[arg(long, default_value_t = 0.0)]
    pub(crate) min_p: f32,

    /// Tokens to generate at most
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<usize>,

    /// Repeatable sampling
    #[arg(long)]
    pub(crate) seed: Option<u64>,

    /// End the answer at this text; may be given several times
    #[arg(long)]
    pub(crate) stop: Vec<String>,

    /// Print only the text
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
