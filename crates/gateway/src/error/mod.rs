//! The error of the library, with its kind, the field of the request and the next step.

mod convert;
mod hint;
mod kind;

use std::{
    borrow::Cow,
    fmt::{self, Display},
    time::Duration,
};

use narthex_catalog::error::near_names;
use narthex_device::DeviceError;
use narthex_spec::{DeviceMap, DeviceName, Ep, MediaKind, ModelName, NpuPolicy, Scheme};
use narthex_text::{template::TemplateError, tokenizer::TokenizerError};

use crate::report::{
    fallback::FallbackNodes,
    models::{DeviceRefusal, ModelKind},
};
use hint::{io_hint, other_schemes, package_id, unknown_hint};
pub use kind::ErrorKind;
use kind::{catalog_kind, check_kind, compile_kind, tokenizer_kind};

/// Length of a text in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCount {
    /// Exact number of tokens.
    Exact(usize),
    /// Lower bound from the number of bytes, for a text that is too long to be tokenized.
    AtLeast(usize),
}

impl fmt::Display for TokenCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(tokens) => write!(f, "{tokens}"),
            Self::AtLeast(tokens) => write!(f, "at least {tokens}"),
        }
    }
}

/// Failure of a request or a job.
///
/// ```
/// use narthex_gateway::{Config, Error, Gateway};
///
/// # fn main() -> Result<(), Error> {
/// # let home = tempfile::tempdir().unwrap();
/// # let config = Config { home: Some(home.path().to_owned()), ..Config::standard() };
/// let gateway = Gateway::open(config)?;
/// match gateway.model("smolm2:135m") {
///     Err(Error::UnknownModel { near, .. }) => assert_eq!(near[0].as_str(), "smollm2:135m"),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of the request is invalid.
    #[error("{message}")]
    Invalid {
        /// Name of the field in the API.
        param: &'static str,
        /// Expected value, found value and next step.
        message: String,
    },
    /// A schema or a grammar of the request cannot be enforced.
    #[error("{field}: {message}")]
    Grammar {
        /// Name of its field in the API: `tools[0].function.parameters`.
        field: Cow<'static, str>,
        /// The refused part, and the reason.
        message: String,
    },
    /// The prompt leaves no room for an answer.
    #[error(
        "This model's maximum context length is {context} tokens. However, your {param} resulted in {prompt} tokens. Please reduce the length of the {param}."
    )]
    ContextLength {
        /// Name of the field with the prompt in the API.
        param: &'static str,
        /// Length of the prompt.
        prompt: TokenCount,
        /// Maximum number of tokens of prompt and answer: the model's context, or the capacity of the KV budget.
        context: usize,
        /// The model's context in tokens.
        of_model: usize,
    },
    /// A text to embed is longer than the model allows.
    #[error(
        "input {index} has {found} tokens, but this model embeds at most {limit}; shorten it or ask for truncation"
    )]
    InputTooLong {
        /// Index of the input.
        index: usize,
        /// Length of the input.
        found: TokenCount,
        /// Maximum length.
        limit: usize,
    },
    /// No model has this name.
    #[error("no model is named {name:?}{}", near_names(name, near))]
    UnknownModel {
        /// Requested name.
        name: String,
        /// Similar names.
        near: Vec<ModelName>,
    },
    /// A caller named a model by a path.
    #[error("expected the name of a model, found a path")]
    PathAsModel,
    /// Another model already has this name.
    #[error("the name {name} is already used by a model from {found}")]
    NameTaken {
        /// Name.
        name: ModelName,
        /// Source of the other model.
        found: String,
    },
    /// The model is known, but not installed.
    #[error("{} is not installed on this machine{}", package_id(name, *scheme), other_schemes(installed))]
    NotInstalled {
        /// Model.
        name: ModelName,
        /// Weight scheme, if it matters.
        scheme: Option<Scheme>,
        /// Schemes in which the model is installed.
        installed: Vec<Scheme>,
        /// Presence of the model in the catalogue.
        in_catalogue: bool,
    },
    /// The model does not support the task.
    #[error("{name} is {}, not {}", is.describe(), wanted.describe())]
    WrongKind {
        /// Model.
        name: ModelName,
        /// The model's kind.
        is: ModelKind,
        /// The required kind.
        wanted: ModelKind,
    },
    /// The model does not read a medium of the conversation.
    #[error("{name} does not read {}, but the conversation has some", kind.plural())]
    MediaNotRead {
        /// Model.
        name: ModelName,
        /// Kind of the medium.
        kind: MediaKind,
        /// Models of the catalogue that read the medium.
        readers: Vec<ModelName>,
    },
    /// The device map does not apply to the model.
    #[error("the device map {map} does not apply to {name}: {reason}")]
    DeviceMap {
        /// Model.
        name: ModelName,
        /// The map.
        map: DeviceMap,
        /// The reason.
        reason: String,
        /// The next step.
        fix: String,
    },
    /// A medium at an address of a conversation cannot be read.
    #[error("{param}: {problem}")]
    RemoteMedia {
        /// Path of the address in the request.
        param: String,
        /// The problem.
        problem: String,
    },
    /// The queue is full.
    #[error("{queued} requests are already waiting; try again in a moment")]
    Overloaded {
        /// Number of waiting requests.
        queued: usize,
        /// Delay before the next attempt.
        retry_after: Duration,
    },
    /// The model was not ready in time.
    #[error("{name} is still loading; try again in a moment")]
    Loading {
        /// Model.
        name: ModelName,
        /// Delay before the next attempt.
        retry_after: Duration,
    },
    /// The model could not be loaded.
    #[error("{name} cannot be loaded: {reason}")]
    LoadFailed {
        /// Model.
        name: ModelName,
        /// Reason.
        reason: String,
        /// The next step.
        hint: Option<String>,
        /// Delay before the next attempt, if it may succeed without a change.
        retry_after: Option<Duration>,
    },
    /// No device accepted the model.
    #[error("no {} can run {name}: {}", wanted(*policy), hint::reasons(passed_over))]
    NoDevice {
        /// Model.
        name: ModelName,
        /// NPU policy of the load.
        policy: NpuPolicy,
        /// Every device with its reason.
        passed_over: Vec<DeviceRefusal>,
    },
    /// A device does not run every node of a graph that it must run completely.
    #[error("{graph}: {} of {nodes} nodes cannot run on {ep}: {fallback}", fallback.count)]
    NotWhole {
        /// File name of the graph.
        graph: String,
        /// Provider.
        ep: Ep,
        /// Number of all nodes.
        nodes: usize,
        /// Nodes that the provider refused.
        fallback: FallbackNodes,
    },
    /// A vendor's compiler failed with a known error code.
    #[error("{error}")]
    VendorCompiler {
        /// Error of the compiler.
        error: DeviceError,
        /// Meaning of the code and the next step.
        hint: String,
    },
    /// Intel's compiler refused a graph or cannot be used.
    #[error("{message}")]
    IntelCompiler {
        /// Reason.
        message: String,
        /// Next step.
        hint: String,
    },
    /// The package was removed or replaced while it was loaded.
    #[error("the package of {0} was replaced while it was loaded; try again")]
    PackageReplaced(ModelName),
    /// The answer failed after it had started.
    #[error("the answer failed: {message}")]
    AnswerFailed {
        /// Kind of the failure.
        kind: ErrorKind,
        /// Reason.
        message: String,
    },
    /// The gateway is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The user interrupted the job.
    #[error("interrupted")]
    Cancelled,
    /// A file could not be read or written.
    #[error("{what}: {source}")]
    Io {
        /// Failed operation with its path.
        what: String,
        /// Reason from the operating system.
        source: std::io::Error,
    },
    /// A package on disk is not usable.
    #[error("the package {name}@{scheme} is not usable: {reason}")]
    BadPackage {
        /// Model.
        name: ModelName,
        /// Weight scheme.
        scheme: Scheme,
        /// Reason.
        reason: String,
    },
    /// The limits on models in memory are reached, and all of these models are in use.
    #[error(
        "there is no room for {name}: at most {models} models{} and {} MiB of KV cache may be in memory, and all models \
         there are in use", weights_total.map(|bytes| format!(", {} MiB of weights", bytes >> 20)).unwrap_or_default(),
        kv_total >> 20
    )]
    ResidencyFull {
        /// The model.
        name: ModelName,
        /// Maximum number of models.
        models: usize,
        /// Maximum bytes of all KV caches.
        kv_total: usize,
        /// Maximum bytes of the weights of several models, if they are bounded.
        weights_total: Option<u64>,
    },
    /// The maximum number of downloads and compiles for requests is in progress.
    #[error("{0} downloads and compiles are already in progress; try again later")]
    TooManyBuilds(usize),
    /// The caller may not use this model.
    #[error("this key may not use the model {name}")]
    ModelNotAllowed {
        /// The model.
        name: ModelName,
    },
    /// Error of the catalogue, the store or a download.
    #[error(transparent)]
    Catalog(#[from] narthex_catalog::Error),
    /// Error of the compiler.
    #[error(transparent)]
    Compile(#[from] narthex_compile::CompileError),
    /// Error of a check.
    #[error(transparent)]
    Check(#[from] narthex_check::CheckError),
    /// Error of a device or of ONNX Runtime.
    #[error(transparent)]
    Device(#[from] narthex_device::DeviceError),
    /// Error of the tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The conversation cannot be turned into a prompt.
    #[error(transparent)]
    Prompt(#[from] narthex_text::prompt::PromptError),
    /// The chat template failed.
    #[error("the model's chat template is not usable: {0}")]
    Template(TemplateError),
    /// Audio that cannot be read.
    #[error(transparent)]
    Audio(#[from] narthex_audio::AudioError),
    /// The program that pronounces texts is missing or failed.
    #[error("{program}, which pronounces texts for this voice, {reason}")]
    Espeak {
        /// The program.
        program: String,
        /// Reason.
        reason: String,
        /// True if the program is not installed.
        is_missing: bool,
    },
    /// The device failed during a step.
    #[error(transparent)]
    Step(#[from] narthex_engine::executor::StepError),
}

fn wanted(policy: NpuPolicy) -> &'static str {
    if policy == NpuPolicy::Require { "NPU" } else { "device" }
}

impl Error {
    /// Creates the error of an invalid field; `message` has the expected and the found value.
    pub fn invalid(param: &'static str, message: impl Display) -> Self {
        Self::Invalid { param, message: format!("{param}: {message}") }
    }

    /// Returns the entry of a device that failed with this error.
    pub(crate) fn to_refusal(&self, device: DeviceName) -> DeviceRefusal {
        let fallback = match self {
            Self::NotWhole { fallback, .. } => fallback.clone(),
            _ => FallbackNodes::default(),
        };
        DeviceRefusal { device, reason: self.to_string(), fix: self.hint(), announced: true, fallback }
    }

    /// Returns the kind of failure.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. }
            | Self::Grammar { .. }
            | Self::ContextLength { .. }
            | Self::InputTooLong { .. }
            | Self::WrongKind { .. }
            | Self::MediaNotRead { .. }
            | Self::RemoteMedia { .. }
            | Self::DeviceMap { .. }
            | Self::NameTaken { .. }
            | Self::Audio(_)
            | Self::Prompt(_) => ErrorKind::BadRequest,
            Self::UnknownModel { .. } | Self::PathAsModel | Self::NotInstalled { .. } => ErrorKind::NotFound,
            Self::Overloaded { .. } | Self::ResidencyFull { .. } | Self::TooManyBuilds(_) => {
                ErrorKind::Overloaded
            }
            Self::ModelNotAllowed { .. } => ErrorKind::Forbidden,
            Self::Loading { .. } | Self::PackageReplaced(_) => ErrorKind::Loading,
            Self::AnswerFailed { kind, .. } => *kind,
            Self::Cancelled | Self::Device(DeviceError::Cancelled) => ErrorKind::Cancelled,
            Self::Tokenizer(error) => tokenizer_kind(error),
            Self::Device(DeviceError::Package { .. }) => ErrorKind::Malformed,
            Self::LoadFailed { .. }
            | Self::ShuttingDown
            | Self::NoDevice { .. }
            | Self::NotWhole { .. }
            | Self::VendorCompiler { .. }
            | Self::IntelCompiler { .. }
            | Self::Device(_)
            | Self::Espeak { .. }
            | Self::Step(_) => ErrorKind::Unavailable,
            Self::Io { source, .. } => ErrorKind::of_io(source),
            Self::Catalog(error) => catalog_kind(error),
            Self::Compile(error) => compile_kind(error),
            Self::Check(error) => check_kind(error),
            Self::BadPackage { .. } | Self::Template(_) => ErrorKind::Malformed,
        }
    }

    /// Returns the API's name of the invalid field, if the error is about one field.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Grammar { field, .. } => Some(field),
            Self::RemoteMedia { param, .. } => Some(param),
            Self::Invalid { param, .. } | Self::ContextLength { param, .. } => Some(param),
            Self::Prompt(_) | Self::MediaNotRead { .. } => Some("messages"),
            Self::Audio(_) => Some("file"),
            Self::DeviceMap { .. } => Some("device_map"),
            Self::InputTooLong { .. } => Some("input"),
            Self::UnknownModel { .. }
            | Self::PathAsModel
            | Self::WrongKind { .. }
            | Self::NotInstalled { .. }
            | Self::ModelNotAllowed { .. } => Some("model"),
            _ => None,
        }
    }

    /// Returns the error of a load on the devices that a request requires. If no device accepts the model, other requests can
    /// still load it elsewhere.
    pub(crate) fn of_device_map(self, name: &ModelName, map: Option<DeviceMap>) -> Self {
        match map {
            Some(map) if self.kind() == ErrorKind::Unavailable => Self::DeviceMap {
                name: name.clone(),
                map,
                reason: self.to_string(),
                fix: self.hint().unwrap_or_else(|| "send the request without a device map".to_owned()),
            },
            _ => self,
        }
    }

    /// Returns the delay before the next attempt, if one may succeed.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Overloaded { retry_after, .. } | Self::Loading { retry_after, .. } => Some(*retry_after),
            Self::LoadFailed { retry_after, .. } => *retry_after,
            Self::ResidencyFull { .. } => Some(Duration::from_secs(5)),
            Self::TooManyBuilds(_) => Some(Duration::from_secs(30)),
            Self::ShuttingDown => Some(Duration::from_secs(10)),
            _ => None,
        }
    }

    /// Returns the next step, if it is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Espeak { is_missing: true, .. } => Some(hint::ESPEAK.to_owned()),
            Self::UnknownModel { name, .. } => Some(unknown_hint(name)),
            Self::PathAsModel => Some(
                "GET /v1/models lists the names, and `narthex pull PATH` installs a file under a name"
                    .to_owned(),
            ),
            Self::ContextLength { context, of_model, .. } if context < of_model => Some(format!(
                "the model's context has {of_model} tokens, but the KV budget holds fewer; start the server with a larger --kv-budget"
            )),
            Self::ResidencyFull { .. } => Some(
                "try again later, or start the server with larger --max-models, --weights-total and --kv-total".to_owned(),
            ),
            Self::ModelNotAllowed { .. } => Some("GET /v1/models lists the models of this key".to_owned()),
            Self::NotInstalled { name, scheme, in_catalogue, .. } => {
                Some(hint::install(name, *scheme, *in_catalogue))
            }
            Self::WrongKind { wanted, .. } => Some(hint::models_of_kind(*wanted)),
            Self::MediaNotRead { kind, readers, .. } => Some(hint::readers(*kind, readers)),
            Self::NameTaken { name, .. } => Some(format!(
                "choose another name with --name, or remove that model with `narthex rm {name}`"
            )),
            Self::DeviceMap { fix, .. } => Some(fix.clone()),
            Self::LoadFailed { hint, .. } => hint.clone(),
            Self::NoDevice { passed_over, .. } => {
                let fix = passed_over.iter().find_map(|passed| passed.fix.clone());
                Some(fix.unwrap_or_else(|| "run `narthex doctor` for the devices of this machine".to_owned()))
            }
            Self::NotWhole { fallback, .. } => fallback.fix(),
            Self::VendorCompiler { hint, .. } | Self::IntelCompiler { hint, .. } => Some(hint.clone()),
            Self::BadPackage { name, scheme, .. } => Some(format!(
                "rebuild it with `narthex rm {name}@{scheme}` and `narthex compile {name} --scheme {scheme}`"
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
        check("owner/repo", "write hf:owner/repo for a hub repository, or ./owner/repo");
        check("hf:owner/repo", "`narthex list");
        check("a/b/c", "write ./a/b/c");
        check("./a", "`narthex list");
        check("hf:owner", "write hf:OWNER/REPO");
        let expected =
            "\"w5\" after smollm2:135m@ is not a scheme: expected w8, w4, f16, f32, w8a16, w8a8 or w4a16; ";
        check("smollm2:135m@w5", expected);
    }

    #[test]
    fn a_model_that_is_not_installed_is_installed_from_its_source() {
        let check = |name: &str, scheme, in_catalogue, command: &str| {
            let name = name.parse().unwrap();
            let error = Error::NotInstalled { name, scheme, installed: Vec::new(), in_catalogue };
            let hint = error.hint().unwrap();
            assert_eq!(hint, format!("`narthex list` shows the installed models; {command}"));
        };
        check("smollm2:135m", None, true, "`narthex pull smollm2:135m` installs this one");
        check("smollm2:135m", Some(Scheme::W4), true, "`narthex pull smollm2:135m@w4` installs this one");
        check("owner/repo", Some(Scheme::W4), false, "`narthex pull hf:owner/repo@w4` installs this one");
        check("owner/repo:v2", None, false, "`narthex pull hf:owner/repo@v2` installs this one");
        check("owner/repo/q8_0", None, false, "`narthex pull hf:owner/repo/q8_0.gguf` installs this one");
        let compile = "`narthex compile PATH --scheme w4` compiles one from its files";
        check("local/tiny", Some(Scheme::W4), false, compile);
        check("mine", None, false, "`narthex compile PATH` compiles one from its files");
    }

    #[test]
    fn the_installed_schemes_of_a_model_are_named() {
        let name = "mine".parse().unwrap();
        let installed = vec![Scheme::W8, Scheme::F16];
        let error = Error::NotInstalled { name, scheme: Some(Scheme::W4), installed, in_catalogue: false };
        assert_eq!(
            error.to_string(),
            "mine@w4 is not installed on this machine, where the model is installed in w8 and f16"
        );
        let hint = error.hint().unwrap();
        assert!(hint.contains("`narthex compile PATH --name mine --scheme w4`"), "{hint}");
    }

    #[test]
    fn the_kv_budget_is_named_where_it_is_the_limit() {
        let prompt = TokenCount::Exact(40);
        let hint =
            |context| Error::ContextLength { param: "messages", prompt, context, of_model: 8192 }.hint();
        assert!(hint(33).unwrap().contains("--kv-budget"));
        assert_eq!(hint(8192), None);
    }

    #[test]
    fn an_unknown_tokenizer_is_unsupported_and_a_broken_one_malformed() {
        let unknown = || TokenizerError::Unknown {
            what: "pre-tokenizer",
            found: "new".to_owned(),
            known: "gpt-2".to_owned(),
        };
        let broken = TokenizerError::Malformed { reason: "it is empty".to_owned() };
        assert_eq!(Error::from(unknown()).kind(), ErrorKind::Unsupported);
        let compiled = Error::from(narthex_compile::CompileError::from(unknown()));
        assert_eq!(compiled.kind(), ErrorKind::Unsupported);
        assert!(compiled.hint().is_some_and(|hint| hint.contains("another conversion")));
        assert_eq!(Error::from(broken).kind(), ErrorKind::Malformed);
    }

    #[test]
    fn a_broken_package_is_rebuilt_in_its_scheme() {
        let name = "smollm2:135m".parse().unwrap();
        let error = Error::BadPackage { name, scheme: Scheme::W4, reason: "it is not whole".to_owned() };
        assert_eq!(error.to_string(), "the package smollm2:135m@w4 is not usable: it is not whole");
        let hint = error.hint().unwrap();
        assert!(hint.contains("rm smollm2:135m@w4") && hint.contains("--scheme w4"), "{hint}");
    }
}
