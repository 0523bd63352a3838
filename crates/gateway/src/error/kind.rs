//! Kinds of errors, including the errors of other crates.

use narthex_checkpoint::CheckpointError;
use narthex_compile::{
    calibration_text::CalibrationTextError, vocab_subset::VocabSubsetError, width_plan::WidthPlanError,
};
use narthex_files::environment;
use narthex_text::tokenizer::TokenizerError;

/// Kind of a failure. The server maps it to an HTTP status, the command line to an exit code.
///
/// ```
/// use narthex_gateway::{Error, ErrorKind};
///
/// /// Returns the exit code of a program.
/// fn exit_code(error: &Error) -> u8 {
///     match error.kind() {
///         ErrorKind::BadRequest | ErrorKind::NotFound => 2,
///         ErrorKind::Cancelled => 130,
///         _ => 1,
///     }
/// }
///
/// assert_eq!(exit_code(&Error::Cancelled), 130);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is invalid.
    BadRequest,
    /// The model, file or runtime does not exist.
    NotFound,
    /// The queue is full.
    Overloaded,
    /// The caller may not do this.
    Forbidden,
    /// The model is still loading.
    Loading,
    /// The model cannot be loaded, or its device failed.
    Unavailable,
    /// This version does not support the model or the format.
    Unsupported,
    /// A download failed.
    Fetch,
    /// A file is malformed or damaged.
    Malformed,
    /// A limit of the machine: space, permission to write, size of files, open files, threads.
    Storage,
    /// The user interrupted the job.
    Cancelled,
    /// A defect of Narthex.
    Internal,
}

impl ErrorKind {
    /// Returns the kind of an operating system's error.
    pub fn of_io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        match error.kind() {
            _ if environment::is_limit(error) => Self::Storage,
            Io::NotFound => Self::NotFound,
            Io::InvalidInput | Io::InvalidData | Io::UnexpectedEof | Io::IsADirectory | Io::FileTooLarge => {
                Self::Malformed
            }
            _ => Self::Internal,
        }
    }
}

pub(super) fn catalog_kind(error: &narthex_catalog::Error) -> ErrorKind {
    use narthex_catalog::ErrorKind as Kind;
    match error.kind() {
        Kind::BadRequest => ErrorKind::BadRequest,
        Kind::NotFound => ErrorKind::NotFound,
        Kind::Fetch => ErrorKind::Fetch,
        Kind::Storage => ErrorKind::Storage,
        Kind::Malformed => ErrorKind::Malformed,
        Kind::Unsupported => ErrorKind::Unavailable,
        Kind::Cancelled => ErrorKind::Cancelled,
        Kind::Internal => ErrorKind::Internal,
    }
}

pub(super) fn check_kind(error: &narthex_check::CheckError) -> ErrorKind {
    use narthex_check::CheckError as Check;
    match error {
        Check::Write { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
            ErrorKind::BadRequest
        }
        Check::Write { source, .. } => ErrorKind::of_io(source),
        Check::Open(error) => onnx_kind(error),
        Check::CannotFix { .. } => ErrorKind::BadRequest,
    }
}

fn onnx_kind(error: &narthex_graph::onnx::files::OnnxFileError) -> ErrorKind {
    use narthex_graph::onnx::files::OnnxFileError as Onnx;
    match error {
        Onnx::Read { source, .. } => ErrorKind::of_io(source),
        Onnx::NoModel { .. } => ErrorKind::NotFound,
        Onnx::TooMany { .. } => ErrorKind::BadRequest,
        Onnx::Data { .. } | Onnx::Decode { .. } | Onnx::TooLarge { .. } => ErrorKind::Malformed,
    }
}

fn checkpoint_kind(error: &CheckpointError) -> ErrorKind {
    match error.what() {
        CheckpointError::Read { source, .. } => ErrorKind::of_io(source),
        CheckpointError::Architecture { .. } | CheckpointError::Unsupported { .. } => ErrorKind::Unsupported,
        CheckpointError::NoPooling { .. } => ErrorKind::BadRequest,
        CheckpointError::Malformed { .. }
        | CheckpointError::MissingTensor { .. }
        | CheckpointError::WrongShape { .. }
        | CheckpointError::WrongSize { .. }
        | CheckpointError::NotFinite { .. }
        | CheckpointError::InFile { .. } => ErrorKind::Malformed,
    }
}

pub(super) fn tokenizer_kind(error: &TokenizerError) -> ErrorKind {
    match error {
        TokenizerError::Cancelled => ErrorKind::Cancelled,
        TokenizerError::Unknown { .. } => ErrorKind::Unsupported,
        TokenizerError::Malformed { .. }
        | TokenizerError::BadVocabulary { .. }
        | TokenizerError::BadModel { .. }
        | TokenizerError::Encode { .. } => ErrorKind::Malformed,
    }
}

pub(super) fn compile_kind(error: &narthex_compile::CompileError) -> ErrorKind {
    use narthex_compile::CompileError as Compile;
    match error {
        Compile::Cancelled => ErrorKind::Cancelled,
        Compile::Write { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
            ErrorKind::BadRequest
        }
        Compile::Write { source, .. } => match ErrorKind::of_io(source) {
            ErrorKind::NotFound => ErrorKind::Storage,
            other => other,
        },
        Compile::Read { source, .. } => ErrorKind::of_io(source),
        Compile::Checkpoint(error) => checkpoint_kind(error),
        Compile::Tokenizer(error) | Compile::CalibrationText(CalibrationTextError::Tokenizer(error)) => {
            tokenizer_kind(error)
        }
        Compile::Calibration(_) => ErrorKind::Unavailable,
        Compile::Bound { .. }
        | Compile::Foreign { .. }
        | Compile::Unsupported { .. }
        | Compile::DynamicOnly(_) => ErrorKind::Unsupported,
        Compile::NoSettings { .. } => ErrorKind::NotFound,
        Compile::Open(error) => onnx_kind(error),
        Compile::VocabSubset(VocabSubsetError::Read { source, .. })
        | Compile::WidthPlan(WidthPlanError::Read { source, .. })
        | Compile::CalibrationText(CalibrationTextError::Read { source, .. }) => ErrorKind::of_io(source),
        Compile::WidthPlan(WidthPlanError::Line { .. })
        | Compile::CalibrationText(CalibrationTextError::Line { .. } | CalibrationTextError::Empty { .. }) => {
            ErrorKind::Malformed
        }
        Compile::VocabSubset(VocabSubsetError::List { .. } | VocabSubsetError::TooLong { .. }) => {
            ErrorKind::Malformed
        }
        Compile::Slice(_) | Compile::Yarn(_) | Compile::VocabSubset(_) => ErrorKind::BadRequest,
        Compile::Graph(_) | Compile::Build(_) | Compile::Pass(_) => ErrorKind::Internal,
    }
}
