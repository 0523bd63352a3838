//! Shared support of these tests: a temporary store with tiny models, and a sink that collects a whole answer.

#![allow(dead_code, reason = "each test program uses a part of this")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "../../../device/tests/support/encoders.rs"]
pub(crate) mod encoders;
pub(crate) mod media;
pub(crate) mod warnings;

use std::{fs, path::PathBuf, sync::mpsc, time::Duration};

use narthex_catalog::{runtimes, speech_detector, store::Store};
use narthex_gateway::{
    Cancel, CompileRequest, Config, Gateway, ImportRequest, LoadStart, ReadyModel, disable_telemetry,
    request::{
        ChatRequest, CompletionRequest, Echo, FinishReason, GenerateOptions, GenerationEvent, GenerationSink,
        HistoryOverflow, Message, Prompt, ReadingSettings, ReasoningSettings, Role, Summary, TokenInfo,
        ToolSettings,
    },
};
use narthex_spec::{Ep, Scheme, progress::Quiet};
use narthex_testkit::checkpoint::{self, Gguf, LLAMA_CONTEXT, Meta};
use tempfile::TempDir;

use encoders::{Golden, Head};

/// Seed of the weights of every tiny model.
pub(crate) const SEED: u64 = 7;

/// Context of [`Tiny::long_chat`] in tokens. Its answers take seconds, so that a test can act in the middle of one.
pub(crate) const LONG_CONTEXT: usize = 32_768;

/// Chat template: ChatML with reasoning.
const THINKING_TEMPLATE: &str = concat!(
    r"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}",
    r"{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}",
    r"{% if enable_thinking is defined and enable_thinking is false %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}",
);

/// Special tokens of the tiny Llama, some of which end an answer.
pub(crate) const SPECIAL: [u32; 3] = [0, 1, 2];

/// Maximum time for one wait of a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Temporary store, which is removed when this is dropped.
pub(crate) struct Tiny {
    folder: TempDir,
}

/// Returns the library of ONNX Runtime as the product finds it.
fn library() -> PathBuf {
    let library = runtimes::core_library(&Store::open(None).unwrap()).unwrap();
    library.expect("no ONNX Runtime: run `cargo xtask test` once, which installs it, or set ORT_DYLIB_PATH")
}

