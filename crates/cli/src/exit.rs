//! Exit codes of the process: one match from kinds of errors to codes.

use std::{
    io,
    process::{ExitCode, ExitStatus},
};

use narthex_files::environment;
use narthex_gateway::{Error, ErrorKind};
use narthex_server::ServeError;

use crate::{output, settings_file::BadSettings};

/// A negative result of `check`, `doctor`, `verify` or `service status` that was already printed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NegativeResult {
    /// `doctor` found a problem.
    Problem,
    /// Part of the model would run on another device.
    Partial,
    /// The model is refused.
    Refused,
    /// A file of the store is damaged.
    Damaged,
    /// The service is not running.
    Stopped,
}

impl std::fmt::Display for NegativeResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a negative result that was already printed")
    }
}

impl std::error::Error for NegativeResult {}

/// A program that `launch` would run is not installed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramMissing {
    pub(crate) program: &'static str,
    /// Command that installs it.
    pub(crate) install: &'static str,
}

impl ProgramMissing {
    /// Exit code, which shells use for a command that is not found.
    const CODE: u8 = 127;
}

impl std::fmt::Display for ProgramMissing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not installed; install it with `{}`", self.program, self.install)
    }
}

impl std::error::Error for ProgramMissing {}

/// Failure of a program that `launch` ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramFailed {
    pub(crate) program: &'static str,
    pub(crate) status: ExitStatus,
}

impl std::fmt::Display for ProgramFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ended with {}", self.program, self.status)
    }
}

impl std::error::Error for ProgramFailed {}

impl ProgramFailed {
    /// Returns the exit code of the program; for a signal, 128 and its number, as shells do.
    fn code(self) -> u8 {
        #[cfg(unix)]
        let signal = std::os::unix::process::ExitStatusExt::signal(&self.status);
        #[cfg(not(unix))]
        let signal = None::<i32>;
        let code = signal.map(|signal| 128 + signal).or_else(|| self.status.code());
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

/// Exit code for a malformed or damaged file.
const MALFORMED: u8 = 9;

/// Returns the exit code for a kind of error.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Internal => 1,
        ErrorKind::BadRequest => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::Fetch => 4,
        ErrorKind::Overloaded | ErrorKind::Loading | ErrorKind::Unavailable | ErrorKind::Forbidden => 5,
        ErrorKind::Storage => 6,
        ErrorKind::Malformed => MALFORMED,
        ErrorKind::Unsupported => 10,
        ErrorKind::Cancelled => 130,
    }
}

/// Prints an error and its hint; returns the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    let failed_write = error.downcast_ref::<io::Error>();
    if failed_write.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    match error.downcast_ref::<NegativeResult>() {
        Some(NegativeResult::Problem | NegativeResult::Stopped) => return ExitCode::FAILURE,
        Some(NegativeResult::Partial) => return ExitCode::from(7),
        Some(NegativeResult::Refused) => return ExitCode::from(8),
        Some(NegativeResult::Damaged) => return ExitCode::from(MALFORMED),
        None => {}
    }
    if let Some(missing) = error.downcast_ref::<ProgramMissing>() {
        output::note(format_args!("error: {missing}"));
        return ExitCode::from(ProgramMissing::CODE);
    }
    if let Some(failed) = error.downcast_ref::<ProgramFailed>() {
        output::note(format_args!("error: {failed}"));
        return ExitCode::from(failed.code());
    }
    if error.is::<BadSettings>() {
        output::note(format_args!("error: {error}"));
        output::note(
            "hint: `narthex config edit` opens the settings file, `narthex config check FILE` checks one",
        );
        return ExitCode::from(MALFORMED);
    }

    let gateway = error.downcast_ref::<Error>();
    let serve = error.downcast_ref::<ServeError>();
    let system = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    let kind = gateway.map(Error::kind).unwrap_or(match (serve, system) {
        (Some(error), _) => error.kind(),
        (None, Some(error)) => ErrorKind::of_io(error),
        (None, None) => ErrorKind::Internal,
    });
    if kind == ErrorKind::Cancelled {
        return ExitCode::from(code(kind));
    }

    note(error);
    ExitCode::from(code(kind))
}

/// Prints an error and its hint.
pub(crate) fn note(error: &anyhow::Error) {
    output::note(format_args!("error: {}", message(error)));
    if let Some(hint) = hint(error) {
        output::note(format_args!("hint: {hint}"));
    }
}

/// Returns the message of an error, with what was being done and the causes.
fn message(error: &anyhow::Error) -> String {
    let gateway = error.downcast_ref::<Error>().map(Error::to_string);
    match gateway.or_else(|| error.downcast_ref::<ServeError>().map(ServeError::to_string)) {
        // These errors include their causes in their messages.
        Some(message) if message == error.to_string() => message,
        Some(message) => format!("{error}: {message}"),
        None => format!("{error:#}"),
    }
}

/// Returns the next step after an error.
fn hint(error: &anyhow::Error) -> Option<String> {
    let gateway = error.downcast_ref::<Error>().and_then(Error::hint);
    let stated = gateway.or_else(|| error.downcast_ref::<ServeError>().and_then(ServeError::hint));
    let system = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>());
    stated.or_else(|| system.and_then(environment::hint).map(str::to_owned))
}

/// Prints clap's message: help and version to standard output, the rest to standard error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is not an error of `--help`.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render();
    let text = if console::colors_enabled_stderr() { text.ansi().to_string() } else { text.to_string() };
    output::styled_note(text.trim_end());
    ExitCode::from(2)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn messages_have_their_context_and_their_causes_once() {
        let check = |error: anyhow::Error, expect: &str| assert_eq!(message(&error), expect);
        let invalid = || Error::invalid("image", "found text");
        check(invalid().into(), "image: found text");
        check(
            Err::<(), _>(invalid()).context("cannot read cat.txt").unwrap_err(),
            "cannot read cat.txt: image: found text",
        );
        let source = io::Error::other("gone");
        check(
            Error::Io { what: "cannot read cat.png".to_owned(), source }.into(),
            "cannot read cat.png: gone",
        );
        check(anyhow::anyhow!("gone").context("cannot read cat.png"), "cannot read cat.png: gone");
    }
}
