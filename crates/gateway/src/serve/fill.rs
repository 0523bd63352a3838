//! Predictions of a masked language model for masked tokens.

use std::slice::ChunksExact;

use narthex_engine::encoder::EncoderLimits;
use narthex_spec::TokenId;
use narthex_text::tokenizer::{BoundedTokens, Bounds, Tokenizer};

use crate::{
    cancel::Cancel,
    encoder_queue::{EncoderInput, QueuedRequest},
    error::Error,
    library::package::bad_package,
    load::residency::ReadyModel,
    report::models::ModelKind,
    serve::{
        options::check_count,
        probabilities::softmax,
        request::{Filling, Fillings, MaskRequest},
    },
};

/// Maximum masks of a text. Each has a row of logits over the vocabulary.
pub(super) const MAX_MASKS: usize = 64;

/// Maximum tokens for one mask.
const MAX_FILLINGS: usize = 100;

/// A request to a masked language model.
pub(super) struct MaskedModel<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    /// Text of the mask token.
    pub(super) mask: &'a str,
    pub(super) mask_id: TokenId,
    limits: &'a EncoderLimits,
    queued: QueuedRequest<'a>,
    cancel: &'a Cancel,
}

impl ReadyModel {
    /// Predicts every mask of a text, while all others are masked. Ends with [`Error::Cancelled`] once `cancel` is set.
    pub fn fill(&self, request: &MaskRequest, cancel: &Cancel) -> Result<Fillings, Error> {
        let model = &*self.loaded;
        let masked = MaskedModel::new(self, cancel)?;
        check_count("top_k", request.top_k, MAX_FILLINGS)?;
        let (tokens, masks) = masked.tokenize(&request.text)?;
        if !(1..=MAX_MASKS).contains(&masks.len()) {
            let mask = masked.mask;
            let found = masks.len();
            let message =
                format!("expected {mask} at least once and at most {MAX_MASKS} times, found {found}");
            return Err(Error::invalid("text", message));
        }
        let prompt_tokens = tokens.len();
        let logits = masked.logits(&tokens, masks)?;
        let masks = masked
            .rows(&logits)
            .map(|row| top_tokens(row, request.top_k, |id| masked.tokenizer.decode(&[id])))
            .collect();
        Ok(Fillings { masks, prompt_tokens, ran_on: model.ran_on() })
    }
}

impl<'a> MaskedModel<'a> {
    /// Enters the model's queue.
    ///
    /// # Errors
    /// [`Error::WrongKind`] for a model of another kind.
    pub(super) fn new(ready: &'a ReadyModel, cancel: &'a Cancel) -> Result<Self, Error> {
        let model = &*ready.loaded;
        let encoder = model.encoder(ModelKind::Masked)?;
        let tokenizer = model.tokenizer()?;
        let stated = model.package.manifest.tokenizer.as_ref();
        let mask = stated.and_then(|stated| stated.mask.as_deref()).unwrap_or_default();
        let Some(mask_id) = tokenizer.token_id(mask) else {
            let reason = format!("its tokenizer has no token for its mask {mask:?}");
            return Err(bad_package(&model.package.key, reason));
        };
        Ok(Self {
            tokenizer,
            mask,
            mask_id,
            limits: encoder.limits(),
            queued: encoder.enter(cancel, &ready.computed)?,
            cancel,
        })
    }

    /// Returns the tokens of a text, and the indices of the masks.
    pub(super) fn tokenize(&self, text: &str) -> Result<(Vec<TokenId>, Vec<usize>), Error> {
        let limit = self.limits.max_length;
        let bounds = Bounds { limit, is_cancelled: &|| self.cancel.is_cancelled() };
        let BoundedTokens::Whole(tokens) =
            self.tokenizer.encode_document_with_within(text, self.mask, bounds)?
        else {
            let message = format!("it has more than {limit} tokens, which is this model's limit; shorten it");
            return Err(Error::invalid("text", message));
        };
        let masks = (0..tokens.len()).filter(|&index| tokens[index] == self.mask_id).collect();
        Ok((tokens, masks))
    }

    /// Returns the logits over the vocabulary for the tokens at `indices`; see [`Self::rows`].
    pub(super) fn logits(&self, tokens: &[TokenId], indices: Vec<usize>) -> Result<Vec<f32>, Error> {
        let limit = self.limits.max_length;
        let found = tokens.len();
        if found > limit {
            let message = format!("it has {found} tokens, but this model allows at most {limit}; shorten it");
            return Err(Error::invalid("text", message));
        }
        let input = EncoderInput { second: found, tokens: tokens.to_vec(), requested: indices };
        Ok(self.queued.run(vec![input])?.into_iter().flatten().collect())
    }

    /// Divides logits into rows.
    pub(super) fn rows<'r>(&self, logits: &'r [f32]) -> ChunksExact<'r, f32> {
        logits.chunks_exact(self.limits.width)
    }
}

/// Returns the likeliest tokens of a row of logits.
fn top_tokens(row: &[f32], top_k: usize, text: impl Fn(TokenId) -> String) -> Vec<Filling> {
    let probability = softmax(row);
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    order
        .iter()
        .take(top_k)
        .map(|&id| Filling { token: id as TokenId, text: text(id as TokenId), score: probability(row[id]) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_tokens_come_first() {
        let found = top_tokens(&[0.0, 2f32.ln(), f32::NEG_INFINITY, 1f32.ln()], 3, |id| format!("t{id}"));
        let found: Vec<_> = found.iter().map(|one| (one.token, one.text.as_str())).collect();
        assert_eq!(found, [(1, "t1"), (0, "t0"), (3, "t3")]);
        let score = top_tokens(&[0.0, 2f32.ln()], 1, |_| String::new())[0].score;
        assert!((score - 2.0 / 3.0).abs() < 1e-6);
    }
}
