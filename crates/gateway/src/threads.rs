//! Check that threads can be started. ONNX Runtime and other libraries end the process if they cannot start theirs.

use std::thread;

pub use narthex_files::environment::check_threads;

use crate::error::Error;

/// Number of threads that a load or a compile starts in addition to those that compute: those of the engine and the
/// prefix cache, and one for a template, a grammar or pip.
const OTHERS: usize = 4;

/// Checks that a load or a compile can start its threads.
///
/// # Errors
/// [`Error::Io`] with the system's reason.
pub(crate) fn check(computing: ComputingThreads) -> Result<(), Error> {
    let threads = OTHERS + computing.count();
    check_threads(threads)
        .map_err(|source| Error::Io { what: format!("cannot start {threads} threads"), source })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComputingThreads {
    /// One for each core, as a compile has.
    Cores,
    /// The configured number; 0 for one for each core.
    Configured(usize),
}

impl ComputingThreads {
    fn count(self) -> usize {
        match self {
            Self::Configured(threads) if threads > 0 => threads,
            Self::Configured(_) | Self::Cores => thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_os = "linux")]
    use {narthex_text::template::ChatTemplate, std::collections::BTreeMap};

    #[cfg(target_os = "linux")]
    #[test]
    fn a_limit_on_threads_is_an_error() {
        narthex_testkit::one_thread::run("threads::tests::a_limit_on_threads_is_an_error", || {
            let template = ChatTemplate::new("", BTreeMap::new()).map(drop).map_err(Error::from);
            let (cores, configured) = (ComputingThreads::Cores, ComputingThreads::Configured(1));
            for error in [template, check(cores), check(configured)].map(Result::unwrap_err) {
                assert_eq!(error.kind(), crate::ErrorKind::Storage, "{error}");
                assert!(error.to_string().starts_with("cannot start "), "{error}");
                assert!(error.hint().unwrap().contains("raise the limit on threads"));
            }
        });
    }

    #[test]
    fn configured_threads_are_counted() {
        check(ComputingThreads::Configured(2)).unwrap();
        assert_eq!(ComputingThreads::Configured(3).count(), 3);
        assert_eq!(ComputingThreads::Configured(0).count(), ComputingThreads::Cores.count());
    }
}
