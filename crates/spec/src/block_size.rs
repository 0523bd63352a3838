//! Sizes of the blocks of quantised weights.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Number of elements of a weight's row that share one scale.
///
/// Written as a number, or as `channel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "BlockForm", into = "BlockForm")]
pub enum BlockSize {
    /// So many elements. The last block of a row is padded.
    Elements(usize),
    /// The whole row: one scale for each output channel.
    Channel,
}

impl BlockSize {
    /// Sizes in elements that a compile can be asked for.
    pub const ELEMENTS: [usize; 5] = [16, 32, 64, 128, 256];

    /// Block sizes of `MatMulNBits` for weights with one scale per row, all of which have kernels.
    const OPERATOR_BLOCKS: [usize; 4] = [128, 64, 32, 16];

    /// Returns the number of elements of a row of `cols` elements that share one scale.
    pub fn elements(self, cols: usize) -> usize {
        match self {
            Self::Elements(elements) => elements,
            Self::Channel => cols,
        }
    }

    /// Returns the `block_size` of `MatMulNBits` for rows of `cols` elements. The operator has no form with one scale per
    /// row, so it gets the scale of the row for each of its blocks.
    pub fn operator_block(self, cols: usize) -> usize {
        match self {
            Self::Elements(elements) => elements,
            Self::Channel => {
                Self::OPERATOR_BLOCKS.into_iter().find(|&block| cols.is_multiple_of(block)).unwrap_or(16)
            }
        }
    }

    /// Returns `true` if rows of `cols` elements can have blocks of this size. Rows with one scale have no padding, so
    /// that both variants read the same integers.
    pub fn divides(self, cols: usize) -> bool {
        self != Self::Channel || cols.is_multiple_of(16)
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elements(elements) => write!(f, "{elements}"),
            Self::Channel => f.write_str("channel"),
        }
    }
}

/// A string that is not a [`BlockSize`] for a compile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected a block size of 16, 32, 64, 128 or 256 elements, or channel; found {found}")]
pub struct InvalidBlockSize {
    /// The string, at most 80 characters of it.
    pub found: String,
}

impl FromStr for BlockSize {
    type Err = InvalidBlockSize;

    fn from_str(text: &str) -> Result<Self, InvalidBlockSize> {
        if text.eq_ignore_ascii_case("channel") {
            return Ok(Self::Channel);
        }
        let elements = text.parse().ok().filter(|elements| Self::ELEMENTS.contains(elements));
        elements
            .map(Self::Elements)
            .ok_or_else(|| InvalidBlockSize { found: text.chars().take(80).collect() })
    }
}

/// Form of a block size in JSON: a number or a word.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum BlockForm {
    Elements(usize),
    Word(ChannelWord),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ChannelWord {
    Channel,
}

impl From<BlockForm> for BlockSize {
    fn from(form: BlockForm) -> Self {
        match form {
            BlockForm::Elements(elements) => Self::Elements(elements),
            BlockForm::Word(ChannelWord::Channel) => Self::Channel,
        }
    }
}

impl From<BlockSize> for BlockForm {
    fn from(block: BlockSize) -> Self {
        match block {
            BlockSize::Elements(elements) => Self::Elements(elements),
            BlockSize::Channel => Self::Word(ChannelWord::Channel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_read_as_they_are_written() {
        let check = |text: &str, json: &str, expected: BlockSize| {
            assert_eq!((text.parse(), text), (Ok(expected), expected.to_string().as_str()));
            assert_eq!(serde_json::to_string(&expected).unwrap(), json);
            assert_eq!(serde_json::from_str::<BlockSize>(json).unwrap(), expected);
        };
        check("32", "32", BlockSize::Elements(32));
        check("channel", "\"channel\"", BlockSize::Channel);
        for wrong in ["", "0", "24", "512", "-16", "channels"] {
            let error = wrong.parse::<BlockSize>().unwrap_err().to_string();
            assert!(error.ends_with(&format!("or channel; found {wrong}")), "{error}");
        }
        assert!(serde_json::from_str::<BlockSize>("\"row\"").is_err());
    }

    #[test]
    fn rows_with_one_scale_are_divided_without_padding() {
        let blocks = |cols| {
            let block = BlockSize::Channel;
            (block.elements(cols), block.operator_block(cols), block.divides(cols))
        };
        assert_eq!(blocks(576), (576, 64, true));
        assert_eq!(blocks(1536), (1536, 128, true));
        assert_eq!(blocks(48), (48, 16, true));
        assert_eq!(blocks(40), (40, 16, false));
        let block = BlockSize::Elements(32);
        assert_eq!((block.elements(40), block.operator_block(40), block.divides(40)), (32, 32, true));
    }
}
