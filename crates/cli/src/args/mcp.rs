//! Arguments of `narthex mcp`.

use clap::Args as ClapArgs;
use narthex_gateway::AutoPull;

use super::DecoderLoadArgs;

/// `narthex mcp`.
#[derive(Debug, ClapArgs)]
pub(crate) struct McpArgs {
    /// Model of the tool chat: a name, hf:owner/repo, or a path [default: the newest installed chat model]
    #[arg(long, value_name = "MODEL")]
    pub(crate) chat_model: Option<String>,

    /// Model of the tool embeddings [default: the newest installed embedding model]
    #[arg(long, value_name = "MODEL")]
    pub(crate) embedding_model: Option<String>,

    /// Model of the tool rerank [default: the newest installed reranker]
    #[arg(long, value_name = "MODEL")]
    pub(crate) rerank_model: Option<String>,

    /// Downloads and compiles that calls may start for other models: never, catalogue (its models that come through
    /// pip, up to 1 GiB) or always
    #[arg(long, value_name = "POLICY", default_value_t = AutoPull::default(), value_parser = super::auto_pull)]
    pub(crate) auto_pull: AutoPull,

    #[command(flatten)]
    pub(crate) load: DecoderLoadArgs,
}
