//! Arguments of `run`, `chat` and `complete`.

use clap::Args as ClapArgs;

use super::{DecoderLoadArgs, ToolArgs, at_least_one, whole_number};

/// `narthex chat`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ChatArgs {
    /// The question [default: standard input, if it is not a terminal]
    pub(crate) prompt: Option<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "smollm2:135m")]
    pub(crate) model: String,

    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) tools: ToolArgs,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

/// `narthex run`: the arguments of `chat`, with the model first.
#[derive(Debug, ClapArgs)]
pub(crate) struct RunArgs {
    /// The model: a name, hf:owner/repo, or a path
    pub(crate) model: String,

    /// The question [default: standard input; a conversation on a terminal]
    pub(crate) prompt: Option<String>,

    /// System prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) tools: ToolArgs,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

impl From<RunArgs> for ChatArgs {
    fn from(RunArgs { model, prompt, system, tools, generate, load }: RunArgs) -> Self {
        Self { prompt, model, system, tools, generate, load }
    }
}

/// `narthex complete`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CompleteArgs {
    /// The text to continue [default: standard input]
    pub(crate) prompt: Option<String>,

    /// The model: a name, hf:owner/repo, or a path [default: the newest installed text or chat model, else
    /// gemma3:270m-base]
    #[arg(short, long)]
    pub(crate) model: Option<String>,

    #[command(flatten)]
    pub(crate) generate: GenerateArgs,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}

/// Options of generating text.
#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Options for generating text")]
pub(crate) struct GenerateArgs {
    /// Sampling temperature, 0 to 2; 0 is greedy
    #[arg(long, default_value_t = 0.0, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: f32,

    /// Keep the most likely tokens up to this cumulative probability
    #[arg(long, default_value_t = 1.0, value_name = "P")]
    pub(crate) top_p: f32,

    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, default_value_t = 0, value_name = "K")]
    pub(crate) top_k: usize,

    /// Drop tokens below this share of the highest probability
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub(crate) min_p: f32,

    /// Maximum number of generated tokens [default: up to the model's context; 128 for `complete`]
    #[arg(long, value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<usize>,

    /// Seed for reproducible sampling
    #[arg(long, value_name = "N", value_parser = whole_number::<u64>, allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,

    /// Stop at this text; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,

    /// Print the generated text only
    #[arg(short, long)]
    pub(crate) quiet: bool,
}
