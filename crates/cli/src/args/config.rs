//! Arguments of `narthex config` and `narthex create`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

/// `narthex config`.
#[derive(Debug, ClapArgs)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

/// Subcommands of `narthex config`.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// List every fault of the settings file, with line, key, what was expected and what was found
    Check {
        /// The file [default: that of the store]
        file: Option<PathBuf>,
    },
    /// Print the settings that apply, with the variable or the file that states each
    Show,
    /// Print the path of the settings file
    Path,
    /// Open the settings file in the editor of VISUAL or EDITOR, and check it afterwards
    Edit,
}

/// `narthex create`.
#[derive(Debug, ClapArgs)]
pub(crate) struct CreateArgs {
    /// The new name
    pub(crate) name: String,

    /// Model that answers under the new name
    #[arg(long, value_name = "MODEL", required_unless_present = "file")]
    pub(crate) from: Option<String>,

    /// Read model, system prompt and sampling from this Modelfile; options come first
    #[arg(short, long, value_name = "MODELFILE")]
    pub(crate) file: Option<PathBuf>,

    /// System prompt of conversations without one
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    /// Sampling temperature, 0 to 2; 0 is greedy
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,

    /// Keep the most likely tokens up to this cumulative probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,

    /// Keep the K most likely tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,

    /// Drop tokens below this share of the highest probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,

    /// Divide the logits of tokens that occurred by this factor; 1 for no penalty
    #[arg(long, value_name = "FACTOR", allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,

    /// Stop at this text; repeatable
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}
