//! Limited number of threads for blocking work.

use std::{sync::Arc, thread::available_parallelism, time::Duration};

use tokio::sync::Semaphore;

use crate::{error::ApiError, http::incomplete_bodies::BodySize, waits::wait_for};

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
    /// Jobs that read large bodies. They leave half of the processors to all other requests.
    of_large_bodies: Arc<Semaphore>,
}

impl Jobs {
    pub(crate) fn new() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MAX_JOBS)),
            of_encoders: Arc::new(Semaphore::new(MAX_ENCODER_JOBS)),
            of_large_bodies: Arc::new(Semaphore::new(large_body_jobs())),
        }
    }

    /// Runs a call like [`Self::run`] that reads a body of this size.
    pub(crate) async fn run_reader<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
        &self,
        size: BodySize,
        call: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, ApiError> {
        match size {
            BodySize::Small => self.run(call).await,
            BodySize::Large => {
                let permit =
                    wait_for("a thread for large bodies", self.of_large_bodies.clone().acquire_owned()).await;
                self.run(holding(permit, call)).await
            }
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
        self.run(holding(permit, call)).await
    }

    /// Runs a call on a thread for blocking work, because it computes or waits for files.
    pub(crate) async fn run<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, E> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = wait_for("a thread for blocking work", self.all.clone().acquire_owned()).await;
        // The text of an error is made in the job, because it may quote a long text.
        let job = holding(permit, || call().map_err(E::into));
        match tokio::task::spawn_blocking(job).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ApiError::panicked()),
        }
    }
}

/// Returns a job that holds a permit until its end, also if the client disconnects.
fn holding<T>(permit: impl Send, call: impl FnOnce() -> T + Send) -> impl FnOnce() -> T + Send {
    move || {
        let _permit = permit;
        call()
    }
}

/// Returns the maximum number of concurrent jobs that read large bodies: half of the processors, at least one.
fn large_body_jobs() -> usize {
    available_parallelism().map_or(1, |processors| processors.get().div_ceil(2))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn encoders_leave_threads_for_other_jobs() {
        let [all, of_encoders] = [2, 1].map(|permits| Arc::new(Semaphore::new(permits)));
        let jobs = Jobs { all, of_encoders, ..Jobs::new() };
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
    #[tokio::test]
    async fn large_bodies_wait_for_each_other_and_small_ones_do_not() {
        let jobs = Jobs { of_large_bodies: Arc::new(Semaphore::new(1)), ..Jobs::new() };
        let (end, waits) = mpsc::channel::<()>();
        let (began, begin) = tokio::sync::oneshot::channel();
        let wait = move || {
            began.send(()).unwrap();
            waits.recv().map_err(|_| ApiError::panicked())
        };
        let reader = jobs.clone();
        let first = tokio::spawn(async move { reader.run_reader(BodySize::Large, wait).await });
        begin.await.unwrap();
        let read = || Ok::<_, ApiError>(());
        let second = jobs.run_reader(BodySize::Large, read);
        tokio::pin!(second);
        assert!(futures::poll!(&mut second).is_pending());
        jobs.run_reader(BodySize::Small, read).await.unwrap();
        assert_eq!(jobs.all.available_permits(), MAX_JOBS - 1);
        end.send(()).unwrap();
        first.await.unwrap().unwrap();
        second.await.unwrap();
    }
}
