//! Output on the terminal. No other module of this crate prints.

use std::{
    fmt::Display,
    io::{self, Write},
};

/// Prints one line to standard output.
pub fn line(line: impl Display) {
    // A closed pipe must not stop a check.
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// Prints one line to standard error.
pub fn problem(line: impl Display) {
    // A closed standard error has no reader.
    let _ = writeln!(io::stderr().lock(), "{line}");
}
