//! Arguments of `embed`, `rerank`, `classify`, `decide`, `answer` and `fill`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};
use narthex_gateway::request::Aggregation;

use super::LoadArgs;

/// `narthex embed`.
#[derive(Debug, ClapArgs)]
pub(crate) struct EmbedArgs {
    /// The texts [default: the lines of standard input]
    pub(crate) texts: Vec<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "all-minilm-l6-v2")]
    pub(crate) model: String,

    /// Truncate vectors to this many elements
    #[arg(long, value_name = "N")]
    pub(crate) dimensions: Option<usize>,

    /// Prepend this prompt of the model to each text, such as query or passage; `narthex show` lists them
    #[arg(long, value_name = "NAME")]
    pub(crate) prompt: Option<String>,

    /// Truncate texts that are too long instead of failing
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
    /// The query
    pub(crate) query: String,

    /// The documents [default: the lines of standard input]
    pub(crate) documents: Vec<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "ms-marco-minilm-l6-v2")]
    pub(crate) model: String,

    /// Print only the N best documents
    #[arg(long, value_name = "N")]
    pub(crate) top_n: Option<usize>,

    /// Truncate documents that are too long instead of failing
    #[arg(long)]
    pub(crate) truncate: bool,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// `narthex classify`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ClassifyArgs {
    /// The texts [default: the lines of standard input]
    pub(crate) texts: Vec<String>,

    /// The model, a classifier of texts or of tokens: a name, hf:owner/repo, or a path
    #[arg(short, long)]
    pub(crate) model: String,

    /// Print the N likeliest labels of each text
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) top_k: usize,

    /// Entities of a classifier of tokens: `simple` joins adjacent tokens of one label, `none` prints each token
    #[arg(long, value_enum, default_value_t, value_name = "STRATEGY")]
    pub(crate) aggregation: ClassifyAggregation,

    /// Truncate texts that are too long instead of failing
    #[arg(long)]
    pub(crate) truncate: bool,

    /// Print one JSON object with the scores of all labels, or with the entities
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// Form of the entities that a classifier of tokens finds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassifyAggregation {
    #[default]
    Simple,
    None,
}

impl From<ClassifyAggregation> for Aggregation {
    fn from(aggregation: ClassifyAggregation) -> Self {
        match aggregation {
            ClassifyAggregation::Simple => Self::Simple,
            ClassifyAggregation::None => Self::None,
        }
    }
}

/// `narthex decide`.
#[derive(Debug, ClapArgs)]
pub(crate) struct DecideArgs {
    /// The question, which is answered with yes or no unless --options or --levels state the answers
    pub(crate) question: String,

    /// File with the text that the question is about; - reads standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) context: PathBuf,

    /// The possible answers, at most 26
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', conflicts_with = "levels")]
    pub(crate) options: Vec<String>,

    /// The levels of a scale, from the lowest to the highest
    #[arg(long, value_name = "LOW,…,HIGH", value_delimiter = ',')]
    pub(crate) levels: Vec<String>,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "smollm2:135m")]
    pub(crate) model: String,

    /// Print one JSON object, with the confidence
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

    /// File with the text that contains the answer; - reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) context: PathBuf,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "distilbert-squad")]
    pub(crate) model: String,

    /// Number of answers; several are printed with scores and offsets
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
    /// The text, with the model's mask token ([MASK], <mask>) for each token to predict
    pub(crate) text: String,

    /// The model: a name, hf:owner/repo, or a path
    #[arg(short, long, default_value = "mobilebert-uncased")]
    pub(crate) model: String,

    /// Number of tokens for each mask
    #[arg(long, default_value_t = 5, value_name = "N", conflicts_with = "generate")]
    pub(crate) top_k: usize,

    /// Generate N tokens at the position of the mask, or at the end of a text without one
    #[arg(long, value_name = "N")]
    pub(crate) generate: Option<usize>,

    /// Number of rounds; each one predicts the least certain tokens again
    #[arg(long, default_value_t = 10, value_name = "N", requires = "generate")]
    pub(crate) rounds: usize,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) load: LoadArgs,
}