impl Tiny {
    /// Creates an empty store.
    pub(crate) fn new() -> Self {
        disable_telemetry();
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// Returns the store's folder.
    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// Links the QNN runtime of the tests' shared store into this store.
    #[cfg(unix)]
    pub(crate) fn with_qnn(&self) {
        let info = runtimes::locate(&Store::open(None).unwrap(), Ep::Qnn);
        let dir =
            info.expect("no QNN runtime: run `cargo xtask test --only store` once, which installs it").dir;
        let own = self.home().join("runtimes");
        fs::create_dir_all(&own).unwrap();
        std::os::unix::fs::symlink(&dir, own.join(dir.file_name().unwrap())).unwrap();
    }

    /// Links the detector of speech of the tests' shared store into this store.
    #[cfg(unix)]
    pub(crate) fn with_speech_detector(&self) {
        let file = speech_detector::locate(&Store::open(None).unwrap());
        let file =
            file.expect("no detector of speech: run `cargo xtask test --only store` once, which installs it");
        let folder =
            file.ancestors().find(|folder| folder.parent().is_some_and(|it| it.ends_with("checkpoints")));
        let own = self.home().join("checkpoints");
        fs::create_dir_all(&own).unwrap();
        std::os::unix::fs::symlink(folder.unwrap(), own.join(folder.unwrap().file_name().unwrap())).unwrap();
    }

    /// Returns settings for a gateway over this store.
    pub(crate) fn config(&self) -> Config {
        Config { home: Some(self.home()), runtime: Some(library()), threads: 1, ..Config::standard() }
    }

    /// Opens a gateway over this store.
    pub(crate) fn gateway(&self) -> Gateway {
        Gateway::open(self.config()).unwrap()
    }

    /// Compiles the tiny Llama in `f32`, so that no scheme rounds its weights. Returns its name.
    pub(crate) fn chat(&self) -> String {
        self.llama("tiny", LLAMA_CONTEXT)
    }

    /// Compiles the tiny Llama with [`LONG_CONTEXT`]. Returns its name.
    pub(crate) fn long_chat(&self) -> String {
        self.llama("long", LONG_CONTEXT)
    }

    /// Compiles the tiny Gemma 3 with a vision tower in `f32`. Returns its name.
    pub(crate) fn vision_chat(&self) -> String {
        let folder = self.folder.path().join("tiny-gemma");
        checkpoint::tiny_gemma_with_vision(&folder).unwrap();
        self.compile(folder)
    }

    /// Compiles the tiny Gemma 3n with its towers in `f32`. Returns its name.
    pub(crate) fn gemma3n_chat(&self) -> String {
        let folder = self.folder.path().join("tiny-gemma3n");
        checkpoint::tiny_gemma3n(&folder).unwrap();
        self.compile(folder)
    }

    /// Compiles the tiny Idefics3 in `f32`. Returns its name.
    pub(crate) fn tiled_vision_chat(&self) -> String {
        let folder = self.folder.path().join("tiny-idefics3");
        checkpoint::tiny_idefics3(&folder).unwrap();
        self.compile(folder)
    }

    /// Compiles the tiny BERT. Returns its name.
    pub(crate) fn embedding(&self) -> String {
        let folder = self.folder.path().join("tiny-bert");
        fs::create_dir_all(&folder).unwrap();
        checkpoint::tiny_bert_safetensors(&folder, SEED).unwrap();
        self.compile(folder)
    }

    /// Compiles the tiny BERT with the prompts `query` (the default) and `none`. Returns its name.
    pub(crate) fn prompted_embedding(&self) -> String {
        let folder = self.folder.path().join("tiny-prompted");
        fs::create_dir_all(&folder).unwrap();
        checkpoint::tiny_bert_safetensors(&folder, SEED).unwrap();
        let settings = r#"{"prompts": {"query": "what is ", "none": ""}, "default_prompt_name": "query"}"#;
        fs::write(folder.join("config_sentence_transformers.json"), settings).unwrap();
        self.compile(folder)
    }

    /// Compiles a tiny Whisper with this transcript. Returns its name.
    pub(crate) fn whisper(&self, text: &str) -> String {
        self.compile(self.whisper_checkpoint(text))
    }

    /// Returns the folder of a tiny Whisper's checkpoint, for tests that compile it themselves.
    pub(crate) fn whisper_checkpoint(&self, text: &str) -> PathBuf {
        let folder = self.folder.path().join("tiny-whisper");
        fs::create_dir_all(&folder).unwrap();
        checkpoint::tiny_whisper_safetensors(&folder, text).unwrap();
        folder
    }

    /// Compiles a tiny Whisper whose likeliest transcript begins with `other`, while its likeliest first letter is that of
    /// `text`. Returns its name.
    pub(crate) fn whisper_with_choice(&self, text: &str, other: u8) -> String {
        let folder = self.folder.path().join("tiny-whisper-choice");
        fs::create_dir_all(&folder).unwrap();
        checkpoint::tiny_whisper_with_choice(&folder, text, other).unwrap();
        self.compile(folder)
    }

    /// Compiles a tiny encoder of a family with a head. Returns its name.
    pub(crate) fn encoder(&self, family: &'static str, head: Head) -> String {
        let folder = self.folder.path().join(format!("tiny-{family}-{head:?}").to_lowercase());
        fs::rename(Golden::read(family).checkpoint(head).keep(), &folder).unwrap();
        self.compile(folder)
    }

    /// Imports a tiny export from the compiler's tests. Returns its name.
    pub(crate) fn import(&self, export: &str) -> String {
        let path =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../compile/tests/goldens/import").join(export);
        let request = ImportRequest { path, name: None, file: None, pooling: None };
        let imported = self.gateway().import(&request, &Quiet, &Cancel::new());
        imported.unwrap_or_else(|error| panic!("{error}")).1.name.to_string()
    }

    /// Imports a tiny model that transcribes speech from [`speech_goldens`]. Returns its name.
    pub(crate) fn transcriber(&self, folder: &str) -> String {
        let request = ImportRequest { path: speech_goldens(folder), name: None, file: None, pooling: None };
        let imported = self.gateway().import(&request, &Quiet, &Cancel::new());
        imported.unwrap_or_else(|error| panic!("{error}")).1.name.to_string()
    }

    /// Returns the path of the tiny Llama's checkpoint, for tests that compile it themselves.
    pub(crate) fn checkpoint(&self) -> String {
        self.gguf("tiny", LLAMA_CONTEXT).to_str().unwrap().to_owned()
    }

    /// Checkpoint of the tiny Llama with [`LONG_CONTEXT`].
    pub(crate) fn long_checkpoint(&self) -> String {
        self.gguf("long", LONG_CONTEXT).to_str().unwrap().to_owned()
    }

    /// Compiles a tiny Llama whose template begins every answer with a block of reasoning, unless it is switched off.
    pub(crate) fn thinking_chat(&self) -> String {
        let mut gguf = checkpoint::tiny_llama(SEED);
        gguf.set("llama.context_length", Meta::U32(LONG_CONTEXT as u32));
        gguf.set("tokenizer.chat_template", Meta::Text(THINKING_TEMPLATE.into()));
        self.gguf_chat("thinking", &gguf)
    }

    /// Compiles a checkpoint under a name. Returns the name.
    pub(crate) fn gguf_chat(&self, name: &str, gguf: &Gguf) -> String {
        let file = self.folder.path().join(format!("{name}.gguf"));
        fs::write(&file, gguf.to_bytes()).unwrap();
        self.compile(file)
    }

    fn llama(&self, name: &str, context: usize) -> String {
        self.compile(self.gguf(name, context))
    }

    fn gguf(&self, name: &str, context: usize) -> PathBuf {
        let mut gguf = checkpoint::tiny_llama(SEED);
        gguf.set("llama.context_length", Meta::U32(context as u32));
        let file = self.folder.path().join(format!("{name}.gguf"));
        fs::write(&file, gguf.to_bytes()).unwrap();
        file
    }

    /// Compiles a checkpoint in `f32`. Returns its name.
    pub(crate) fn compile(&self, checkpoint: PathBuf) -> String {
        let request = CompileRequest::new(Scheme::F32);
        let compiled = self.gateway().compile(checkpoint.to_str().unwrap(), &request, &Quiet, &Cancel::new());
        compiled.unwrap_or_else(|error| panic!("{error}")).1.name.to_string()
    }

    /// Returns the folder of an installed package.
    pub(crate) fn package(&self, model: &str) -> PathBuf {
        let name: narthex_spec::ModelName = model.parse().unwrap();
        Store::open(Some(self.home())).unwrap().package(&name, Scheme::F32).unwrap()
    }
}

/// Returns the folder of a tiny model that transcribes speech, such as `nemo/tdt`.
pub(crate) fn speech_goldens(folder: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../gateway/tests/goldens").join(folder)
}

/// Returns options for a greedy answer of exactly `max_tokens` tokens. The tokens that end an answer are suppressed.
pub(crate) fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        temperature: Some(0.0),
        max_tokens: Some(max_tokens),
        logit_bias: SPECIAL.map(|token| (token, -100.0)).into(),
        ..GenerateOptions::api_defaults()
    }
}

