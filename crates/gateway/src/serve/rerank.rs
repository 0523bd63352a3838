//! Reranking: how well each of some documents answers a query.

use crate::{
    cancel::Cancel,
    encoder_queue::Item,
    error::Error,
    load::loaded_model::Loaded,
    report::models::ModelKind,
    serve::request::{Overlong, Ranked, Ranking, RerankRequest},
};

/// The most documents of one request.
const MAX_DOCUMENTS: usize = 2048;

/// Scores every document and sorts them, the best first; of equals the earlier one.
pub(crate) fn rerank(loaded: &Loaded, request: &RerankRequest, cancel: &Cancel) -> Result<Ranking, Error> {
    let encoder = loaded.encoder(ModelKind::Rerank)?;
    let found = request.documents.len();
    if !(1..=MAX_DOCUMENTS).contains(&found) {
        let message = format!("documents: expected 1 to {MAX_DOCUMENTS} documents, found {found}");
        return Err(Error::Invalid { param: "documents", message });
    }
    if request.top_n == Some(0) {
        let message = "top_n: expected a number above zero, found 0".to_owned();
        return Err(Error::Invalid { param: "top_n", message });
    }
    let place = encoder.enter(cancel)?;
    let limit = encoder.limits().max_length.min(loaded.manifest.max_length);
    let pairs = request.documents.iter().enumerate();
    let pairs: Vec<Item> = pairs
        .map(|(index, document)| pair(loaded, request, (index, document), limit))
        .collect::<Result<_, _>>()?;
    let prompt_tokens = pairs.iter().map(|pair| pair.tokens.len()).sum();
    let rows = place.run(pairs)?;
    let mut results: Vec<Ranked> = rows
        .iter()
        .enumerate()
        .map(|(index, row)| Ranked {
            index,
            score: sigmoid(row.first().copied().unwrap_or(f32::NEG_INFINITY)),
        })
        .collect();
    results.sort_by(|a, b| b.score.total_cmp(&a.score));
    results.truncate(request.top_n.unwrap_or(found));
    Ok(Ranking { results, prompt_tokens, ran_on: loaded.ran_on() })
}

/// The probability that a logit stands for.
fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

fn pair(
    loaded: &Loaded,
    request: &RerankRequest,
    (index, document): (usize, &str),
    limit: usize,
) -> Result<Item, Error> {
    let mut pair = loaded.tokenizer.encode_pair(&request.query, document)?;
    let (found, room) = (pair.tokens.len(), limit.saturating_sub(pair.overhead()));
    if found > limit {
        if room == 0 {
            let message = format!(
                "query: the query alone has {} tokens, but this model takes {limit} of query and document together",
                pair.overhead()
            );
            return Err(Error::Invalid { param: "query", message });
        }
        if request.overlong == Overlong::Refuse {
            let message = format!(
                "documents: the query and document {index} have {found} tokens, but this model takes at most {limit}; \
                 shorten it or ask for truncation"
            );
            return Err(Error::Invalid { param: "documents", message });
        }
        pair = pair.part(0..room);
    }
    Ok(Item { tokens: pair.tokens, second: pair.segment, asked: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_become_probabilities() {
        assert_eq!(sigmoid(0.0), 0.5);
        assert!((sigmoid(2.0) - 0.880_797).abs() < 1e-6 && sigmoid(f32::NEG_INFINITY) == 0.0);
        assert!(sigmoid(1000.0) == 1.0 && sigmoid(-1000.0) == 0.0);
    }
}
