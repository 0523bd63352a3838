//! Masked tokens: what a masked language model would put in their place.

use std::slice::ChunksExact;

use narthex_engine::encoder::EncoderLimits;
use narthex_spec::TokenId;

use crate::{
    cancel::Cancel,
    encoder_queue::{Item, Place},
    error::Error,
    load::loaded_model::Loaded,
    report::models::ModelKind,
    serve::request::{Filling, Fillings, MaskRequest},
};

/// The most masks of a text: each has a row of logits over the vocabulary.
pub(crate) const MAX_MASKS: usize = 64;

/// The most tokens for one mask.
const MAX_FILLINGS: usize = 100;

/// A masked language model, and a request's place at it.
pub(crate) struct Masked<'a> {
    pub(crate) loaded: &'a Loaded,
    /// The mask's text.
    pub(crate) mask: &'a str,
    /// The mask's token.
    pub(crate) id: TokenId,
    limits: &'a EncoderLimits,
    place: Place<'a>,
}

/// Fills every mask of the text; each is seen with all others masked.
pub(crate) fn fill(loaded: &Loaded, request: &MaskRequest, cancel: &Cancel) -> Result<Fillings, Error> {
    let model = Masked::new(loaded, cancel)?;
    within("top_k", request.top_k, MAX_FILLINGS)?;
    let (tokens, asked) = model.tokens(&request.text)?;
    if !(1..=MAX_MASKS).contains(&asked.len()) {
        let (mask, found) = (model.mask, asked.len());
        let message = format!("expected {mask} at least once and at most {MAX_MASKS} times, found {found}");
        return Err(Error::invalid("text", message));
    }
    let prompt_tokens = tokens.len();
    let text = |id| loaded.tokenizer.decode(&[id]);
    let rows = model.logits(&tokens, asked)?;
    let masks = model.rows(&rows).map(|row| best(row, request.top_k, text)).collect();
    Ok(Fillings { masks, prompt_tokens, ran_on: loaded.ran_on() })
}

/// Fails unless a number of the request lies from 1 to `most`.
pub(crate) fn within(param: &'static str, found: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&found) {
        return Ok(());
    }
    Err(Error::invalid(param, format!("expected 1 to {most}, found {found}")))
}

impl<'a> Masked<'a> {
    /// The model as a masked language model, or an error that says what it is instead.
    pub(crate) fn new(loaded: &'a Loaded, cancel: &'a Cancel) -> Result<Self, Error> {
        let encoder = loaded.encoder(ModelKind::Masked)?;
        let mask = loaded.manifest.tokenizer.mask.as_deref().unwrap_or_default();
        let Some(id) = loaded.tokenizer.token_id(mask) else {
            return Err(Error::BadPackage {
                name: loaded.key.name.clone(),
                scheme: loaded.key.scheme,
                reason: format!("its mask {mask:?} is no token of its tokenizer"),
            });
        };
        Ok(Self { loaded, mask, id, limits: encoder.limits(), place: encoder.enter(cancel)? })
    }

    /// A text's tokens, and at which places the masks are.
    pub(crate) fn tokens(&self, text: &str) -> Result<(Vec<TokenId>, Vec<usize>), Error> {
        let tokens = self.loaded.tokenizer.encode_document_with(text, self.mask)?;
        let masks = (0..tokens.len()).filter(|&place| tokens[place] == self.id).collect();
        Ok((tokens, masks))
    }

    /// Logits over the vocabulary for the tokens at `asked`, one row after the other; see [`Self::rows`].
    pub(crate) fn logits(&self, tokens: &[TokenId], asked: Vec<usize>) -> Result<Vec<f32>, Error> {
        let (found, limit) = (tokens.len(), self.limits.max_length.min(self.loaded.manifest.max_length));
        if found > limit {
            let message = format!("it has {found} tokens, but this model takes at most {limit}; shorten it");
            return Err(Error::invalid("text", message));
        }
        let item = Item { second: found, tokens: tokens.to_vec(), asked };
        Ok(self.place.run(vec![item])?.into_iter().flatten().collect())
    }

    /// The rows of such logits.
    pub(crate) fn rows<'r>(&self, logits: &'r [f32]) -> ChunksExact<'r, f32> {
        logits.chunks_exact(self.limits.width)
    }
}

/// The likeliest tokens of a row of logits.
fn best(row: &[f32], top_k: usize, text: impl Fn(TokenId) -> String) -> Vec<Filling> {
    let probability = probability(row);
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let filling = |&id: &usize| Filling {
        token: id as TokenId,
        text: text(id as TokenId),
        score: probability(row[id]),
    };
    order.iter().take(top_k).map(filling).collect()
}

/// What a logit of a row is as a probability.
pub(crate) fn probability(row: &[f32]) -> impl Fn(f32) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
    move |logit| f64::from(logit - most).exp() / sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_tokens_come_first() {
        let found = best(&[0.0, 2f32.ln(), f32::NEG_INFINITY, 1f32.ln()], 3, |id| format!("t{id}"));
        let found: Vec<_> = found.iter().map(|one| (one.token, one.text.as_str())).collect();
        assert_eq!(found, [(1, "t1"), (0, "t0"), (3, "t3")]);
        let score = best(&[0.0, 2f32.ln()], 1, |_| String::new())[0].score;
        assert!((score - 2.0 / 3.0).abs() < 1e-6);
    }
}
