//! The tokens for which a reduced head has logits. No other token is ever generated.

use std::path::Path;

use narthex_engine::executor::FORBIDDEN_LOGIT;
use narthex_spec::{TokenId, arch::DecoderArch, manifest::Manifest};

use crate::{error::DeviceError, package};

/// Maximum number of bytes for a token in the list of a package: ten digits, a comma and a space.
const TOKEN_BYTES: u64 = 12;

/// Maximum size of a list in bytes.
const MAX_BYTES: u64 = 64 << 20;

/// The tokens for which a head has logits.
pub(crate) struct VocabSubset {
    vocab: usize,
    /// Tokens in ascending order; `None` for the whole vocabulary.
    tokens: Option<Vec<TokenId>>,
}

impl VocabSubset {
    /// Returns the subset of a head for the whole vocabulary.
    pub(crate) fn all(vocab: usize) -> Self {
        Self { vocab, tokens: None }
    }

    /// Reads the tokens of a package's head from the file that the manifest names.
    pub(crate) fn open(package: &Path, manifest: &Manifest, arch: &DecoderArch) -> Result<Self, DeviceError> {
        let vocab = arch.vocab;
        let Some(count) = arch.kept_tokens else { return Ok(Self::all(vocab)) };
        let path = package::path(
            package,
            manifest
                .kept_tokens
                .as_deref()
                .ok_or_else(|| DeviceError::package("a list of the tokens that are kept", "none"))?,
        )?;
        let read = |reason: String| DeviceError::Read { path: path.clone(), reason };
        let most = (vocab as u64).saturating_mul(TOKEN_BYTES).min(MAX_BYTES);
        let bytes = narthex_files::read(&path, most).map_err(|error| read(error.to_string()))?;
        let tokens: Vec<TokenId> = serde_json::from_slice(&bytes).map_err(|error| read(error.to_string()))?;
        let found = format!("{} in {}", tokens.len(), path.display());
        Self::new(vocab, tokens).filter(|subset| subset.width() == count).ok_or_else(|| {
            DeviceError::package(format!("{count} tokens below {vocab}, in ascending order"), found)
        })
    }

    /// Returns these tokens of a vocabulary, or `None` if there are none or they are not rising numbers below its size.
    pub(crate) fn new(vocab: usize, tokens: Vec<TokenId>) -> Option<Self> {
        let rising = tokens.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = tokens.last().is_some_and(|&last| (last as usize) < vocab);
        (rising && inside).then_some(Self { vocab, tokens: Some(tokens) })
    }

    /// Returns the number of logits in a row of the head's output.
    pub(crate) fn width(&self) -> usize {
        self.tokens.as_ref().map_or(self.vocab, Vec::len)
    }

    /// Moves the logits of `[rows, width]` at the beginning of `logits [rows, vocab]` to the places of their tokens.
    pub(crate) fn scatter(&self, logits: &mut [f32]) {
        let Some(tokens) = &self.tokens else { return };
        // In reverse order, no logit is overwritten before it has been moved.
        for row in (0..logits.len() / self.vocab).rev() {
            let from = row * tokens.len();
            let to = row * self.vocab;
            let mut end = to + self.vocab;
            for (index, &token) in tokens.iter().enumerate().rev() {
                let logit = logits[from + index];
                let place = to + token as usize;
                logits[place + 1..end].fill(FORBIDDEN_LOGIT);
                logits[place] = logit;
                end = place;
            }
            logits[to..end].fill(FORBIDDEN_LOGIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_go_to_their_tokens_in_place() {
        let check = |vocab: usize, tokens: &[TokenId], rows: usize| {
            let kept = VocabSubset { vocab, tokens: Some(tokens.to_vec()) };
            let mut logits = vec![0.0; rows * vocab];
            let count = rows * kept.width();
            logits[..count].iter_mut().zip(1u16..).for_each(|(logit, value)| *logit = f32::from(value));
            kept.scatter(&mut logits);
            for (row, logits) in logits.chunks(vocab).enumerate() {
                for (token, &logit) in (0..).zip(logits) {
                    let place = tokens.iter().position(|&kept| kept == token);
                    let expected =
                        place.map_or(FORBIDDEN_LOGIT, |index| (row * tokens.len() + index + 1) as f32);
                    assert_eq!(logit, expected, "{tokens:?} of {vocab}, row {row}, token {token}");
                }
            }
        };
        check(5, &[0, 1, 4], 3);
        check(5, &[4], 4);
        check(5, &[0], 4);
        check(5, &[1, 2, 3], 1);
        check(4, &[0, 1, 2, 3], 3);
        check(7, &[2, 5, 6], 0);
        let mut all = [1.0, 2.0];
        VocabSubset::all(2).scatter(&mut all);
        assert_eq!(all, [1.0, 2.0]);
    }
}
