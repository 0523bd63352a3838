//! The one error of the library, with what it means for a caller and the next step.

use std::{fmt::Display, time::Duration};

use narthex_compile::vocabulary::VocabularyError;
use narthex_device::DeviceError;
use narthex_spec::{Ep, ModelName, NpuPolicy, Scheme};

use crate::{length::Length, load::fallback::Fallen, report::models::PassedOver};

/// What kind of failure it is; the server maps it to a status, the command line to an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request is wrong.
    BadRequest,
    /// There is no such model, file or runtime.
    NotFound,
    /// Too much work is queued.
    Overloaded,
    /// The model is still loading.
    Loading,
    /// The model cannot be loaded, or the device failed.
    Unavailable,
    /// Something could not be fetched.
    Fetch,
    /// No space, or no permission to write.
    Storage,
    /// The user interrupted it.
    Cancelled,
    /// A defect of Narthex.
    Internal,
}

/// Why the gateway refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request is wrong.
    #[error("{message}")]
    Invalid {
        /// The API's name of the field.
        param: &'static str,
        /// Expected, found, next step.
        message: String,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "{param}: the prompt has {prompt} tokens, but prompt and answer together may have {context}; shorten the prompt"
    )]
    ContextLength {
        /// The API's name of the field that holds the prompt.
        param: &'static str,
        /// Tokens of the prompt.
        prompt: Length,
        /// The most tokens of prompt and answer together: the model's context, or what the KV budget holds.
        context: usize,
        /// The model's context.
        of_model: usize,
    },
    /// An embedding input is longer than the model takes.
    #[error(
        "input {index} has {found} tokens, but this model embeds at most {limit}; shorten it or ask for truncation"
    )]
    InputTooLong {
        /// Which input.
        index: usize,
        /// Its tokens.
        found: Length,
        /// The model's limit.
        limit: usize,
    },
    /// No such model.
    #[error("no model is called {name:?}{}", near_names(near))]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// Names like it.
        near: Vec<ModelName>,
    },
    /// The name is another model's.
    #[error("{name} is called after another model already, which was made from {found}")]
    Taken {
        /// The name.
        name: ModelName,
        /// Where that model came from.
        found: String,
    },
    /// The model is known, but its package is not on this machine.
    #[error("{name} is not installed on this machine")]
    NotInstalled {
        /// The model.
        name: ModelName,
    },
    /// The model exists but does another job.
    #[error("{name} is {is}, not {wanted}")]
    WrongKind {
        /// The model.
        name: ModelName,
        /// What it is: `an embedding model`.
        is: &'static str,
        /// What was asked of it: `a chat model`.
        wanted: &'static str,
    },
    /// The queue is full.
    #[error("{queued} requests are waiting already; try again in a moment")]
    Overloaded {
        /// Waiting requests.
        queued: usize,
        /// When to try again.
        retry_after: Duration,
    },
    /// The model did not become ready in time.
    #[error("{name} is still loading; try again in a moment")]
    Loading {
        /// The model.
        name: ModelName,
        /// When to try again.
        retry_after: Duration,
    },
    /// The model could not be loaded.
    #[error("{name} cannot be loaded: {reason}")]
    LoadFailed {
        /// The model.
        name: ModelName,
        /// Why.
        reason: String,
        /// The next step.
        hint: Option<String>,
        /// When to try again, where it may be better then by itself.
        retry_after: Option<Duration>,
    },
    /// No device of the order took the model.
    #[error("{name} runs on no device of the order{}: {}", required(*policy), reasons(passed_over))]
    NoDevice {
        /// The model.
        name: ModelName,
        /// What was asked about an NPU.
        policy: NpuPolicy,
        /// Every device, with its reason.
        passed_over: Vec<PassedOver>,
    },
    /// A graph that must run on a device as a whole does not.
    #[error("{graph}: {} of {nodes} nodes cannot run on {ep}: {fallen}", fallen.count)]
    NotWhole {
        /// The graph's file.
        graph: String,
        /// The device's provider.
        ep: Ep,
        /// All nodes.
        nodes: usize,
        /// Those that the provider refused.
        fallen: Fallen,
    },
    /// A vendor's compiler failed with a number that is known: what it said, and the number in words with the next step.
    #[error("{0}")]
    Numbered(DeviceError, String),
    /// The gateway is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The user interrupted it.
    #[error("interrupted")]
    Cancelled,
    /// A file Narthex needs could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, with the path.
        what: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A package on disk is not usable.
    #[error("the package {name}@{scheme} is not usable: {reason}")]
    BadPackage {
        /// The model.
        name: ModelName,
        /// Its weight scheme.
        scheme: Scheme,
        /// Why.
        reason: String,
    },
    /// The catalogue, the store or a download.
    #[error(transparent)]
    Catalog(#[from] narthex_catalog::Error),
    /// The compiler.
    #[error(transparent)]
    Compile(#[from] narthex_compile::CompileError),
    /// A model that was to be checked.
    #[error(transparent)]
    Check(#[from] narthex_check::CheckError),
    /// The device or ONNX Runtime.
    #[error(transparent)]
    Device(#[from] narthex_device::DeviceError),
    /// The tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] narthex_text::tokenizer::TokenizerError),
    /// The conversation has no tokens.
    #[error(transparent)]
    Prompt(#[from] narthex_text::prompt::PromptError),
    /// The chat template refused the conversation.
    #[error("the model's chat template is not usable: {0}")]
    Template(#[from] narthex_text::template::TemplateError),
    /// The device failed while answering.
    #[error(transparent)]
    Step(#[from] narthex_engine::executor::StepError),
}

/// What a text that names no model may have meant.
fn unknown_hint(name: &str) -> String {
    let listed = "`narthex list --available` shows every name";
    match name.split('/').collect::<Vec<_>>()[..] {
        ["" | "." | ".." | "~", ..] | [_] => listed.to_owned(),
        [owner, repository] if name.starts_with("hf:") || owner.is_empty() || repository.is_empty() => {
            listed.to_owned()
        }
        [_, _] => format!("write hf:{name} for a repository of the hub, or ./{name} for a folder; {listed}"),
        _ => format!("write ./{name} for a path; {listed}"),
    }
}

fn near_names(near: &[ModelName]) -> String {
    if near.is_empty() {
        return String::new();
    }
    let names: Vec<&str> = near.iter().map(ModelName::as_str).collect();
    format!("; did you mean {}?", names.join(" or "))
}

fn required(policy: NpuPolicy) -> &'static str {
    if policy == NpuPolicy::Require { ", and an NPU is required" } else { "" }
}

fn reasons(passed_over: &[PassedOver]) -> String {
    let reasons: Vec<String> =
        passed_over.iter().map(|passed| format!("{}: {}", passed.device, passed.reason)).collect();
    reasons.join("; ")
}

impl Error {
    /// A wrong field of a request; `message` says what was expected and found.
    pub(crate) fn invalid(param: &'static str, message: impl Display) -> Self {
        Self::Invalid { param, message: format!("{param}: {message}") }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. }
            | Self::ContextLength { .. }
            | Self::InputTooLong { .. }
            | Self::WrongKind { .. }
            | Self::Taken { .. }
            | Self::Prompt(_) => ErrorKind::BadRequest,
            Self::UnknownModel { .. } | Self::NotInstalled { .. } => ErrorKind::NotFound,
            Self::Overloaded { .. } => ErrorKind::Overloaded,
            Self::Loading { .. } => ErrorKind::Loading,
            Self::Cancelled | Self::Device(DeviceError::Cancelled) => ErrorKind::Cancelled,
            Self::LoadFailed { .. }
            | Self::ShuttingDown
            | Self::NoDevice { .. }
            | Self::NotWhole { .. }
            | Self::Numbered(..)
            | Self::BadPackage { .. }
            | Self::Device(_)
            | Self::Step(_) => ErrorKind::Unavailable,
            Self::Io { source, .. } => io_kind(source),
            Self::Catalog(error) => catalog_kind(error),
            Self::Compile(error) => compile_kind(error),
            Self::Check(error) => check_kind(error),
            Self::Tokenizer(_) | Self::Template(_) => ErrorKind::Internal,
        }
    }

    /// The API's name of the field that is wrong, where it is one field.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { param, .. } | Self::ContextLength { param, .. } => Some(param),
            Self::Prompt(_) => Some("messages"),
            Self::InputTooLong { .. } => Some("input"),
            Self::UnknownModel { .. } | Self::WrongKind { .. } | Self::NotInstalled { .. } => Some("model"),
            _ => None,
        }
    }

    /// When to try again, where that helps.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded { retry_after, .. } | Self::Loading { retry_after, .. } => Some(*retry_after),
            Self::LoadFailed { retry_after, .. } => *retry_after,
            Self::ShuttingDown => Some(Duration::from_secs(10)),
            _ => None,
        }
    }

    /// The next step, where one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownModel { name, .. } => Some(unknown_hint(name)),
            Self::ContextLength { context, of_model, .. } if context < of_model => Some(format!(
                "the model takes {of_model} tokens, but the KV budget holds fewer: start the server with a greater --kv-budget"
            )),
            Self::NotInstalled { name } => Some(format!("install it with `narthex pull {name}`")),
            Self::Taken { name, .. } => {
                Some(format!("give another name with --name, or remove that model: `narthex rm {name}`"))
            }
            Self::LoadFailed { hint, .. } => hint.clone(),
            Self::NoDevice { passed_over, .. } => {
                let fix = passed_over.iter().find_map(|passed| passed.fix.clone());
                Some(fix.unwrap_or_else(|| "`narthex doctor` says what this machine has".to_owned()))
            }
            Self::NotWhole { fallen, .. } => fallen.fix(),
            Self::Numbered(_, hint) => Some(hint.clone()),
            Self::BadPackage { name, scheme, .. } => Some(format!(
                "make it again: `narthex rm {name}@{scheme}`, then `narthex compile {name} --scheme {scheme}`"
            )),
            Self::Io { source, .. } => io_hint(source),
            Self::Catalog(error) => error.hint(),
            Self::Compile(error) => error.hint(),
            Self::Check(error) => error.hint(),
            Self::Device(error) => error.hint(),
            _ => None,
        }
    }
}

