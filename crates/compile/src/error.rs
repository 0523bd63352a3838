//! Why a checkpoint could not be compiled.

use std::{io, path::PathBuf};

use narthex_checkpoint::{CheckpointError, SliceError};
use narthex_graph::{check::GraphError, onnx::files::OnnxFileError, patch::PatchError, typed::BuildError};
use narthex_text::tokenizer::TokenizerError;

use crate::vocabulary::VocabularyError;

/// Failure of a runner for calibration graphs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct RunnerError {
    /// Description of the failure.
    pub reason: String,
    /// Next step for the user, if known.
    pub hint: Option<String>,
}

/// Why a checkpoint could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The checkpoint was refused.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The checkpoint holds no such smaller model.
    #[error("no smaller model of that kind: {0}")]
    Slice(#[from] SliceError),
    /// The vocabulary cannot be pruned so.
    #[error("the vocabulary cannot be pruned: {0}")]
    Vocabulary(#[from] VocabularyError),
    /// The tokenizer was refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A file of the package could not be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The lowered graph breaks a rule; a defect of Narthex.
    #[error("the compiled graph is not well-formed: {0}; please report this")]
    Graph(#[from] GraphError),
    /// An operator was given a wrong tensor; a defect of Narthex.
    #[error("the graph cannot be built: {0}; please report this")]
    Build(#[from] BuildError),
    /// A pass does not fit its graph; a defect of Narthex.
    #[error("{0}; please report this")]
    Pass(#[from] PatchError),
    /// The architecture asks for something that the target's lowering lacks.
    #[error("{what} cannot be lowered for this target: {reason}")]
    Unsupported {
        /// Which part.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The model could not be run for its calibration.
    #[error("the model cannot be calibrated: {0}")]
    Calibration(RunnerError),
    /// A graph that was to be imported cannot be read.
    #[error(transparent)]
    Open(#[from] OnnxFileError),
    /// What was to be imported or exported is well-formed, and has no place on the other side.
    #[error("{what} {found:?} cannot be taken over: expected {expected}")]
    Foreign {
        /// Which part.
        what: String,
        /// What is taken over.
        expected: String,
        /// What was found.
        found: String,
    },
    /// What was to be imported runs on one kind of device alone, with its vendor's software.
    #[error("{path} holds {what}, which runs on {device} alone; expected an export for CPUs or GPUs")]
    Bound {
        /// The file or folder.
        path: PathBuf,
        /// What lies there.
        what: String,
        /// The device, in words.
        device: String,
        /// What gives a package for that device.
        instead: String,
    },
    /// The job was cancelled.
    #[error("interrupted")]
    Cancelled,
}

impl CompileError {
    /// The next step, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Write { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free some space, or point NARTHEX_HOME at another disk".to_owned())
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("point NARTHEX_HOME at a folder that you may write to".to_owned())
            }
            Self::Write { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
                Some("name a folder that is not there yet, or is empty; nothing is replaced".to_owned())
            }
            Self::Checkpoint(error) => match error.what() {
                CheckpointError::Malformed { .. } => {
                    Some("fetch the checkpoint again; it may be cut off or damaged".to_owned())
                }
                CheckpointError::Architecture { .. } => {
                    Some("`narthex list --available` shows models that this version compiles".to_owned())
                }
                CheckpointError::Unsupported { .. } => {
                    Some("take another checkpoint of the model, or another model".to_owned())
                }
                _ => None,
            },
            Self::Open(error) => error.hint(),
            Self::Bound { instead, .. } => Some(instead.clone()),
            Self::Calibration(RunnerError { hint, .. }) => {
                let without = "or compile without calibration: `narthex compile --calibrate none`";
                let first = hint.as_deref().unwrap_or("report this with the model's name");
                Some(format!("{first}, {without}"))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_way_has_a_next_step() {
        let error = CompileError::Write { path: "out".into(), source: io::ErrorKind::AlreadyExists.into() };
        assert!(error.hint().is_some_and(|hint| hint.contains("not there yet, or is empty")));
    }
}
