//! Standard output that tolerates a closed pipe, the log on standard error, and output files that are never incomplete.

use std::{
    borrow::Cow,
    fmt,
    fs::{self, File},
    io::{self, ErrorKind, IsTerminal, Write},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Context;
use clap::ValueEnum;
use console::Term;
use narthex_gateway::redact;
use narthex_server::ACCESS;
use serde::Serialize;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::{
    json_log::{self, JsonLine},
    wrap,
};

/// Log lines about the devices of a newly loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceLine {
    Shown,
    /// The device is hidden, because the command itself prints it.
    Hidden,
    /// The device is hidden, and so are the reasons of other devices (`--quiet`).
    Quiet,
}

/// Format of the log on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Sends logs to standard error, filtered by `RUST_LOG` or else by the number of `-v`. Events show their module only
/// with `RUST_LOG` or `-vv`.
pub(crate) fn start_log(verbose: u8, devices: DeviceLine, format: LogFormat) {
    let level = match (verbose, devices) {
        // rmcp logs every error that it answers.
        (0, DeviceLine::Shown) => "warn,narthex::device=info,rmcp=error",
        (0, DeviceLine::Hidden) => "warn,rmcp=error",
        (0, DeviceLine::Quiet) => "warn,narthex::refusal=off,rmcp=error",
        (1, _) => "info,ort=warn,rmcp=error",
        _ => "debug",
    };
    let named = EnvFilter::try_from_default_env();
    if format == LogFormat::Json {
        IS_JSON.store(true, Ordering::Relaxed);
        let filter = named.unwrap_or_else(|_| EnvFilter::new(level));
        let log = tracing_subscriber::fmt().with_writer(io::stderr).event_format(JsonLine);
        log.with_env_filter(filter).init();
        return;
    }
    let log = tracing_subscriber::fmt().with_writer(|| RedactedStderr).without_time();
    if named.is_ok() || verbose > 1 {
        let filter = named.unwrap_or_else(|_| EnvFilter::new(level));
        log.with_env_filter(filter).with_ansi(io::stderr().is_terminal()).init();
    } else {
        log.with_env_filter(EnvFilter::new(level)).with_ansi(false).event_format(PlainLine).init();
    }
}

/// Set if the log has JSON objects.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Formats events for people: warnings and errors are marked, and modules are omitted. Lines about requests have only their
/// message, which contains their fields.
struct PlainLine;

impl<S, N> FormatEvent<S, N> for PlainLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        match *event.metadata().level() {
            Level::ERROR => writer.write_str("error: ")?,
            Level::WARN => writer.write_str("warning: ")?,
            _ => {}
        }
        if event.metadata().target() == ACCESS {
            event.record(&mut Message(&mut writer));
        } else {
            context.field_format().format_fields(writer.by_ref(), event)?;
        }
        writeln!(writer)
    }
}

/// Writes the message of an event without its other fields.
struct Message<'a, 'w>(&'a mut Writer<'w>);

impl Visit for Message<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // A line that cannot be written is missing.
            let _ = write!(self.0, "{value:?}");
        }
    }
}

/// Standard error without credentials. Each event of the log is one write.
struct RedactedStderr;

impl Write for RedactedStderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let event = String::from_utf8_lossy(bytes);
        let event = redact(&event);
        io::stderr().lock().write_all(wrap::for_terminal(&Term::stderr(), &event).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Prints and flushes text. On a terminal, control characters are shown as escapes.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(shown_on(&stdout, text).as_bytes())?;
    Ok(stdout.flush()?)
}

/// Prints and flushes text with its styles. It must have no other control characters on a terminal.
pub(crate) fn styled_text(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    Ok(stdout.flush()?)
}

/// Returns the text as this output shows it: a terminal without control characters, a file or a pipe unchanged.
fn shown_on<'a>(output: &impl IsTerminal, text: &'a str) -> Cow<'a, str> {
    if output.is_terminal() { without_controls(text) } else { Cow::Borrowed(text) }
}

