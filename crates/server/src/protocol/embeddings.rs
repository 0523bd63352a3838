//! Embeddings, in any protocol.

use narthex_gateway::{
    ReadyModel,
    request::{EmbedRequest, Embeddings},
};

use super::blocking::run_encoder;
use crate::{app::App, error::ApiError, http::budget::Reservation};

/// Embeds the inputs of a request.
pub(crate) async fn embed(
    app: &App,
    model: &str,
    request: EmbedRequest,
    reservation: Reservation,
) -> Result<Embeddings, ApiError> {
    let answer_bytes = embeddings_memory(&request);
    let meter = app.meter.clone();
    let embeddings = run_encoder(app, model, reservation.into(), answer_bytes, move |model, cancel| {
        model.embed(&request, cancel).inspect(|found| meter.tokens(found.prompt_tokens))
    });
    embeddings.await
}

/// Maximum memory of an element of a vector in an answer: the number, and a buffer with its JSON that doubles when it is
/// full.
const ELEMENT_BYTES: usize = 32;

/// Returns a function for the maximum memory of the answer to a request.
fn embeddings_memory(request: &EmbedRequest) -> impl FnOnce(&ReadyModel) -> usize + use<> {
    let inputs = request.inputs.len();
    let dimensions = request.dimensions;
    move |model| {
        let width = model.embedding_width().unwrap_or(0);
        let width = dimensions.map_or(width, |dimensions| dimensions.min(width));
        inputs.saturating_mul(width).saturating_mul(ELEMENT_BYTES)
    }
}
