//! Limited number of threads for blocking work.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Maximum number of concurrent jobs. The runtime has more threads for blocking work, so that work outside jobs
/// never waits.
const MAX_JOBS: usize = 256;

/// Permits for threads that do blocking work.
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
            // The permit is held by the job, which continues if the client disconnects.
            let _permit = permit;
            // The text of an error is made here, because it may quote a long text.
            call().map_err(E::into)
        };
        match tokio::task::spawn_blocking(job).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ApiError::panicked()),
        }
    }
}
