//! Threads with a large stack. The compilers of grammars and templates recurse as deep as their source nests.

use std::{io, thread};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_only_the_thread() {
        assert_eq!(run(1 << 20, || 7), Ok(Some(7)));
        assert_eq!(run(1 << 20, || -> u8 { panic!("contained") }), Ok(None));
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
