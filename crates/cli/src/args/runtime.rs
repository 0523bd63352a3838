//! Arguments of `narthex runtime`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::JsonArgs;

/// `narthex runtime`.
#[derive(Debug, ClapArgs)]
pub(crate) struct RuntimeArgs {
    #[command(subcommand)]
    pub(crate) command: RuntimeCommand,
}

/// Subcommands of `narthex runtime`.
#[derive(Debug, Subcommand)]
pub(crate) enum RuntimeCommand {
    /// Install a runtime (cpu, qnn, openvino, webgpu, directml or cuda), or Intel's compiler for NPUs (openvino-compiler)
    Install {
        /// Name of the runtime
        #[arg(default_value = "cpu")]
        kind: String,
        /// Install from this wheel instead of with pip
        #[arg(long, value_name = "FILE.whl")]
        from: Option<PathBuf>,
    },
    /// List runtimes
    List(JsonArgs),
    /// Remove a runtime
    Rm {
        /// Name of the runtime
        kind: String,
    },
}
