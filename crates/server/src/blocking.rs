//! Calls of the synchronous gateway from async handlers.

use std::sync::Arc;

use axum::http::StatusCode;
use narthex_gateway::{Cancel, Error, Gateway};
use tokio::sync::Semaphore;

use crate::{app::App, budget::Reservation, error::ApiError, loading};

/// Maximum number of concurrent jobs. The runtime has more threads for blocking work, so that what needs no job never waits.
const MAX_JOBS: usize = 256;

/// The threads for blocking work.
#[derive(Debug, Clone)]
pub(crate) struct Jobs(Arc<Semaphore>);

impl Jobs {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_JOBS)))
    }

    /// Runs a call on a thread for blocking work, because it computes or waits for files.
    pub(crate) async fn run<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.0.clone().acquire_owned().await;
        let job = move || {
            // The permit lasts as long as the job, which goes on if the client disconnects.
            let _permit = permit;
            call()
        };
        match tokio::task::spawn_blocking(job).await {
            Ok(outcome) => outcome.map_err(E::into),
            Err(_) => Err(ApiError::plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the code that handles this request panicked; please report this as a bug",
            )),
        }
    }
}

/// Cancels a job when it is dropped.
pub(crate) struct CancelOnDrop(pub(crate) Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs a request once its model is in memory. The call is cancelled when the client disconnects. The memory of its body is
/// reserved until it returns.
pub(crate) async fn run_cancellable<T: Send + 'static>(
    app: &App,
    model: &str,
    body: Reservation,
    call: impl FnOnce(&Gateway, &Cancel) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    loading::wait(app, model).await?;
    let cancel = Cancel::new();
    let _on_disconnect = CancelOnDrop(cancel.clone());
    let gateway = app.gateway.clone();
    let job = move || {
        let _body = body;
        call(&gateway, &cancel)
    };
    app.shared.jobs.run(job).await
}
