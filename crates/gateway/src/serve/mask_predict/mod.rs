//! Generation by a masked language model: masks are filled, and the least certain of them filled again, in rounds.
//!
//! This is mask-predict (Ghazvininejad et al. 2019, arXiv:1904.09324, §3.2) without its length predictor: the request says
//! how many tokens. All of them begin as masks. A round puts the likeliest token in the place of each mask, with its
//! probability; after round `t` of `T`, those `N (T - t) / T` of the `N` tokens that have the least become masks again. The
//! others keep the probability of the round that put them there. Special tokens are never put. The same request has the
//! same answer.

use narthex_spec::TokenId;

use crate::{
    cancel::Cancel,
    error::Error,
    load::loaded_model::Loaded,
    serve::{
        fill::{MAX_MASKS, Masked, probability, within},
        request::{Filling, RefineRequest, Refined},
    },
};

/// The most rounds: more than tokens would add none.
const MAX_ROUNDS: usize = MAX_MASKS;

/// Puts tokens in the place of the text's mask, or at its end.
pub(crate) fn refine(loaded: &Loaded, request: &RefineRequest, cancel: &Cancel) -> Result<Refined, Error> {
    let model = Masked::new(loaded, cancel)?;
    within("generate", request.tokens, MAX_MASKS)?;
    within("rounds", request.rounds, MAX_ROUNDS)?;
    let text = match request.text.contains(model.mask) {
        true => request.text.clone(),
        false => format!("{} {}", request.text.trim_end(), model.mask),
    };
    let (mut tokens, masks) = model.tokens(&text)?;
    let &[first] = masks.as_slice() else {
        let (mask, found) = (model.mask, masks.len());
        let message =
            format!("expected {mask} once, or not at all for tokens at the end, found {found} of them");
        return Err(Error::invalid("text", message));
    };
    tokens.splice(first..=first, std::iter::repeat_n(model.id, request.tokens));
    let scores = rounds(request, |open| predict(&model, (&mut tokens[..], first), open))?;
    let last = first + request.tokens;
    let generated = generated(loaded, &tokens[..last], first);
    let found = tokens[first..last].iter().zip(scores);
    let found =
        found.map(|(&token, score)| Filling { token, text: loaded.tokenizer.decode(&[token]), score });
    Ok(Refined {
        text: placed(&text, model.mask, &generated),
        tokens: found.collect(),
        generated: generated.trim().to_owned(),
        prompt_tokens: tokens.len(),
        ran_on: loaded.ran_on(),
    })
}

/// Runs the rounds: `predict` fills the masks at some places of the generated part and gives their probabilities. Gives
/// those of all places.
fn rounds(
    request: &RefineRequest,
    mut predict: impl FnMut(&[usize]) -> Result<Vec<f64>, Error>,
) -> Result<Vec<f64>, Error> {
    let (count, rounds) = (request.tokens, request.rounds);
    let mut scores = vec![0.0; count];
    let mut open: Vec<usize> = (0..count).collect();
    for round in 1..=rounds {
        for (&place, score) in open.iter().zip(predict(&open)?) {
            scores[place] = score;
        }
        // The sort keeps the order of equals, so that the earlier one is masked first.
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

/// Masks the tokens at `open`, counted from `first`, and puts the likeliest ones there; gives their probabilities.
fn predict(
    model: &Masked<'_>,
    (tokens, first): (&mut [TokenId], usize),
    open: &[usize],
) -> Result<Vec<f64>, Error> {
    let places: Vec<usize> = open.iter().map(|place| first + place).collect();
    places.iter().for_each(|&place| tokens[place] = model.id);
    let logits = model.logits(tokens, places.clone())?;
    let put = |(&place, row): (&usize, &[f32])| {
        let (token, logit) = likeliest(row, |token| model.loaded.tokenizer.is_special(token));
        tokens[place] = token;
        probability(row)(logit)
    };
    Ok(places.iter().zip(model.rows(&logits)).map(put).collect())
}

/// The likeliest token that is not left out, the first of equals, with its logit.
fn likeliest(row: &[f32], is_left_out: impl Fn(TokenId) -> bool) -> (TokenId, f32) {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(row) {
        if logit > best.1 && !is_left_out(token) {
            best = (token, logit);
        }
    }
    best
}

/// The text of the tokens from `first` on, as it follows those before.
fn generated(loaded: &Loaded, tokens: &[TokenId], first: usize) -> String {
    let text = |tokens: &[TokenId]| {
        let plain = tokens.iter().copied().filter(|&token| !loaded.tokenizer.is_special(token));
        loaded.tokenizer.decode(&plain.collect::<Vec<_>>())
    };
    let (before, all) = (text(&tokens[..first]), text(tokens));
    all.strip_prefix(&before).map_or_else(|| text(&tokens[first..]), str::to_owned)
}

/// `text` with `generated` in the place of its mask; a blank between them is `generated`'s own.
fn placed(text: &str, mask: &str, generated: &str) -> String {
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
            let found = super::rounds(&request, |open| {
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
        // One that was put early is masked as soon as all others are more certain.
        check(3, 3, &[&[0.5, 0.1, 0.2], &[0.9, 0.8], &[0.6]], &[&[0, 1, 2], &[1, 2], &[0]], &[0.6, 0.9, 0.8]);
        // Of more rounds than tokens, those have nothing to do in which less than one would be masked.
        check(1, 4, &[&[0.5]], &[&[0]], &[0.5]);
    }

    #[test]
    fn special_tokens_are_never_put() {
        assert_eq!(likeliest(&[3.0, 1.0, 2.0, 2.0], |token| token == 0), (2, 2.0));
    }

    #[test]
    fn what_is_generated_stands_in_the_masks_place() {
        assert_eq!(placed("of [MASK] .", "[MASK]", " paris"), "of paris .");
        assert_eq!(placed("play[MASK].", "[MASK]", "ing"), "playing.");
        assert_eq!(placed("[MASK] is", "[MASK]", " it"), "it is");
    }
}
