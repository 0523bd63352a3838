//! Templates of pairs of texts.

use serde::{Deserialize, Serialize};

use super::Contradiction;
use crate::arch::EncoderHead;

/// Template of a pair of texts, for rerankers that read query and document as a conversation: `start`, `first`, the query,
/// `second`, the document, `end`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PairTemplate {
    /// Text before everything else. Spellings of special tokens become these tokens.
    pub start: String,
    /// Text before the first text.
    pub first: String,
    /// Text before the second text.
    pub second: String,
    /// Text after everything else. Spellings of special tokens become these tokens.
    pub end: String,
}

impl PairTemplate {
    /// Fails unless the model gives scores of a text.
    pub(super) fn check(&self, head: Option<&EncoderHead>) -> Result<(), Contradiction> {
        match head {
            Some(EncoderHead::Score { .. }) => Ok(()),
            _ => Err(Contradiction::new("a template of pairs", "that of a model without scores of texts")),
        }
    }
}
