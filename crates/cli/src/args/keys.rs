//! Arguments of `narthex key`.

use std::num::NonZeroU32;

use clap::{Args as ClapArgs, Subcommand};
use narthex_gateway::keys::{KeyLimits, KeyRole};
use narthex_spec::ModelName;

use super::JsonArgs;

/// `narthex key`.
#[derive(Debug, ClapArgs)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) command: KeyCommand,
}

/// Subcommands of `narthex key`.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a key and print it; it cannot be shown again
    Add(KeyAddArgs),
    /// List keys with their rights and limits
    List(JsonArgs),
    /// Remove a key
    Rm {
        /// Name of the key
        name: String,
    },
}

/// `narthex key add`.
#[derive(Debug, ClapArgs)]
pub(crate) struct KeyAddArgs {
    /// Name of the key
    pub(crate) name: String,

    /// Allow only this model; repeatable
    #[arg(short, long)]
    model: Vec<ModelName>,

    /// Maximum number of requests per minute
    #[arg(long, value_name = "N", value_parser = limit)]
    requests_per_minute: Option<NonZeroU32>,

    /// Maximum number of prompt and generated tokens per minute
    #[arg(long, value_name = "N", value_parser = limit)]
    tokens_per_minute: Option<NonZeroU32>,

    /// Maximum number of concurrent answers; each choice for each prompt of a request counts as one
    #[arg(long, value_name = "N", value_parser = limit)]
    concurrency: Option<NonZeroU32>,

    /// Allow access to metrics, unloading models, and requests that download or compile any model
    #[arg(long)]
    admin: bool,
}

/// Parses a limit of at least one.
fn limit(text: &str) -> Result<NonZeroU32, String> {
    text.parse().map_err(|_| format!("expected a number of at least 1, found {text:?}"))
}

impl KeyAddArgs {
    /// Returns the rights and limits.
    pub(crate) fn limits(&self) -> KeyLimits {
        KeyLimits {
            role: if self.admin { KeyRole::Admin } else { KeyRole::User },
            models: self.model.iter().cloned().collect(),
            requests_per_minute: self.requests_per_minute,
            tokens_per_minute: self.tokens_per_minute,
            concurrency: self.concurrency,
        }
    }
}
