//! Import of a voice, whose graph is not compiled.

use std::path::PathBuf;

use narthex_catalog::{fetch::CheckpointFiles, resolve::CheckpointSource};
use narthex_compile::voice::{self, VoiceFiles, VoiceJob};

use super::{
    package_build::{PackageBuild, provenance},
    request::CompileRequest,
};
use crate::{
    error::Error,
    library::{DEFAULT_SCHEME, english_files, package::bad_package},
};

impl PackageBuild<'_> {
    /// Refuses settings of a compile for a voice, whose graph is imported as it is.
    pub(super) fn check_voice(&self) -> Result<(), Error> {
        let CompileRequest { target, contexts, prefill, passes, adapters, .. } = self.request;
        let name = &self.key.name;
        if self.key.scheme != DEFAULT_SCHEME {
            let message = format!("{name} is a voice, which exists only in {DEFAULT_SCHEME}");
            return Err(Error::invalid("scheme", message));
        }
        let has_passes = passes.as_ref().is_some_and(|passes| !passes.is_empty());
        let has_shapes = !contexts.is_empty() || !prefill.is_empty();
        if target.is_some() || has_shapes || has_passes || !adapters.is_empty() {
            let message =
                format!("{name} is a voice, which is imported and not compiled; `narthex pull {name}`");
            return Err(Error::invalid("model", message));
        }
        Ok(())
    }

    /// Imports a voice of the catalogue.
    pub(super) fn import_voice(
        &self,
        resolved: &CheckpointSource,
        files: CheckpointFiles,
    ) -> Result<PathBuf, Error> {
        let Self { library, key, cancel, .. } = self;
        let progress = self.steps.sink();
        let Some(voice) = VoiceFiles::find(&files.path, None) else {
            let reason = format!("expected the files of a voice in {}, found none", files.path.display());
            return Err(bad_package(key, reason));
        };
        let english = english_files::folder(library, &voice, progress, cancel)?;

        let staging = library.store.stage_package(&key.name, key.scheme)?;
        let job = VoiceJob {
            files: &voice,
            file: None,
            english: english.as_deref(),
            name: key.name.clone(),
            out: staging.path(),
            provenance: provenance(CheckpointFiles {
                license: files.license.clone().or_else(|| resolved.license.clone()),
                ..files.clone()
            }),
            progress,
        };
        voice::import(job, cancel.flag())?;
        Ok(staging.commit()?)
    }
}
