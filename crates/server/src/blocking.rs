//! Calls of the synchronous library from async handlers.

use narthex_gateway::{Cancel, Error, ReadyModel};

use crate::{app::App, budget::Reservation, error::ApiError, loading};

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
    let model = loading::wait(app, model).await?;
    let cancel = Cancel::new();
    let _on_disconnect = CancelOnDrop(cancel.clone());
    let job = move || {
        let _body = body;
        call(&model, &cancel)
    };
    app.shared.jobs.run(job).await
}
