//! What can be typed behind `embed`, `rerank`, `answer` and `fill`.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::LoadArgs;

/// `narthex embed`.
#[derive(Debug, ClapArgs)]
pub(crate) struct EmbedArgs {
    /// The texts; one per line from standard input when none are given
    pub(crate) texts: Vec<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "all-minilm-l6-v2")]
    pub(crate) model: String,

    /// Keep only this many leading elements
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<usize>,

    /// Put this prompt of the model before each text, such as query or passage; `narthex show` lists them
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,

    /// Cut texts that are too long instead of refusing them
    #[arg(long)]
    pub(crate) truncate: bool,

    /// Print one JSON object with texts, vectors and token counts
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// `narthex rerank`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RerankArgs {
    /// What is looked for
    pub(crate) query: String,

    /// The documents; one per line from standard input when none are given
    pub(crate) documents: Vec<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "ms-marco-minilm-l6-v2")]
    pub(crate) model: String,

    /// Print only the N best
    #[arg(long, value_name = "N")]
    pub(crate) top_n: Option<usize>,

    /// Cut documents that are too long instead of refusing them
    #[arg(long)]
    pub(crate) truncate: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// `narthex answer`.
#[derive(Debug, ClapArgs)]
pub(crate) struct AnswerArgs {
    /// The question
    pub(crate) question: String,

    /// The text that holds the answer; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) context: PathBuf,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "distilbert-squad")]
    pub(crate) model: String,

    /// Answers to print; more than one come with scores and places
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) top_k: usize,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// `narthex fill`.
#[derive(Debug, ClapArgs)]
pub(crate) struct FillArgs {
    /// The text, with the model's own mask ([MASK], <mask>) where tokens are wanted
    pub(crate) text: String,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "mobilebert-uncased")]
    pub(crate) model: String,

    /// Tokens to print for each mask
    #[arg(long, default_value_t = 5, value_name = "N", conflicts_with = "generate")]
    pub(crate) top_k: usize,

    /// Put N tokens in the mask's place, or at the end of a text without one
    #[arg(long, value_name = "N")]
    pub(crate) generate: Option<usize>,

    /// How often the least certain of these tokens are chosen again, the first time included
    #[arg(long, default_value_t = 10, value_name = "N", requires = "generate")]
    pub(crate) rounds: usize,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}
