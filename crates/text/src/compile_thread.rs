//! Threads with a large stack. The compilers of grammars and templates recurse as deep as their source nests.

use std::{
    io,
    sync::mpsc::{RecvTimeoutError, sync_channel},
    thread,
    time::Duration,
};

/// Time between two checks whether a result is still needed.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// A compiler's thread could not be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot start a thread: {}", io::Error::from(*self))]
pub struct ThreadStartError {
    /// The system's error number.
    number: i32,
}

impl From<ThreadStartError> for io::Error {
    fn from(error: ThreadStartError) -> Self {
        Self::from_raw_os_error(error.number)
    }
}

/// Runs `compile` in a thread of its own, and returns `None` if it panics.
pub(crate) fn run<T: Send>(
    stack_size: usize,
    compile: impl FnOnce() -> T + Send,
) -> Result<Option<T>, ThreadStartError> {
    thread::scope(|scope| match thread::Builder::new().stack_size(stack_size).spawn_scoped(scope, compile) {
        Ok(thread) => Ok(thread.join().ok()),
        Err(error) => Err(ThreadStartError { number: error.raw_os_error().unwrap_or_default() }),
    })
}

/// End of a compiler without a result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoResult {
    /// It did not start.
    Start(ThreadStartError),
    Panic,
    /// Its result was no longer needed.
    Unneeded,
}

/// Runs `compile` in a thread of its own as long as its result is needed. The thread ends by itself, if need be after this
/// call.
pub(crate) fn run_while<T: Send + 'static>(
    stack_size: usize,
    is_needed: &dyn Fn() -> bool,
    compile: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NoResult> {
    let (sender, receiver) = sync_channel(1);
    // The receiver may be gone.
    let started = thread::Builder::new().stack_size(stack_size).spawn(move || _ = sender.send(compile()));
    started.map_err(|error| {
        NoResult::Start(ThreadStartError { number: error.raw_os_error().unwrap_or_default() })
    })?;
    loop {
        match receiver.recv_timeout(CHECK_INTERVAL) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => return Err(NoResult::Panic),
            Err(RecvTimeoutError::Timeout) if !is_needed() => return Err(NoResult::Unneeded),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_only_the_thread() {
        assert_eq!(run(1 << 20, || 7), Ok(Some(7)));
        assert_eq!(run(1 << 20, || -> u8 { panic!("contained") }), Ok(None));
    }

    #[test]
    fn a_result_that_is_not_needed_is_not_awaited() {
        let (end, ended) = sync_channel::<()>(0);
        let wait = move || ended.recv().is_ok();
        assert_eq!(run_while(1 << 20, &|| false, wait), Err(NoResult::Unneeded));
        // The compiler still waits for its end.
        end.send(()).unwrap();
        assert_eq!(run_while(1 << 20, &|| true, || 7), Ok(7));
        assert_eq!(run_while(1 << 20, &|| true, || -> u8 { panic!("contained") }), Err(NoResult::Panic));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_limit_on_threads_is_an_error() {
        narthex_testkit::one_thread::run("compile_thread::tests::a_limit_on_threads_is_an_error", || {
            let error = run(1 << 20, || ()).unwrap_err();
            assert!(error.to_string().starts_with("cannot start a thread: "), "{error}");
            assert_eq!(io::Error::from(error).kind(), io::ErrorKind::WouldBlock);
        });
    }
}
