//! Error of a manifest whose parts contradict each other.

/// A contradiction in a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("its manifest contradicts itself: expected {expected}, found {found}")]
pub struct Contradiction {
    expected: String,
    found: String,
}

impl Contradiction {
    pub(super) fn new(expected: impl Into<String>, found: impl std::fmt::Display) -> Self {
        Self { expected: expected.into(), found: found.to_string() }
    }
}
