//! Standard output that survives a closed pipe, the log on standard error, and files that are whole or absent.

use std::{
    ffi::OsString,
    fs,
    io::{self, IsTerminal, Write},
    path::Path,
};

use anyhow::Context;
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

/// Writes a file in the place of an older one, whole or not at all.
pub(crate) fn file(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut new = OsString::from(path);
    new.push(".new");
    let new = Path::new(&new);
    let written = fs::write(new, text).and_then(|()| fs::rename(new, path));
    if written.is_err() {
        // What is left of it is of no use, and it may never have been made.
        let _ = fs::remove_file(new);
    }
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Prints one line for people to standard error.
pub(crate) fn note(line: impl std::fmt::Display) {
    // Nothing can be told to anyone once standard error is closed.
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_or_absent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        file(&path, "old").unwrap();
        file(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        // A folder cannot be replaced by a file; nothing half-written stays beside it.
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let error = file(&taken, "text").unwrap_err().to_string();
        assert!(error.contains("taken"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
