//! What is said to the person at the terminal. The only place of this crate that prints.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// Prints one line to standard output.
pub(crate) fn line(line: impl Display) {
    // A reader that went away is no reason to stop a check.
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Prints one line to standard error.
pub(crate) fn problem(line: impl Display) {
    // Once standard error is closed there is nobody left to tell.
    let _ = writeln!(io::stderr().lock(), "{line}");
}
