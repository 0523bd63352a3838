//! Limited number of threads for blocking work.

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use crate::error::ApiError;

/// Maximum number of concurrent jobs. The runtime has more threads for blocking work, so that work outside jobs
/// never waits.
const MAX_JOBS: usize = 256;

/// Maximum number of concurrent jobs that wait for encoders. They leave threads for all other jobs, which are short.
const MAX_ENCODER_JOBS: usize = 192;

/// Delay before a client should repeat a request that found no thread.
const RETRY: Duration = Duration::from_secs(1);

/// Permits for threads that do blocking work.
#[derive(Debug, Clone)]
pub(crate) struct Jobs {
    all: Arc<Semaphore>,
    of_encoders: Arc<Semaphore>,
}

impl Jobs {
    pub(crate) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX_JOBS)),
            of_encoders: Arc::new(Semaphore::new(MAX_ENCODER_JOBS)),
        }
    }

    /// Runs a call like [`Self::run`] that waits in the queue of an encoder.
    ///
    /// # Errors
    /// 429 if the requests for all encoders together occupy too many threads.
    pub(crate) async fn run_encoder<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, ApiError> {
        let Ok(permit) = self.of_encoders.clone().try_acquire_owned() else {
            let message = format!(
                "{MAX_ENCODER_JOBS} requests wait for encoders, which is the maximum; try again in a moment"
            );
            return Err(ApiError::overloaded(&message, RETRY));
        };
        let job = move || {
            let _permit = permit;
            call()
        };
        self.run(job).await
    }

    /// Runs a call on a thread for blocking work, because it computes or waits for files.
    pub(crate) async fn run<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.all.clone().acquire_owned().await;
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn encoders_leave_threads_for_other_jobs() {
        let jobs = Jobs { all: Arc::new(Semaphore::new(2)), of_encoders: Arc::new(Semaphore::new(1)) };
        let (end, waits) = mpsc::channel::<()>();
        let (began, begin) = tokio::sync::oneshot::channel();
        let waiting = {
            let jobs = jobs.clone();
            let wait = move || {
                began.send(()).unwrap();
                waits.recv().map_err(|_| ApiError::panicked())
            };
            tokio::spawn(async move { jobs.run_encoder(wait).await })
        };
        begin.await.unwrap();
        let refused = jobs.run_encoder(|| Ok::<_, ApiError>(())).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.retry_after()), (429, Some(1)));
        jobs.run(|| Ok::<_, ApiError>(())).await.unwrap();
        end.send(()).unwrap();
        waiting.await.unwrap().unwrap();
        jobs.run_encoder(|| Ok::<_, ApiError>(())).await.unwrap();
    }
}
