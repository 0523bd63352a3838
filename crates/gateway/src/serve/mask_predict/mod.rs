//! Text generation with a masked language model: masks are filled, and the least certain tokens filled again, in
//! rounds.
//!
//! This is mask-predict (Ghazvininejad et al. 2019, arXiv:1904.09324, §3.2) without its length predictor: the request
//! gives the number of tokens. All tokens begin as masks. A round replaces each mask by its likeliest token; after
//! round `t` of `T`, the `N (T - t) / T` of the `N` tokens with the lowest probabilities become masks again. The others
//! keep the probability of the round that chose them. Special tokens are never chosen. Equal requests have equal
//! answers.

use narthex_spec::TokenId;
use narthex_text::tokenizer::Tokenizer;

use crate::{
    cancel::Cancel,
    error::Error,
    load::residency::ReadyModel,
    serve::{
        fill::{MAX_MASKS, MaskedModel},
        options::check_count,
        probabilities::softmax,
        request::{Filling, MaskPredictOutput, RefineRequest},
    },
};

/// Maximum rounds. More rounds than tokens have no effect.
const MAX_ROUNDS: usize = MAX_MASKS;

impl ReadyModel {
    /// Generates tokens in the place of the text's mask, or at its end, by mask-predict (arXiv:1904.09324). Ends with
    /// [`Error::Cancelled`] once `cancel` is set.
    pub fn refine(&self, request: &RefineRequest, cancel: &Cancel) -> Result<MaskPredictOutput, Error> {
        let model = &*self.loaded;
        let masked = MaskedModel::new(self, cancel)?;
        check_count("generate", request.tokens, MAX_MASKS)?;
        check_count("rounds", request.rounds, MAX_ROUNDS)?;
        let text = match request.text.contains(masked.mask) {
            true => request.text.clone(),
            false => format!("{} {}", request.text.trim_end(), masked.mask),
        };
        let (mut tokens, masks) = masked.tokenize(&text)?;
        let &[first] = masks.as_slice() else {
            let mask = masked.mask;
            let found = masks.len();
            let message = format!(
                "expected {mask} at most once, found {found}; without it, tokens are added at the end"
            );
            return Err(Error::invalid("text", message));
        };

        tokens.splice(first..=first, std::iter::repeat_n(masked.mask_id, request.tokens));
        let scores = run_rounds(request, |open| {
            predict(&masked, &mut tokens, open.iter().map(|index| first + index).collect())
        })?;
        let last = first + request.tokens;
        let generated = decode_after(masked.tokenizer, &tokens[..last], first);
        let fillings = tokens[first..last].iter().zip(scores).map(|(&token, score)| Filling {
            token,
            text: masked.tokenizer.decode(&[token]),
            score,
        });

        Ok(MaskPredictOutput {
            text: insert(&text, masked.mask, &generated),
            tokens: fillings.collect(),
            generated: generated.trim().to_owned(),
            prompt_tokens: tokens.len(),
            ran_on: model.ran_on(),
        })
    }
}

/// Runs the rounds. `predict` fills the masks at these indices of the generated part and returns their probabilities.
/// Returns the probabilities of all tokens.
fn run_rounds(
    request: &RefineRequest,
    mut predict: impl FnMut(&[usize]) -> Result<Vec<f64>, Error>,
) -> Result<Vec<f64>, Error> {
    let count = request.tokens;
    let rounds = request.rounds;
    let mut scores = vec![0.0; count];
    let mut open: Vec<usize> = (0..count).collect();
    for round in 1..=rounds {
        for (&index, score) in open.iter().zip(predict(&open)?) {
            scores[index] = score;
        }
        // The sort is stable, so that of equal tokens the earlier one is masked first.
        open = (0..count).collect();
        open.sort_by(|&a, &b| f64::total_cmp(&scores[a], &scores[b]));
        open.truncate(count * (rounds - round) / rounds);
        open.sort_unstable();
        if open.is_empty() {
            break;
        }
    }
    Ok(scores)
}

