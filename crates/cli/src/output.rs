//! Standard output that survives a closed pipe, and the log on standard error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use tracing_subscriber::EnvFilter;

use crate::exit::ClosedPipe;

/// Sends logs to standard error: `RUST_LOG`, else by the number of `-v`.
pub(crate) fn start_log(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info,ort=warn",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let colours = io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colours);
    log.without_time().init();
}

/// Prints text as it is and flushes it; a closed pipe becomes [`ClosedPipe`].
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ClosedPipe.into()),
        other => Ok(other?),
    }
}

/// Prints one line.
pub(crate) fn line(line: impl std::fmt::Display) -> anyhow::Result<()> {
    text(&format!("{line}\n"))
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Prints one line for people to standard error.
pub(crate) fn note(line: impl std::fmt::Display) {
    // Nothing can be told to anyone once standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{line}");
}
