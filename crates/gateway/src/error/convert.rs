//! Conversions of errors that have several kinds.

use narthex_text::{compile_thread::ThreadStartError, template::TemplateError};

use super::Error;

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
