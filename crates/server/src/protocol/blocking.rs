//! Calls of the synchronous library from async handlers.

use axum::{
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
};
use narthex_gateway::{Cancel, Error, ReadyModel};
use serde::Serialize;

use super::loading;
use crate::{app::App, error::ApiError, http::budget::Reservation};

/// Memory that is reserved for each byte of a text that is tokenized. The most that was measured is 430 bytes, for digits
/// between spaces with a byte-level BPE.
const TOKENIZING_BYTES: usize = 512;

/// A text that is tokenized as a whole.
pub(crate) struct WholeText {
    /// Memory of the body with the text.
    pub(crate) body: Reservation,
    /// Bytes of the text.
    pub(crate) length: usize,
}

impl WholeText {
    /// Waits for the model and for the memory of the work and of the answer.
    async fn ready(
        &self,
        app: &App,
        model: &str,
        answer_bytes: impl FnOnce(&ReadyModel) -> usize,
    ) -> Result<ReadyModel, ApiError> {
        let model = loading::wait(app, model).await?;
        app.shared.bodies.reserve_work(&self.body, self.length.saturating_mul(TOKENIZING_BYTES)).await?;
        app.answer.reserve(answer_bytes(&model)).await?;
        Ok(model)
    }

    /// Returns the call as a job that holds the memory of the body, and a guard that cancels it.
    fn job<T>(
        self,
        model: ReadyModel,
        call: impl FnOnce(&ReadyModel, &Cancel) -> Result<T, Error>,
    ) -> (impl FnOnce() -> Result<T, Error>, CancelOnDrop) {
        let cancel = Cancel::new();
        let guard = CancelOnDrop(cancel.clone());
        (
            move || {
                let _body = self.body;
                call(&model, &cancel)
            },
            guard,
        )
    }
}

impl From<Reservation> for WholeText {
    /// Returns the memory of a body whose texts are cut off at the model's context.
    fn from(body: Reservation) -> Self {
        Self { body, length: 0 }
    }
}

/// Cancels a job when it is dropped.
pub(crate) struct CancelOnDrop(pub(crate) Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs a request once its model is in memory. The call is cancelled when the client disconnects. The memory of its
/// body is reserved until it returns.
pub(crate) async fn run_cancellable<T: Send + 'static>(
    app: &App,
    model: &str,
    body: Reservation,
    call: impl FnOnce(&ReadyModel, &Cancel) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    run_tokenizing(app, model, body.into(), |_| 0, call).await
}

/// Returns an answer as JSON, written on a thread for blocking work, because it may take many milliseconds.
pub(crate) async fn json_response<T: Serialize>(
    app: &App,
    answer: impl FnOnce() -> T + Send + 'static,
) -> Result<Response, ApiError> {
    let json = app.shared.jobs.run(move || {
        // Serialising numbers and strings to JSON cannot fail.
        Ok::<_, ApiError>(serde_json::to_vec(&answer()).unwrap_or_default())
    });
    let json = json.await?;
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}

/// Runs a request like [`run_cancellable`] that tokenizes a whole text. Waits for the memory of that, and then for the
/// memory of its answer, of which `answer_bytes` returns an upper bound.
pub(crate) async fn run_tokenizing<T: Send + 'static>(
    app: &App,
    model: &str,
    text: WholeText,
    answer_bytes: impl FnOnce(&ReadyModel) -> usize,
    call: impl FnOnce(&ReadyModel, &Cancel) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let model = text.ready(app, model, answer_bytes).await?;
    let (job, _on_disconnect) = text.job(model, call);
    app.shared.jobs.run(job).await
}

/// Runs a request like [`run_cancellable`] that starts an answer. Models that read texts compute the whole answer in the call,
/// as those of [`run_encoder`]; the whole text is tokenized.
pub(crate) async fn run_generation<T: Send + 'static>(
    app: &App,
    model: &str,
    text: WholeText,
    call: impl FnOnce(&ReadyModel, &Cancel) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let WholeText { body, length } = text;
    let text = WholeText::from(body);
    let model = text.ready(app, model, |_| 0).await?;
    if !model.reads_texts() {
        let (job, _on_disconnect) = text.job(model, call);
        return app.shared.jobs.run(job).await;
    }

    app.shared.bodies.reserve_work(&text.body, length.saturating_mul(TOKENIZING_BYTES)).await?;
    let meter = app.meter.clone();
    let (job, _on_disconnect) = text.job(model, move |model, cancel| {
        call(model, cancel).inspect_err(|_| meter.tokens(model.computed_tokens()))
    });
    app.shared.jobs.run_encoder(job).await
}

/// Runs a request like [`run_tokenizing`] that waits in the queue of an encoder. If it fails, or if its client
/// disconnects, the tokens that were computed are charged. The call charges the tokens of an answer.
pub(crate) async fn run_encoder<T: Send + 'static>(
    app: &App,
    model: &str,
    text: WholeText,
    answer_bytes: impl FnOnce(&ReadyModel) -> usize,
    call: impl FnOnce(&ReadyModel, &Cancel) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let model = text.ready(app, model, answer_bytes).await?;
    let meter = app.meter.clone();
    let (job, _on_disconnect) = text.job(model, move |model, cancel| {
        call(model, cancel).inspect_err(|_| meter.tokens(model.computed_tokens()))
    });
    app.shared.jobs.run_encoder(job).await
}
