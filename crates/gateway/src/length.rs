//! How long a text is that was refused for it.

use std::fmt;

/// How many tokens a text has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// They were counted.
    Counted(usize),
    /// The text has so many bytes that it was refused without being cut into tokens.
    AtLeast(usize),
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted(tokens) => write!(f, "{tokens}"),
            Self::AtLeast(tokens) => write!(f, "at least {tokens}"),
        }
    }
}
