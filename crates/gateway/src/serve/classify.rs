//! Classification of texts and of pairs of texts: a score for each label.

use narthex_spec::manifest::{ClassifierEntry, ClassifierProblem, Manifest};
use narthex_text::tokenizer::{Bounds, Pair};

use crate::{
    cancel::Cancel,
    encoder_queue::EncoderInput,
    error::Error,
    load::{loaded_model::LoadedModel, residency::ReadyModel},
    report::models::ModelKind,
    serve::{
        entities::entities,
        pairs::{self, Misfit, check_first, fit},
        probabilities::{sigmoid, softmax},
        request::{
            Classification, Classifications, ClassifierInput, ClassifyRequest, LabelScores, MAX_INPUTS,
        },
    },
};

/// Maximum number of texts whose rows are in memory at once. A classifier of tokens returns a row for each token.
const BATCH: usize = 64;

impl ReadyModel {
    /// Classifies texts, or their tokens if the model classifies tokens. A reranker is a classifier with one label. Ends with
    /// [`Error::Cancelled`] once `cancel` is set.
    pub fn classify(&self, request: &ClassifyRequest, cancel: &Cancel) -> Result<Classifications, Error> {
        let model = &*self.loaded;
        let kind = match model.kind() {
            kind @ (ModelKind::TokenClassification | ModelKind::Rerank) => kind,
            _ => ModelKind::Classification,
        };
        let encoder = model.encoder(kind)?;
        let count = request.inputs.len();
        if !(1..=MAX_INPUTS).contains(&count) {
            return Err(Error::invalid("input", format!("expected 1 to {MAX_INPUTS} inputs, found {count}")));
        }

        let labels = labels(&model.package.manifest);
        let problem = model.package.manifest.classifier.as_ref().and_then(|classifier| classifier.problem);
        let queued = encoder.enter(cancel, &self.computed)?;
        let bounds = Bounds { limit: encoder.limits().max_length, is_cancelled: &|| cancel.is_cancelled() };
        let mut results = Vec::with_capacity(count);
        let mut prompt_tokens = 0;
        for (batch, inputs) in request.inputs.chunks(BATCH).enumerate() {
            let first = batch * BATCH;
            let encoded = (first..first + inputs.len()).map(|index| encode(model, request, index, bounds));
            let encoded = encoded.collect::<Result<Vec<Pair>, Error>>()?;
            prompt_tokens += encoded.iter().map(|pair| pair.tokens.len()).sum::<usize>();
            let rows = queued.run(encoded.iter().map(EncoderInput::from).collect())?;
            results.extend(inputs.iter().zip(&encoded).zip(rows).map(|((input, pair), rows)| match input {
                ClassifierInput::Text(text) if kind == ModelKind::TokenClassification => {
                    Classification::Entities(entities(text, pair, &rows, &labels, request.aggregation))
                }
                _ => Classification::Text(LabelScores { scores: scores(&rows, problem), logits: rows }),
            }));
        }
        Ok(Classifications { labels, results, prompt_tokens, ran_on: model.ran_on() })
    }

    /// Returns the maximum number of labelled scores and entities in the answer to a request, and the length of the longest
    /// label; zeros for a model that is no classifier.
    pub fn classification_size(&self, request: &ClassifyRequest) -> (usize, usize) {
        let labels = labels(&self.loaded.package.manifest);
        let items = |input: &ClassifierInput| match (self.loaded.kind(), input) {
            (ModelKind::TokenClassification, ClassifierInput::Text(text)) => {
                text.len().min(self.loaded.package.manifest.max_length)
            }
            _ => labels.len(),
        };
        let items = request.inputs.iter().map(items).fold(0, usize::saturating_add);
        (items, labels.iter().map(String::len).max().unwrap_or(0))
    }
}

/// Returns the names of a classifier's labels.
fn labels(manifest: &Manifest) -> Vec<String> {
    if let Some(classifier) = &manifest.classifier {
        return classifier.labels.clone();
    }
    let count = manifest.architecture.head().and_then(|head| head.labels()).unwrap_or(0);
    (0..count).map(ClassifierEntry::default_label).collect()
}

/// Encodes the input of an index within the bounds of the model.
fn encode(
    model: &LoadedModel,
    request: &ClassifyRequest,
    index: usize,
    bounds: Bounds<'_>,
) -> Result<Pair, Error> {
    let tokenizer = model.tokenizer()?;
    let limit = bounds.limit;
    let encoded = match &request.inputs[index] {
        ClassifierInput::Text(text) => tokenizer.encode_located_within(text, bounds)?,
        ClassifierInput::Pair(..) if model.kind() == ModelKind::TokenClassification => {
            let message =
                format!("expected a text, since this model classifies tokens; input {index} is a pair");
            return Err(Error::invalid("input", message));
        }
        ClassifierInput::Pair(first, second) => {
            check_first(tokenizer, "input", first, bounds)?;
            pairs::encode(model, [first, second], bounds)?
        }
    };

    let pair = fit(encoded, limit, request.overlong).map_err(|misfit| match misfit {
        Misfit::TooLong(found) => Error::InputTooLong { index, found, limit },
        Misfit::Overhead(found) => {
            let message = format!(
                "the first text of input {index} has {found} tokens, but this model allows at most {limit} for both"
            );
            Error::invalid("input", message)
        }
    })?;
    if pair.tokens.is_empty() {
        let message = format!("input {index} is empty; expected at least one token");
        return Err(Error::invalid("input", message));
    }
    Ok(pair)
}

/// Returns the scores of a text's logits, as transformers' pipeline does.
fn scores(logits: &[f32], problem: Option<ClassifierProblem>) -> Vec<f32> {
    match (problem, logits.len()) {
        (Some(ClassifierProblem::Regression), _) => logits.to_vec(),
        (Some(ClassifierProblem::MultiLabelClassification), _) | (_, 1) => {
            logits.iter().map(|&logit| sigmoid(logit)).collect()
        }
        (Some(ClassifierProblem::SingleLabelClassification) | None, _) => {
            let probability = softmax(logits);
            logits.iter().map(|&logit| probability(logit) as f32).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_determines_the_scores() {
        use ClassifierProblem::{MultiLabelClassification, Regression, SingleLabelClassification};
        let check = |logits: &[f32], problem, expect: &[f32]| {
            let found = scores(logits, problem);
            assert!(found.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?}, not {expect:?}");
        };
        let odds = [0.0, 3f32.ln()];
        for problem in [None, Some(SingleLabelClassification)] {
            check(&odds, problem, &[0.25, 0.75]);
            check(&[3f32.ln()], problem, &[0.75]);
        }
        check(&odds, Some(MultiLabelClassification), &[0.5, 0.75]);
        check(&odds, Some(Regression), &odds);
        check(&[4.5], Some(Regression), &[4.5]);
    }

    #[test]
    fn of_equal_scores_the_first_is_best() {
        let best = |scores: &[f32]| LabelScores { logits: Vec::new(), scores: scores.to_vec() }.best();
        assert_eq!([best(&[0.2, 0.4, 0.4]), best(&[0.5]), best(&[0.6, 0.4])], [1, 0, 0]);
    }
}
