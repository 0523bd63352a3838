//! Classification of texts and tokens, in any form.

use std::sync::Arc;

use narthex_gateway::{
    ReadyModel,
    request::{Aggregation, Classifications, ClassifyRequest},
};
use schemars::JsonSchema;
use serde::Deserialize;

use super::blocking::run_encoder;
use crate::{app::App, error::ApiError, http::budget::Reservation};

/// `aggregation_strategy` of transformers, as far as it is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AggregationStrategy {
    None,
    #[default]
    Simple,
}

impl From<AggregationStrategy> for Aggregation {
    fn from(strategy: AggregationStrategy) -> Self {
        match strategy {
            AggregationStrategy::None => Self::None,
            AggregationStrategy::Simple => Self::Simple,
        }
    }
}

/// Classifies the inputs of a request.
pub(crate) async fn classify(
    app: &App,
    model: &str,
    request: ClassifyRequest,
    reservation: Reservation,
) -> Result<Classifications, ApiError> {
    let request = Arc::new(request);
    let measured = request.clone();
    let answer_bytes = move |model: &ReadyModel| answer_memory(model, &measured);
    let meter = app.meter.clone();
    let found = run_encoder(app, model, reservation.into(), answer_bytes, move |model, cancel| {
        model.classify(&request, cancel).inspect(|found| meter.tokens(found.prompt_tokens))
    });
    found.await
}

/// Maximum memory of a score or an entity without its label: the numbers, and a buffer with their JSON that doubles when it
/// is full.
const ITEM_BYTES: usize = 256;

/// Number of times that a label is held in an answer: as text, and as JSON, which may escape its characters.
const LABEL_COPIES: usize = 16;

fn answer_memory(model: &ReadyModel, request: &ClassifyRequest) -> usize {
    let (items, longest_label) = model.classification_size(request);
    items.saturating_mul(longest_label.saturating_mul(LABEL_COPIES).saturating_add(ITEM_BYTES))
}
