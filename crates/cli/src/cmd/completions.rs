//! `narthex completions`.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{args::Args, output};

/// Prints completions for a shell.
pub(crate) fn run(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "narthex", &mut script);
    output::text(&String::from_utf8_lossy(&script))
}
