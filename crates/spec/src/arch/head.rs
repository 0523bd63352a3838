//! A decoder's head.

use super::DecoderArch;

impl DecoderArch {
    /// Rows of the head: the tokens that it gives logits of.
    pub fn head_rows(&self) -> usize {
        self.kept_tokens.unwrap_or(self.vocab)
    }

    /// The canonical name of the head's weight: the embedding's, where they are one.
    pub fn head_weight(&self) -> &'static str {
        if self.tied_head && self.kept_tokens.is_none() { "embed.weight" } else { "head.weight" }
    }
}
