//! A decoder's head.

use super::DecoderArch;

impl DecoderArch {
    /// Returns the number of rows of the head: the tokens that have logits.
    pub fn head_rows(&self) -> usize {
        self.kept_tokens.unwrap_or(self.vocab)
    }

    /// Returns the canonical name of the head's weight: that of the embedding if they are tied.
    pub fn head_weight(&self) -> &'static str {
        if self.has_own_head() { "head.weight" } else { "embed.weight" }
    }

    /// Returns `true` if the head has a weight of its own.
    pub fn has_own_head(&self) -> bool {
        !self.tied_head || self.kept_tokens.is_some()
    }
}
