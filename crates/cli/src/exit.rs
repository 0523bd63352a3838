//! How the process ends: one match from a kind of failure to an exit code.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use narthex_gateway::{Error, ErrorKind};
use narthex_server::ServeError;

/// A closed standard output, which ends the process quietly.
#[derive(Debug)]
pub(crate) struct ClosedPipe;

impl std::fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("standard output is closed")
    }
}

impl std::error::Error for ClosedPipe {}

/// What a check or the doctor came to, where not all is well; it was printed already.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Judged {
    /// Something on this machine must be mended first.
    Broken,
    /// Some of the model would run elsewhere.
    Partly,
    /// The model is refused.
    Refused,
}

impl std::fmt::Display for Judged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Broken => "something on this machine must be mended first",
            Self::Partly => "some of the model would run elsewhere",
            Self::Refused => "the model is refused",
        })
    }
}

impl std::error::Error for Judged {}

/// The exit code for a kind of failure.
fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Internal => 1,
        ErrorKind::BadRequest => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::Fetch => 4,
        ErrorKind::Overloaded | ErrorKind::Loading | ErrorKind::Unavailable => 5,
        ErrorKind::Storage => 6,
        ErrorKind::Cancelled => 130,
    }
}

/// Prints an error and its hint, and gives the exit code.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if error.is::<ClosedPipe>() || is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    match error.downcast_ref::<Judged>() {
        Some(Judged::Broken) => return ExitCode::FAILURE,
        Some(Judged::Partly) => return ExitCode::from(7),
        Some(Judged::Refused) => return ExitCode::from(8),
        None => {}
    }
    let gateway = error.downcast_ref::<Error>();
    let serve = error.downcast_ref::<ServeError>();
    let kind = gateway.map(Error::kind).unwrap_or(match serve {
        Some(_) => ErrorKind::Unavailable,
        None => ErrorKind::Internal,
    });
    if kind == ErrorKind::Cancelled {
        return ExitCode::from(code(kind));
    }
    let hint = gateway.and_then(Error::hint).or_else(|| serve.and_then(ServeError::hint));
    let mut stderr = io::stderr().lock();
    // Where even standard error is closed there is nobody left to tell.
    let _ = match gateway.is_some() || serve.is_some() {
        // Our own errors name their causes themselves.
        true => writeln!(stderr, "error: {error}"),
        false => writeln!(stderr, "error: {error:#}"),
    };
    if let Some(hint) = hint {
        let _ = writeln!(stderr, "hint: {hint}");
    }
    ExitCode::from(code(kind))
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Prints clap's message: help and version to standard output, the rest to standard error.
pub(crate) fn usage(error: &clap::Error) -> ExitCode {
    // A closed pipe under `--help` is no failure.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS }
}