fn io_kind(error: &std::io::Error) -> ErrorKind {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::StorageFull | Io::ReadOnlyFilesystem | Io::PermissionDenied | Io::QuotaExceeded => {
            ErrorKind::Storage
        }
        Io::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Internal,
    }
}

fn io_hint(error: &std::io::Error) -> Option<String> {
    use std::io::ErrorKind as Io;
    match error.kind() {
        Io::StorageFull | Io::QuotaExceeded => {
            Some("free some space, or point NARTHEX_HOME at another disk".to_owned())
        }
        Io::ReadOnlyFilesystem | Io::PermissionDenied => {
            Some("point NARTHEX_HOME at a folder that you may write to".to_owned())
        }
        Io::NotFound => Some("check the path; the file is not there".to_owned()),
        _ => None,
    }
}

fn catalog_kind(error: &narthex_catalog::Error) -> ErrorKind {
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

fn check_kind(error: &narthex_check::CheckError) -> ErrorKind {
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

fn compile_kind(error: &narthex_compile::CompileError) -> ErrorKind {
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
        Compile::Vocabulary(VocabularyError::Read { source, .. }) => io_kind(source),
        Compile::Slice(_) | Compile::Vocabulary(_) => ErrorKind::BadRequest,
        Compile::Graph(_) | Compile::Pass(_) => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_slashes_may_be_a_repository_or_a_path() {
        let check = |name: &str, expect: &str| {
            let hint = Error::UnknownModel { name: name.to_owned(), near: Vec::new() }.hint().unwrap();
            assert!(hint.starts_with(expect) && hint.ends_with("shows every name"), "{name}: {hint}");
        };
        check("smollm", "`narthex list");
        check("owner/repo", "write hf:owner/repo for a repository of the hub, or ./owner/repo");
        check("hf:owner/repo", "`narthex list");
        check("a/b/c", "write ./a/b/c");
        check("./a", "`narthex list");
    }

    #[test]
    fn where_the_budget_is_the_bound_it_is_named() {
        let prompt = Length::Counted(40);
        let hint =
            |context| Error::ContextLength { param: "messages", prompt, context, of_model: 8192 }.hint();
        assert!(hint(33).unwrap().contains("--kv-budget"));
        assert_eq!(hint(8192), None);
    }

    #[test]
    fn a_broken_package_is_made_again_in_its_scheme() {
        let name = "smollm2:135m".parse().unwrap();
        let error = Error::BadPackage { name, scheme: Scheme::W4, reason: "it is not whole".to_owned() };
        assert_eq!(error.to_string(), "the package smollm2:135m@w4 is not usable: it is not whole");
        let hint = error.hint().unwrap();
        assert!(hint.contains("rm smollm2:135m@w4") && hint.contains("--scheme w4"), "{hint}");
    }
}
