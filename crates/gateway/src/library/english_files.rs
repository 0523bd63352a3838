//! Files of the English pronunciation for voices that come without them.

use std::path::PathBuf;

use narthex_catalog::{fetch, resolve::ModelRef};
use narthex_compile::voice::VoiceFiles;
use narthex_spec::ProgressSink;

use super::Library;
use crate::{cancel::Cancel, error::Error};

/// Model of the catalogue whose wheel has the files.
const MODEL: &str = "hibari";

/// Returns the folder with the files, which are downloaded if they are missing; `None` if the voice does not need them.
///
/// # Errors
/// [`Error::Catalog`] for a download that fails.
pub(crate) fn folder(
    library: &Library,
    voice: &VoiceFiles,
    progress: &dyn ProgressSink,
    cancel: &Cancel,
) -> Result<Option<PathBuf>, Error> {
    if !voice.needs_english()? {
        return Ok(None);
    }
    let resolved = ModelRef::parse(MODEL)?.resolve(&library.catalog)?;
    Ok(Some(fetch::fetch(&library.store, &resolved, progress, cancel.flag())?.path))
}