/// Escapes control characters, except line breaks and tabs. Control characters from a model, a file or another program
/// could hide other lines of a terminal or write to its clipboard.
pub(crate) fn without_controls(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// Escapes control characters as [`without_controls`] does, and further characters.
pub(crate) fn escaped(text: &str, escapes: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |char: char| escapes(char) || char.is_control() && !matches!(char, '\n' | '\t');
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for char in text.chars() {
        if is_escaped(char) {
            shown.extend(char.escape_unicode());
        } else {
            shown.push(char);
        }
    }
    Cow::Owned(shown)
}

/// Prints one line.
pub(crate) fn line(line: impl std::fmt::Display) -> anyhow::Result<()> {
    text(&format!("{line}\n"))
}

/// Prints a report for people. Its lines fit the terminal.
pub(crate) fn report(report: impl std::fmt::Display) -> anyhow::Result<()> {
    let report = report.to_string();
    let report = shown_on(&io::stdout(), report.trim_end_matches('\n'));
    line(wrap::for_terminal(&Term::stdout(), &report))
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Output file that replaces an older one only when it is complete.
pub(crate) struct NewFile {
    path: PathBuf,
    /// Temporary file in the same folder.
    temporary: PathBuf,
    file: File,
}

impl NewFile {
    /// Creates the temporary file, so that an unusable path fails before the work for its content.
    ///
    /// Refuses to replace anything else than a regular file.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let temporary = path.with_added_extension(format!("{}.new", process::id()));
        let file = check_replaceable(path).and_then(|()| create_new(&temporary));
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path: path.to_owned(), temporary, file })
    }

    /// Writes the content and replaces the older file.
    pub(crate) fn write(mut self, content: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let stored = self.file.write_all(content.as_ref()).and_then(|()| self.file.sync_all());
        let written = stored.and_then(|()| fs::rename(&self.temporary, &self.path));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Removes the incomplete file. After the rename it does not exist.
        let _ = fs::remove_file(&self.temporary);
    }
}

fn check_replaceable(path: &Path) -> io::Result<()> {
    match path.metadata() {
        // The error names the kind that was found.
        Ok(found) if !found.is_file() => narthex_files::open_regular(path).map(drop),
        _ => Ok(()),
    }
}

/// Creates a file. A killed process with the same id may have left one of this name.
fn create_new(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    File::create_new(path)
}

/// Prints a question to standard error without a line break, so that the answer follows on the same line.
pub(crate) fn question(text: impl std::fmt::Display) {
    let mut stderr = io::stderr().lock();
    let text = text.to_string();
    // The error is ignored, because with standard error closed there is no other output.
    let _ = stderr.write_all(shown_on(&stderr, &text).as_bytes()).and_then(|()| stderr.flush());
}

/// Prints one line to standard error, without the credentials in it. It is broken if the terminal is narrower. On a
/// terminal, control characters are shown as escapes.
pub(crate) fn note(line: impl std::fmt::Display) {
    styled_note(shown_on(&io::stderr(), &line.to_string()));
}

/// Prints a line as [`note`] does, with its colours. The text must be our own or the user's.
pub(crate) fn styled_note(line: impl std::fmt::Display) {
    // The error is ignored, because with standard error closed there is no other output.
    let line = line.to_string();
    if IS_JSON.load(Ordering::Relaxed) {
        let _ = writeln!(io::stderr().lock(), "{}", json_log::note(&line));
        return;
    }
    let line = redact(&line);
    let _ = writeln!(io::stderr().lock(), "{}", wrap::for_terminal(&Term::stderr(), &line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_control_a_terminal() {
        let check = |text: &str, expect: &str| assert_eq!(without_controls(text), expect);
        check("a\u{1b}[8mb\u{1b}]52;c;eA==\u{7}", r"a\u{1b}[8mb\u{1b}]52;c;eA==\u{7}");
        check("\0\u{8}\r\u{7f}\u{80}\u{9b}2J\u{9f}", r"\u{0}\u{8}\u{d}\u{7f}\u{80}\u{9b}2J\u{9f}");
        let joined = "👩\u{200d}🔬 क\u{94d}\u{200d}ष";
        for plain in ["line\n\ttab", joined, "é\u{a0}日本", "\u{5d0}\u{200f}!"] {
            check(plain, plain);
        }
        // A pipe gets the bytes as they are.
        let folder = tempfile::tempdir().unwrap();
        let file = File::create(folder.path().join("piped")).unwrap();
        assert_eq!(shown_on(&file, "\u{1b}[1m"), "\u{1b}[1m");
    }

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
        // A folder cannot be replaced by a file, and no temporary file remains next to it.
        let taken = folder.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let error = NewFile::create(&taken).err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("taken")));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[cfg(unix)]
    #[test]
    fn other_kinds_of_files_are_neither_replaced_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.html");
        let mkfifo = |path: &Path| {
            assert!(process::Command::new("mkfifo").arg(path).status().unwrap().success());
        };
        // The temporary file of a process that was killed, or a trap.
        for left in ["report.html.new", &format!("report.html.{}.new", process::id())] {
            mkfifo(&folder.path().join(left));
        }
        NewFile::create(&path).unwrap().write("new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        fs::remove_file(&path).unwrap();
        mkfifo(&path);
        for (path, expect) in [(&*path, "found a named pipe"), (Path::new("/dev/null"), "found a device")] {
            let error = NewFile::create(path).err().map(|error| format!("{error:#}"));
            assert!(error.as_ref().is_some_and(|error| error.contains(expect)), "{error:?}");
        }
    }
}
