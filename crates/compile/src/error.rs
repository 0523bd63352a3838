//! Errors of compiling, importing and exporting models.

use std::{
    io,
    path::{Path, PathBuf},
};

use narthex_checkpoint::{CheckpointError, SliceError, YarnError};
use narthex_files::environment;
use narthex_graph::{check::GraphError, onnx::files::OnnxFileError, patch::PatchError, typed::BuildError};
use narthex_spec::arch::DynamicOnly;
use narthex_text::tokenizer::TokenizerError;

use crate::{
    calibration_text::CalibrationTextError, vocab_subset::VocabSubsetError, width_plan::WidthPlanError,
};

/// Failure of a runner for calibration graphs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RunnerError {
    /// Description of the failure.
    pub reason: String,
    /// Next step for the user, if known.
    pub hint: Option<String>,
}

/// Result of a compile, an import or an export.
pub type Result<T, E = CompileError> = std::result::Result<T, E>;

/// Reason why a model could not be compiled, imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The checkpoint was refused.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint does not contain the requested smaller model.
    #[error("the model cannot be reduced in this way: {0}")]
    Slice(#[from] SliceError),
    /// YaRN does not apply to the model.
    #[error("the context cannot be extended: {0}")]
    Yarn(#[from] YarnError),
    /// The vocabulary cannot be pruned as requested.
    #[error("the vocabulary cannot be pruned: {0}")]
    VocabSubset(#[from] VocabSubsetError),
    /// The plan of widths cannot be used.
    #[error(transparent)]
    WidthPlan(#[from] WidthPlanError),
    /// The calibration text cannot be used.
    #[error(transparent)]
    CalibrationText(#[from] CalibrationTextError),
    /// The tokenizer was refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file of the package could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A temporary file of the compile could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The lowered graph is invalid; a defect of Narthex.
    #[error("the compiled graph is not well-formed: {0}; please report this")]
    Graph(#[from] GraphError),
    /// An operator received a wrong tensor; a defect of Narthex.
    #[error("the graph cannot be built: {0}; please report this")]
    Build(#[from] BuildError),
    /// A pass produced an invalid patch; a defect of Narthex.
    #[error("{0}; please report this")]
    Pass(#[from] PatchError),
    /// The target's lowering does not support a part of the architecture.
    #[error("{what} cannot be lowered for this target: {reason}")]
    Unsupported {
        /// The part.
        what: String,
        /// The reason.
        reason: String,
    },
    /// The model has no graphs with fixed shapes, which were required.
    #[error("{0}")]
    DynamicOnly(DynamicOnly),
    /// The model could not be run for calibration.
    #[error("the model cannot be calibrated: {0}")]
    Calibration(RunnerError),
    /// A graph to be imported cannot be read.
    #[error(transparent)]
    Open(#[from] OnnxFileError),
    /// The source is well-formed, but the target format of the import or export cannot represent it.
    #[error("unsupported {what}: found {found}, expected {expected}")]
    Foreign {
        /// The part.
        what: String,
        /// The supported values.
        expected: String,
        /// The value in the source.
        found: String,
    },
    /// A setting that the graph does not state is missing because its file is missing.
    #[error("there is no {file} beside the graph, and the graph does not state its {key}")]
    NoSettings {
        /// The missing file.
        file: String,
        /// The setting.
        key: String,
    },
    /// The model to be imported runs only on one kind of device, with its vendor's software.
    #[error("{path} contains {what}, which runs only on {device}; expected an export for CPUs or GPUs")]
    Bound {
        /// The file or folder.
        path: PathBuf,
        /// Description of its contents.
        what: String,
        /// The device, in words.
        device: String,
        /// Next step that produces a package for that device.
        instead: String,
    },
    /// The job was cancelled.
    #[error("interrupted")]
    Cancelled,
}

impl CompileError {
    /// Returns the next step, if one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Write { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                Some("choose a new or empty folder; existing files are not replaced".to_owned())
            }
            Self::Write { source, .. } | Self::Read { source, .. } => {
                environment::hint(source).map(str::to_owned)
            }
            Self::Checkpoint(error) => checkpoint_hint(error.what()).map(str::to_owned),
            Self::Tokenizer(TokenizerError::Unknown { .. }) => {
                Some("choose another conversion of the model, or another model".to_owned())
            }
            Self::Open(error) => error.hint(),
            Self::Bound { instead, .. } => Some(instead.clone()),
            Self::Calibration(RunnerError { hint, .. }) => {
                let without =
                    "or compile in w8 without calibration: `narthex compile --scheme w8 --calibrate none`";
                let first = hint.as_deref().unwrap_or("report this with the model's name");
                Some(format!("{first}, {without}"))
            }
            _ => None,
        }
    }
}

fn checkpoint_hint(error: &CheckpointError) -> Option<&'static str> {
    match error {
        CheckpointError::Read { source, .. } => environment::hint(source),
        CheckpointError::Malformed { .. } => {
            Some("compare the file with the published one; it may be incomplete or damaged")
        }
        CheckpointError::Architecture { .. } => {
            Some("`narthex list --available` shows models that this version compiles")
        }
        CheckpointError::NoPooling { .. } => {
            Some("give the pooling that the model's card names: --pooling mean, cls, max or last")
        }
        CheckpointError::Unsupported { .. } => {
            Some("choose another checkpoint of the model, or another model")
        }
        _ => None,
    }
}

/// Returns the conversion of the system's error for a file or a folder that could not be written.
pub(crate) fn unwritable(path: impl AsRef<Path>) -> impl Fn(io::Error) -> CompileError {
    move |source| CompileError::Write { path: path.as_ref().to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_folder_has_a_hint() {
        let error = CompileError::Write { path: "out".into(), source: io::ErrorKind::AlreadyExists.into() };
        assert!(error.hint().is_some_and(|hint| hint.contains("a new or empty folder")));
    }
}
