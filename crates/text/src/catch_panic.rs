//! Conversion of a panic inside a third-party library into an error.
//!
//! Tokenizer files and templates are untrusted, and the libraries that interpret them panic on some malformed
//! input. Panics of our own code are not handled this way.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A library panicked, and its value was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LibraryPanic;

/// Runs `work` and catches a panic inside it.
///
/// After a panic, values that the closure borrows must only be dropped or read.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Result<T, LibraryPanic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| LibraryPanic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(contain(|| 7), Ok(7));
        assert_eq!(contain(|| -> u8 { panic!("contained") }), Err(LibraryPanic));
    }
}
