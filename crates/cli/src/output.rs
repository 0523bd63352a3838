//! Standard output that survives a closed pipe, the log on standard error, and files that are whole or absent.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, ErrorKind, IsTerminal, Write},
    path::{Path, PathBuf},
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

/// A file that takes the place of an older one once it is written, whole or not at all.
pub(crate) struct NewFile {
    path: PathBuf,
    /// Where it grows.
    beside: PathBuf,
    file: File,
}

impl NewFile {
    /// Begins it, so that a place where it cannot be is known before there is anything to write.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let mut beside = OsString::from(path);
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let file = if path.is_dir() { Err(ErrorKind::IsADirectory.into()) } else { File::create(&beside) };
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), beside, file })
    }

    /// Writes it all.
    pub(crate) fn write(mut self, text: &str) -> anyhow::Result<()> {
        let written =
            self.file.write_all(text.as_bytes()).and_then(|()| fs::rename(&self.beside, &self.path));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // What is left of it is of no use, and after a rename nothing is.
        let _ = fs::remove_file(&self.beside);
    }
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
        NewFile::create(&path).unwrap().write("old").unwrap();
        let begun = NewFile::create(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old", "nothing is written yet");
        begun.write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        drop(NewFile::create(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new", "it was given up");
        // A folder cannot be replaced by a file; nothing half-written stays beside it.
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let error = NewFile::create(&taken).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("taken")));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