/// Masks the tokens at `indices`, and replaces them by the likeliest ones. Returns their probabilities.
fn predict(masked: &MaskedModel<'_>, tokens: &mut [TokenId], indices: Vec<usize>) -> Result<Vec<f64>, Error> {
    indices.iter().for_each(|&index| tokens[index] = masked.mask_id);
    let logits = masked.logits(tokens, indices.clone())?;
    Ok(indices
        .iter()
        .zip(masked.rows(&logits))
        .map(|(&index, row)| {
            let (token, logit) = likeliest(row, |token| masked.tokenizer.is_special(token));
            tokens[index] = token;
            softmax(row)(logit)
        })
        .collect())
}

/// Returns the likeliest token that is not excluded, the first of equal ones, with its logit.
fn likeliest(row: &[f32], is_excluded: impl Fn(TokenId) -> bool) -> (TokenId, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(row) {
        if logit > best.1 && !is_excluded(token) {
            best = (token, logit);
        }
    }
    best
}

/// Returns the text of `tokens[first..]`, as it appears after the preceding text.
fn decode_after(tokenizer: &Tokenizer, tokens: &[TokenId], first: usize) -> String {
    let before = plain_text(tokenizer, &tokens[..first]);
    let all = plain_text(tokenizer, tokens);
    all.strip_prefix(&before).map_or_else(|| plain_text(tokenizer, &tokens[first..]), str::to_owned)
}

/// Returns the text of tokens without the special ones.
fn plain_text(tokenizer: &Tokenizer, tokens: &[TokenId]) -> String {
    let plain = tokens.iter().copied().filter(|&token| !tokenizer.is_special(token));
    tokenizer.decode(&plain.collect::<Vec<_>>())
}

/// Replaces the mask of `text` by `generated`, which brings its own leading space.
fn insert(text: &str, mask: &str, generated: &str) -> String {
    let (before, after) = text.split_once(mask).unwrap_or((text, ""));
    match before.trim_end() {
        "" => format!("{before}{}{after}", generated.trim_start()),
        before => format!("{before}{generated}{after}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_certain_are_masked_again() {
        let check = |tokens, rounds: usize, scores: &[&[f64]], expect: &[&[usize]], end: &[f64]| {
            let request = RefineRequest { text: String::new(), tokens, rounds };
            let (mut seen, mut scores) = (Vec::new(), scores.iter());
            let found = run_rounds(&request, |open| {
                seen.push(open.to_vec());
                Ok(scores.next().unwrap().to_vec())
            });
            assert_eq!(
                (seen, found.unwrap()),
                (expect.iter().map(|open| open.to_vec()).collect(), end.to_vec())
            );
        };
        check(2, 1, &[&[0.5, 0.4]], &[&[0, 1]], &[0.5, 0.4]);
        // Of four tokens two are masked after the first of two rounds; the earlier one of equals.
        check(4, 2, &[&[0.9, 0.1, 0.3, 0.3], &[0.7, 0.8]], &[&[0, 1, 2, 3], &[1, 2]], &[0.9, 0.7, 0.8, 0.3]);
        // An early token becomes a mask again when all other tokens have higher probabilities.
        check(3, 3, &[&[0.5, 0.1, 0.2], &[0.9, 0.8], &[0.6]], &[&[0, 1, 2], &[1, 2], &[0]], &[0.6, 0.9, 0.8]);
        // With more rounds than tokens, the last rounds would mask less than one token and are skipped.
        check(1, 4, &[&[0.5]], &[&[0]], &[0.5]);
    }

    #[test]
    fn special_tokens_are_never_generated() {
        assert_eq!(likeliest(&[3.0, 1.0, 2.0, 2.0], |token| token == 0), (2, 2.0));
    }

    #[test]
    fn the_generated_text_replaces_the_mask() {
        assert_eq!(insert("of [MASK] .", "[MASK]", " paris"), "of paris .");
        assert_eq!(insert("play[MASK].", "[MASK]", "ing"), "playing.");
        assert_eq!(insert("[MASK] is", "[MASK]", " it"), "it is");
    }
}
