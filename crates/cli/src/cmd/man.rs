//! `narthex man`.

use std::{fs, path::Path};

use anyhow::Context;
use clap::CommandFactory;

use crate::{args::Args, output};

/// Writes a manual page for each command to a folder, and prints the folder.
pub(crate) fn run(folder: &Path) -> anyhow::Result<()> {
    let written = fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Args::command(), folder));
    written.with_context(|| format!("cannot write the manual pages to {}", folder.display()))?;
    output::line(folder.display())
}
