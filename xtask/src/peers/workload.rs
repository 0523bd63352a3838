//! The workload of a measurement.

/// Sizes of a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Workload {
    /// Tokens of a prompt.
    pub(super) prompt: usize,
    /// Tokens generated after it.
    pub(super) decode: usize,
    /// Counted repetitions, whose median is the result.
    pub(super) repeat: usize,
}

/// The workload of every run, so that runs can be compared.
pub(super) const WORKLOAD: Workload = Workload { prompt: 256, decode: 64, repeat: 2 };

/// Tokens of a window of the perplexity text.
pub(super) const WINDOW: &str = "256";
