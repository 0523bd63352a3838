//! A thread that reads the tokenizer of a package while the runtime and the graphs are loaded. Reading it takes about as
//! long as all of these.

use std::{
    panic,
    sync::Arc,
    thread::{self, JoinHandle},
};

use narthex_device::memory;
use narthex_text::tokenizer::Tokenizer;

use crate::{error::Error, library::package::Package};

/// A tokenizer that is being read. A reader that is dropped ends on its own.
pub(crate) struct TokenizerReader(JoinHandle<Result<Tokenizer, Error>>);

impl TokenizerReader {
    /// Starts to read the tokenizer of a package.
    ///
    /// # Errors
    /// [`Error::Io`] if no thread can be started.
    pub(crate) fn start(package: &Arc<Package>) -> Result<Self, Error> {
        let package = package.clone();
        let builder = thread::Builder::new().name("tokenizer".to_owned());
        Ok(Self(
            builder
                .spawn(move || {
                    let tokenizer = package.read_tokenizer();
                    // The file takes several times its size while it is read.
                    memory::release_freed_memory();
                    tokenizer
                })
                .map_err(|source| Error::Io {
                    what: "cannot start the thread that reads the tokenizer".to_owned(),
                    source,
                })?,
        ))
    }

    /// Waits for the tokenizer.
    ///
    /// # Errors
    /// As [`Package::read_tokenizer`].
    pub(crate) fn finish(self) -> Result<Tokenizer, Error> {
        self.0.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    }
}
