//! Calls of the synchronous gateway from async handlers.

use axum::http::StatusCode;
use narthex_gateway::{Cancel, Error};

use crate::error::ApiError;

/// Cancels a job when it is dropped.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Runs a call on a thread for blocking work, because it may wait for files or for a model to load.
pub(crate) async fn run_blocking<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    run_parse(move || call().map_err(ApiError::from)).await
}

/// As [`run_blocking`], for work on a request that fails with an error of the API.
pub(crate) async fn run_parse<T: Send + 'static>(
    call: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(call).await.unwrap_or_else(|_| {
        Err(ApiError::plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the code that handles this request panicked; please report this as a bug",
        ))
    })
}

/// As [`run_blocking`], for a call that is cancelled when the client disconnects.
pub(crate) async fn run_cancellable<T: Send + 'static>(
    call: impl FnOnce(&Cancel) -> Result<T, Error> + Send + 'static,
) -> Result<T, ApiError> {
    let cancel = Cancel::new();
    let _on_disconnect = CancelOnDrop(cancel.clone());
    run_blocking(move || call(&cancel)).await
}
