//! Workloads of a measurement.

use std::fmt;

/// Sizes of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Workload {
    /// Number of tokens in a prompt.
    pub(super) prompt: usize,
    /// Number of tokens that are generated after it.
    pub(super) decode: usize,
    /// Number of counted repetitions. The result is their median.
    pub(super) repeat: usize,
}

/// Workload of every run, so that runs can be compared.
pub(super) const STANDARD: Workload = Workload { prompt: 256, decode: 64, repeat: 2 };

/// A short question with a long answer, and a document with a short answer.
pub(super) const SHAPES: [Workload; 2] =
    [Workload { prompt: 31, decode: 200, repeat: 1 }, Workload { prompt: 1000, decode: 16, repeat: 1 }];

/// Prompts of increasing length. The last one and its answer fill the context of 8192 tokens.
pub(super) const DEPTHS: [Workload; 4] = [
    Workload { prompt: 128, decode: 32, repeat: 1 },
    Workload { prompt: 1024, decode: 32, repeat: 1 },
    Workload { prompt: 4096, decode: 32, repeat: 1 },
    Workload { prompt: 8160, decode: 32, repeat: 1 },
];

/// Parses the prompt length of one of [`DEPTHS`].
pub(super) fn parse_depth(text: &str) -> Result<usize, String> {
    let prompts = DEPTHS.map(|work| work.prompt);
    let found = prompts.into_iter().find(|prompt| prompt.to_string() == text);
    found.ok_or_else(|| format!("expected one of {}", prompts.map(|prompt| prompt.to_string()).join(", ")))
}

/// Text whose words and perplexity are used, relative to the root.
pub(super) const TEXT: &str = "bench/text/ferry.txt";

/// Number of tokens in a window of the perplexity text.
pub(super) const WINDOW: &str = "256";

impl Workload {
    /// Returns true if attention to the prompt takes much of the time.
    pub(super) fn is_deep(self) -> bool {
        self.prompt >= 4096
    }
}

impl fmt::Display for Workload {
    /// Formats the numbers of tokens of a prompt and of its answer, as in `256 + 64`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} + {}", self.prompt, self.decode)
    }
}
