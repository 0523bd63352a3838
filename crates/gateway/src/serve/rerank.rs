//! Reranking: relevance of documents to a query.

use narthex_text::tokenizer::Bounds;

use crate::{
    cancel::Cancel,
    encoder_queue::EncoderInput,
    error::{Error, TokenCount},
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    report::models::ModelKind,
    serve::{
        pairs::{Misfit, check_first, encode, fit},
        probabilities::sigmoid,
        request::{DocumentScore, MAX_INPUTS, Ranking, RerankRequest},
    },
};

impl ReadyModel {
    /// Sorts documents by relevance to a query, best first; of equal ones, the earlier first. Ends with
    /// [`Error::Cancelled`] once `cancel` is set.
    pub fn rerank(&self, request: &RerankRequest, cancel: &Cancel) -> Result<Ranking, Error> {
        let model = &*self.loaded;
        let encoder = model.encoder(ModelKind::Rerank)?;
        let count = request.documents.len();
        if !(1..=MAX_INPUTS).contains(&count) {
            let message = format!("expected 1 to {MAX_INPUTS} documents, found {count}");
            return Err(Error::invalid("documents", message));
        }
        if request.top_n == Some(0) {
            return Err(Error::invalid("top_n", "expected a number above zero, found 0"));
        }

        let queued = encoder.enter(cancel, &self.computed)?;
        let limit = encoder.limits().max_length;
        let bounds = Bounds { limit, is_cancelled: &|| cancel.is_cancelled() };
        check_first(model.tokenizer()?, "query", &request.query, bounds)?;
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

/// Encodes the query with the document of an index, within a limit of tokens in total.
fn encode_pair(
    model: &LoadedModel,
    request: &RerankRequest,
    index: usize,
    bounds: Bounds<'_>,
) -> Result<EncoderInput, Error> {
    let limit = bounds.limit;
    let document = &request.documents[index];
    let encoded = encode(model, [&request.query, document], bounds)?;
    let pair = fit(encoded, limit, request.overlong).map_err(|misfit| match misfit {
        Misfit::TooLong(found) => too_long(index, found, limit),
        Misfit::Overhead(found) => {
            let message = format!(
                "the query alone has {found} tokens, but this model allows at most {limit} for query and document"
            );
            Error::invalid("query", message)
        }
    })?;
    Ok(EncoderInput::from(&pair))
}

fn too_long(document: usize, found: TokenCount, limit: usize) -> Error {
    let message = format!(
        "the query and document {document} have {found} tokens, but this model allows at most {limit}; shorten the \
         document or ask for truncation"
    );
    Error::invalid("documents", message)
}
