//! Masked tokens: what a masked language model would put in their place.

use crate::{
    cancel::Cancel,
    encoding::Item,
    error::Error,
    listing::ModelKind,
    loaded::Loaded,
    request::{Filling, Fillings, MaskRequest},
};

/// Fills every mask of the text; each is seen with all others masked.
pub(crate) fn fill(loaded: &Loaded, request: &MaskRequest, cancel: &Cancel) -> Result<Fillings, Error> {
    let encoder = loaded.encoder(ModelKind::Masked)?;
    let invalid = |message: String| Error::Invalid { param: "text", message: format!("text: {message}") };
    let mask = loaded.manifest.tokenizer.mask.as_deref().unwrap_or_default();
    let Some(id) = loaded.tokenizer.token_id(mask) else {
        return Err(Error::BadPackage {
            name: loaded.key.name.clone(),
            scheme: loaded.key.scheme,
            reason: format!("its mask {mask:?} is no token of its tokenizer"),
        });
    };
    let place = encoder.enter(cancel)?;
    let tokens = loaded.tokenizer.encode_document_with(&request.text, mask)?;
    let asked: Vec<usize> = (0..tokens.len()).filter(|&place| tokens[place] == id).collect();
    if asked.is_empty() {
        return Err(invalid(format!("expected {mask} at least once, found none")));
    }
    let limit = encoder.limits().max_length.min(loaded.manifest.max_length);
    if tokens.len() > limit {
        let found = tokens.len();
        return Err(invalid(format!(
            "it has {found} tokens, but this model takes at most {limit}; shorten it"
        )));
    }
    let prompt_tokens = tokens.len();
    let rows = place.run(vec![Item { second: prompt_tokens, tokens, asked }])?;
    let width = encoder.limits().width;
    let masks = rows.iter().flat_map(|rows| rows.chunks_exact(width));
    let masks = masks.map(|row| best(row, request.top_k, |id| loaded.tokenizer.decode(&[id])));
    Ok(Fillings { masks: masks.collect(), prompt_tokens, ran_on: loaded.ran_on() })
}

/// The likeliest tokens of a row of logits.
fn best(row: &[f32], top_k: usize, text: impl Fn(u32) -> String) -> Vec<Filling> {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let filling = |&id: &usize| Filling {
        token: id as u32,
        text: text(id as u32),
        score: f64::from(row[id] - most).exp() / sum,
    };
    order.iter().take(top_k).map(filling).collect()
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
