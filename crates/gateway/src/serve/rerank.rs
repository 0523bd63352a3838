//! Reranking: relevance of documents to a query.

use narthex_text::tokenizer::{BoundedTokens, Bounds};

use crate::{
    cancel::Cancel,
    encoder_queue::EncoderInput,
    error::{Error, TokenCount},
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    report::models::ModelKind,
    serve::request::{DocumentScore, InputOverflow, Ranking, RerankRequest},
};

/// Maximum documents of one request.
const MAX_DOCUMENTS: usize = 2048;

/// Maximum bytes of a query for each token of the model's limit. The query is tokenized again with each document, and white
/// space has no tokens.
const MAX_QUERY_BYTES: usize = 16;

impl ReadyModel {
    /// Sorts documents by relevance to a query, best first; of equal ones, the earlier first. Ends with
    /// [`Error::Cancelled`] once `cancel` is set.
    pub fn rerank(&self, request: &RerankRequest, cancel: &Cancel) -> Result<Ranking, Error> {
        let model = &*self.loaded;
        let encoder = model.encoder(ModelKind::Rerank)?;
        let count = request.documents.len();
        if !(1..=MAX_DOCUMENTS).contains(&count) {
            let message = format!("expected 1 to {MAX_DOCUMENTS} documents, found {count}");
            return Err(Error::invalid("documents", message));
        }
        if request.top_n == Some(0) {
            return Err(Error::invalid("top_n", "expected a number above zero, found 0"));
        }

        let queued = encoder.enter(cancel, &self.computed)?;
        let limit = encoder.limits().max_length;
        let bytes = request.query.len();
        let most = limit.saturating_mul(MAX_QUERY_BYTES);
        if bytes > most {
            let message =
                format!("query: found {bytes} bytes, but this model allows at most {most}; shorten it");
            return Err(Error::invalid("query", message));
        }

        let bounds = Bounds { limit, is_cancelled: &|| cancel.is_cancelled() };
        let query = model.tokenizer()?.encode_document_within(&request.query, bounds)?;
        if !matches!(query, BoundedTokens::Whole(_)) {
            let message =
                format!("this model allows at most {limit} tokens for query and document; shorten it");
            return Err(Error::invalid("query", message));
        }

        let pairs = 0..request.documents.len();
        let pairs: Vec<EncoderInput> =
            pairs.map(|index| encode_pair(model, request, index, bounds)).collect::<Result<_, _>>()?;
        let prompt_tokens = pairs.iter().map(|pair| pair.tokens.len()).sum();
        let rows = queued.run(pairs)?;
        let mut results: Vec<DocumentScore> = rows
            .iter()
            .enumerate()
            .map(|(index, row)| DocumentScore {
                index,
                score: sigmoid(row.first().copied().unwrap_or(f32::NEG_INFINITY)),
            })
            .collect();

        results.sort_by(|a, b| b.score.total_cmp(&a.score));
        results.truncate(request.top_n.unwrap_or(count));
        Ok(Ranking { results, prompt_tokens, ran_on: model.ran_on() })
    }
}

/// Returns the probability of a logit.
fn sigmoid(logit: f32) -> f32 {
    1.0 / (1.0 + (-logit).exp())
}

/// Encodes the query with the document of an index, within a limit of tokens in total.
fn encode_pair(
    model: &LoadedModel,
    request: &RerankRequest,
    index: usize,
    bounds: Bounds<'_>,
) -> Result<EncoderInput, Error> {
    let limit = bounds.limit;
    let document = &request.documents[index];
    let encoded = model.tokenizer()?.encode_pair_within(&request.query, document, bounds)?;
    let more = TokenCount::AtLeast(limit + 1);
    let (mut pair, found) = match encoded {
        BoundedTokens::Whole(pair) => {
            let found = TokenCount::Exact(pair.tokens.len());
            (pair, found)
        }
        BoundedTokens::Beginning(pair) => (pair, more),
        BoundedTokens::TooManyBytes => return Err(too_long(index, more, limit)),
    };

    let room = limit.saturating_sub(pair.overhead());
    if pair.tokens.len() > limit {
        if room == 0 {
            let message = format!(
                "the query alone has {} tokens, but this model allows at most {limit} for query and document",
                pair.overhead()
            );
            return Err(Error::invalid("query", message));
        }
        if request.overlong == InputOverflow::Refuse {
            return Err(too_long(index, found, limit));
        }
        pair = pair.part(0..room);
    }
    Ok(EncoderInput { tokens: pair.tokens, second: pair.segment, requested: Vec::new() })
}

fn too_long(document: usize, found: TokenCount, limit: usize) -> Error {
    let message = format!(
        "the query and document {document} have {found} tokens, but this model allows at most {limit}; shorten the \
         document or ask for truncation"
    );
    Error::invalid("documents", message)
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
