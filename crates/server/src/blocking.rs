//! Calls of the synchronous library from async handlers.

use narthex_gateway::{Cancel, Error, ReadyModel};

use crate::{app::App, budget::Reservation, error::ApiError, loading};

/// Maximum memory that tokenising takes for each byte of a text.
const TOKENISING_BYTES: usize = 100;

/// A text that is tokenised as a whole.
pub(crate) struct WholeText {
    /// Memory of the body with the text.
    pub(crate) body: Reservation,
    /// Bytes of the text.
    pub(crate) length: usize,
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
    run_tokenising(app, model, WholeText { body, length: 0 }, call).await
}

/// Runs a request like [`run_cancellable`] that tokenises a whole text. Waits for the memory of that.
pub(crate) async fn run_tokenising<T: Send + 'static>(
    app: &App,
    model: &str,
    text: WholeText,
    call: impl FnOnce(&ReadyModel, &Cancel) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let WholeText { body, length } = text;
    let model = loading::wait(app, model).await?;
    app.shared.bodies.reserve_work(&body, length.saturating_mul(TOKENISING_BYTES)).await?;
    let cancel = Cancel::new();
    let _on_disconnect = CancelOnDrop(cancel.clone());
    let job = move || {
        let _body = body;
        call(&model, &cancel)
    };
    app.shared.jobs.run(job).await
}
