//! A decoder's head.

use super::DecoderArch;

impl DecoderArch {
    /// Returns the number of rows of the head: the tokens that have logits.
    pub fn head_rows(&self) -> usize {
        self.kept_tokens.unwrap_or(self.vocab)
    }

    /// Returns the canonical name of the head's weight: that of the embedding if they are tied.
    pub fn head_weight(&self) -> &'static str {
        if self.tied_head && self.kept_tokens.is_none() { "embed.weight" } else { "head.weight" }
    }
}
