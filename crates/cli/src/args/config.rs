//! Arguments of `narthex config` and `narthex create`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::SamplingArgs;

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
    /// Let the running servers of this store read their settings again
    Reload,
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

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}
