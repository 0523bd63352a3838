//! Pairs of texts within the maximum length of an encoder.

use narthex_text::tokenizer::{BoundedTokens, Bounds, Pair, Tokenizer};

use crate::{
    error::{Error, TokenCount},
    load::loaded_model::LoadedModel,
    serve::request::InputOverflow,
};

/// Maximum bytes of a first text for each token of the model's limit. It is tokenized again with each second text, and white
/// space has no tokens.
const MAX_FIRST_BYTES: usize = 16;

/// Fails if the first text of a pair alone is longer than the limit.
pub(super) fn check_first(
    tokenizer: &Tokenizer,
    param: &'static str,
    text: &str,
    bounds: Bounds<'_>,
) -> Result<(), Error> {
    let limit = bounds.limit;
    let bytes = text.len();
    let most = limit.saturating_mul(MAX_FIRST_BYTES);
    if bytes > most {
        let message = format!("found {bytes} bytes, but this model allows at most {most}; shorten it");
        return Err(Error::invalid(param, message));
    }
    if matches!(tokenizer.encode_document_within(text, bounds)?, BoundedTokens::Whole(_)) {
        return Ok(());
    }
    let message = format!("this model allows at most {limit} tokens for both texts of a pair; shorten it");
    Err(Error::invalid(param, message))
}

/// Returns the tokens of a pair in the form that the model reads, within bounds.
pub(super) fn encode(
    model: &LoadedModel,
    [first, second]: [&str; 2],
    bounds: Bounds<'_>,
) -> Result<BoundedTokens<Pair>, Error> {
    let tokenizer = model.tokenizer()?;
    Ok(match &model.package.manifest.pairs {
        Some(template) => tokenizer.encode_templated_pair_within(template, first, second, bounds)?,
        None => tokenizer.encode_pair_within(first, second, bounds)?,
    })
}

/// Reason for which a pair does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The tokens around the second text leave no room for it; their number.
    Overhead(usize),
    /// The pair is too long, and is not to be truncated.
    TooLong(TokenCount),
}

/// Returns a pair of at most `limit` tokens. Truncation removes the end of the second text.
pub(super) fn fit(
    encoded: BoundedTokens<Pair>,
    limit: usize,
    overlong: InputOverflow,
) -> Result<Pair, Misfit> {
    let more = TokenCount::AtLeast(limit + 1);
    let (pair, found) = match encoded {
        BoundedTokens::Whole(pair) => {
            let found = TokenCount::Exact(pair.tokens.len());
            (pair, found)
        }
        BoundedTokens::Beginning(pair) => (pair, more),
        BoundedTokens::TooManyBytes => return Err(Misfit::TooLong(more)),
    };
    if pair.tokens.len() <= limit {
        return Ok(pair);
    }

    let room = limit.saturating_sub(pair.overhead());
    if room == 0 {
        return Err(Misfit::Overhead(pair.overhead()));
    }
    match overlong {
        InputOverflow::Refuse => Err(Misfit::TooLong(found)),
        InputOverflow::Truncate => Ok(pair.part(0..room)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_cut_at_the_end_of_its_second_text() {
        let pair = Pair { tokens: vec![2, 7, 3, 8, 9, 3], segment: 3, second: 3..5, bytes: vec![0..1, 1..2] };
        let fit = |limit, overlong| fit(BoundedTokens::Whole(pair.clone()), limit, overlong);
        assert_eq!(fit(6, InputOverflow::Refuse), Ok(pair.clone()));
        assert_eq!(fit(5, InputOverflow::Truncate).unwrap().tokens, [2, 7, 3, 8, 3]);
        assert_eq!(fit(5, InputOverflow::Refuse), Err(Misfit::TooLong(TokenCount::Exact(6))));
        assert_eq!(fit(4, InputOverflow::Truncate), Err(Misfit::Overhead(4)));
    }
}
