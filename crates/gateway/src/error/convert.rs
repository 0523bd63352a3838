//! Conversions of I/O errors, and of errors that have several kinds.

use std::{io, path::Path};

use narthex_text::{compile_thread::ThreadStartError, template::TemplateError};

use super::Error;

impl Error {
    /// Returns a function that adds the failed operation and its path to an I/O error.
    pub(crate) fn io(doing: &'static str, path: impl AsRef<Path>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what: format!("cannot {doing} {}", path.as_ref().display()), source }
    }
}

impl From<ThreadStartError> for Error {
    fn from(error: ThreadStartError) -> Self {
        Self::Io { what: "cannot start a thread".to_owned(), source: error.into() }
    }
}

impl From<TemplateError> for Error {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::Thread(error) => error.into(),
            error => Self::Template(error),
        }
    }
}