/// Returns a chat request with one user message.
pub(crate) fn question(text: &str, options: GenerateOptions) -> ChatRequest {
    let messages = vec![Message::new(Role::User, text.to_owned())];
    ChatRequest {
        messages,
        tools: ToolSettings::default(),
        reasoning: ReasoningSettings::default(),
        overflow: HistoryOverflow::Refuse,
        reading: ReadingSettings::default(),
        options,
    }
}

/// Returns a completion request.
pub(crate) fn text(prompt: &str, options: GenerateOptions) -> CompletionRequest {
    CompletionRequest { prompt: Prompt::Text(prompt.to_owned()), echo: Echo::Completion, options }
}

/// Returns a sink and the receiver of its events.
pub(crate) fn events() -> (Box<dyn GenerationSink>, mpsc::Receiver<GenerationEvent>) {
    let (sender, receiver) = mpsc::channel();
    (Box::new(sender), receiver)
}

/// Complete answer of one choice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Arguments of the tool calls.
    pub(crate) arguments: String,
    pub(crate) tokens: Vec<TokenInfo>,
    pub(crate) reason: FinishReason,
    pub(crate) summary: Summary,
}

/// Waits for the end of an answer with one choice.
pub(crate) fn whole(events: &mpsc::Receiver<GenerationEvent>) -> Answer {
    let (mut answer, mut arguments, mut infos, mut end) = (String::new(), String::new(), Vec::new(), None);
    loop {
        match events.recv_timeout(PATIENCE).expect("an answer ends with Done or Failed") {
            GenerationEvent::Started { .. } | GenerationEvent::Reasoning { .. } => {}
            GenerationEvent::ToolCall { delta, .. } => {
                arguments.push_str(&delta.arguments);
            }
            GenerationEvent::Text { text, tokens, .. } => {
                answer.push_str(&text);
                infos.extend(tokens);
            }
            GenerationEvent::Finished { reason, .. } => end = Some(reason),
            GenerationEvent::Done(summary) => {
                return Answer { text: answer, arguments, tokens: infos, reason: end.unwrap(), summary };
            }
            GenerationEvent::Failed { message, .. } => panic!("{message}"),
        }
    }
}

/// Sends a chat request and waits for the whole answer.
pub(crate) fn ask(gateway: &Gateway, model: &str, request: ChatRequest) -> Answer {
    let (sink, events) = events();
    gateway.chat(model, request, sink).unwrap_or_else(|error| panic!("{error}"));
    whole(&events)
}

/// Sends a completion request and waits for the whole text.
pub(crate) fn complete(gateway: &Gateway, model: &str, request: CompletionRequest) -> Answer {
    let (sink, events) = events();
    gateway.complete(model, request, sink).unwrap_or_else(|error| panic!("{error}"));
    whole(&events)
}

/// Loads a model.
pub(crate) fn ready(gateway: &Gateway, model: &str) -> ReadyModel {
    match gateway.start_load(model).unwrap() {
        LoadStart::Ready(model) => model,
        LoadStart::Pending(load) => {
            let (sender, ended) = mpsc::channel();
            let _place = load.on_end(move || sender.send(()).unwrap()).unwrap();
            ended.recv().unwrap();
            load.model().unwrap()
        }
    }
}

/// Waits until `done` returns true.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !done() {
        assert!(std::time::Instant::now() < deadline, "{what} did not happen in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
