//! Conversion of a panic inside a decoder's library into an error.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// A library panicked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LibraryPanic;

/// Runs `work` and catches a panic inside it. After a panic, values that the closure borrows must only be dropped.
pub(crate) fn contain<T>(work: impl FnOnce() -> T) -> Result<T, LibraryPanic> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| LibraryPanic)
}
