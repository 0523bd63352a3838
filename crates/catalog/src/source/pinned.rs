//! Wheels that are pinned to one file.

use narthex_spec::Sha256;

use super::pip::Requirement;

/// A wheel that is pinned to one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PinnedWheel<'a> {
    pub(crate) wanted: Requirement<'a>,
    pub(crate) sha256: Sha256,
    pub(crate) bytes: u64,
}

impl PinnedWheel<'_> {
    /// Returns the name of the wheel in errors: `wheel onnxruntime 1.31.1`.
    pub(crate) fn describe(&self) -> String {
        format!("wheel {} {}", self.wanted.package, self.wanted.version)
    }
}
