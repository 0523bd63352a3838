//! Kinds of the errors of other crates.

use narthex_compile::vocab_subset::VocabSubsetError;

use super::ErrorKind;

pub(super) fn io_kind(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::StorageFull | Io::ReadOnlyFilesystem | Io::PermissionDenied | Io::QuotaExceeded => {
            ErrorKind::Storage
        }
        Io::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Internal,
    }
}

pub(super) fn catalog_kind(error: &narthex_catalog::Error) -> ErrorKind {
    use narthex_catalog::ErrorKind as Kind;
    match error.kind() {
        Kind::BadRequest => ErrorKind::BadRequest,
        Kind::NotFound => ErrorKind::NotFound,
        Kind::Fetch => ErrorKind::Fetch,
        Kind::Storage => ErrorKind::Storage,
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
        Check::Write { source, .. } => io_kind(source),
        Check::Open(error) => onnx_kind(error),
        Check::CannotFix { .. } => ErrorKind::BadRequest,
    }
}

fn onnx_kind(error: &narthex_graph::onnx::files::OnnxFileError) -> ErrorKind {
    use narthex_graph::onnx::files::OnnxFileError as Onnx;
    match error {
        Onnx::Read { source, .. } => io_kind(source),
        Onnx::NoModel { .. } => ErrorKind::NotFound,
        Onnx::Data { .. } => ErrorKind::Unavailable,
        Onnx::Decode { .. } | Onnx::TooLarge { .. } | Onnx::TooMany { .. } => ErrorKind::BadRequest,
    }
}

pub(super) fn compile_kind(error: &narthex_compile::CompileError) -> ErrorKind {
    use narthex_compile::CompileError as Compile;
    match error {
        Compile::Cancelled => ErrorKind::Cancelled,
        Compile::Write { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists => {
            ErrorKind::BadRequest
        }
        Compile::Write { source, .. } => match io_kind(source) {
            ErrorKind::NotFound => ErrorKind::Storage,
            other => other,
        },
        Compile::Checkpoint(_)
        | Compile::Tokenizer(_)
        | Compile::Calibration(_)
        | Compile::Bound { .. }
        | Compile::Foreign { .. }
        | Compile::Unsupported { .. } => ErrorKind::Unavailable,
        Compile::Open(error) => onnx_kind(error),
        Compile::VocabSubset(VocabSubsetError::Read { source, .. }) => io_kind(source),
        Compile::Slice(_) | Compile::VocabSubset(_) => ErrorKind::BadRequest,
        Compile::Graph(_) | Compile::Build(_) | Compile::Pass(_) => ErrorKind::Internal,
    }
}
