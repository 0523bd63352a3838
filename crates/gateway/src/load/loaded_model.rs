//! A model in memory: its package, its chat template, and the engine or encoder queue that runs it.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use narthex_engine::{
    executor::{Executor, Limits},
    supervise::{NumericsMonitor, SupervisedSpeech},
    worker::{Drain, Engine, EngineConfig, EngineExtensions, StorageProgress},
};
use narthex_spec::{DeviceName, DevicePlacement, ModelName, ReasoningFormat, ToolFormat, manifest::Manifest};
use narthex_text::{
    grammar::{CompileScope, Grammar, GrammarCompiler, GrammarError, GrammarMatcher},
    template::{Abilities, ChatTemplate},
    tokenizer::Tokenizer,
};

use crate::{
    config::{Config, KV_STEP},
    encoder_queue::{EncoderQueue, QueueLength},
    error::Error,
    library::package::{self, Package},
    load::{
        draft_model::{self, OpenDraftModel},
        media_towers::MediaTowers,
        open_model::OpenModel,
        picture_tower::PictureTower,
        prefix_cache,
        request::LoadRequest,
        sessions::Model,
        sound_tower::SoundTower,
        speech_detector::DetectorSource,
        tokenizer_reader::TokenizerReader,
        transcriber::{self, OpenTranscriber, Recognizer, Transcriber},
        voice::{self, OpenVoice, Voice},
    },
    model_settings::ResidenceSettings,
    report::{
        kv_cache,
        models::{
            CertifiedLoss, DeviceRefusal, EngineCounters, KvCacheStatus, ModelKind, ModelState, ModelStatus,
            NumericsCheck,
        },
        placement::{AnsweringDevice, PlacementReport},
    },
    turn_queue::{QueueLimits, TurnQueue},
};

/// Delay before a client should retry when the queue of a model that transcribes is full.
const SPEECH_RETRY_AFTER: Duration = Duration::from_secs(5);

/// Delay before a client should retry when the queue of a voice is full.
const VOICE_RETRY_AFTER: Duration = Duration::from_secs(1);

/// A model that answers requests.
pub(crate) struct LoadedModel {
    pub(crate) package: Arc<Package>,
    /// Tokenizer; `None` for voices and for imported models that transcribe.
    tokenizer: Option<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) template_abilities: Abilities,
    /// Readers of pictures and sounds.
    towers: MediaTowers,
    /// Format of tool calls.
    pub(crate) tool_format: ToolFormat,
    /// Maximum number of sequences that run or wait.
    pub(crate) capacity: usize,
    /// Time that it stays in memory.
    pub(crate) residence: ResidenceSettings,
    worker: Worker,
    /// Compiled for the first grammar.
    grammars: OnceLock<Result<GrammarCompiler, GrammarError>>,
    placement: PlacementReport,
    /// KV cache of a decoder on the CPU.
    kv_cache: Option<KvCacheStatus>,
    passed_over: Vec<DeviceRefusal>,
    numerics: Vec<NumericsCheck>,
    monitors: Vec<NumericsMonitor>,
    /// Package of the draft model.
    draft: Option<Arc<Package>>,
    /// Detector of speech, for models that transcribe it.
    pub(crate) detector: DetectorSource,
    /// Reservation of the model's memory. It is the last field, so that it is dropped after everything that uses the memory.
    _reservation: Option<Arc<dyn Send + Sync>>,
}

/// The thread that runs a model.
enum Worker {
    Engine(Engine),
    Encoder(EncoderQueue),
    /// The threads of the requests run the model.
    Speech(TurnQueue<SupervisedSpeech>),
    /// The threads of the requests run the voice.
    Voice(Box<TurnQueue<Voice>>),
    /// The threads of the requests run the model.
    Transcriber(Box<TurnQueue<Transcriber>>),
}

impl LoadedModel {
    /// Opens the package with `open` and starts the thread that runs it and its draft model. `tool_format` replaces the
    /// package's.
    pub(crate) fn load(
        request: &LoadRequest<'_>,
        tokenizer: TokenizerReader,
        draft: Option<OpenDraftModel>,
        tool_format: Option<ToolFormat>,
        open: impl FnOnce(&LoadRequest<'_>) -> Result<OpenModel, Error>,
    ) -> Result<Self, Error> {
        let template = read_template(&request.package)?;
        let Manifest { name, chat, provenance, .. } = &request.package.manifest;
        let own = chat.as_ref().and_then(|chat| chat.tools);
        let tools = ToolFormatChoice::new(own, [name.as_str(), &provenance.source], tool_format);
        let abilities = template.as_ref().map_or_else(Abilities::default, ChatTemplate::abilities);
        let OpenModel { model, mut report, passed_over, numerics, monitors } = open(request)?;
        let tokenizer = tokenizer.finish()?;
        let model = match model {
            Model::Decoder(executor) => Model::Decoder(executor.with_vocabulary(tokenizer.vocab_size())),
            other @ (Model::Encoder(_) | Model::Speech(_)) => other,
        };
        let config = &request.config;
        let mut towers = MediaTowers::default();
        if let Model::Decoder(executor) = &model {
            check_context(config, &request.package.key.name, executor.limits())?;
            if let Some(width) = executor.media_width() {
                if let Some(tower) = PictureTower::open(request, &tokenizer, width)? {
                    report.towers.push(tower.report().clone());
                    towers.push(tower);
                }
                if let Some(tower) = SoundTower::open(request, &tokenizer, width)? {
                    report.towers.push(tower.report().clone());
                    towers.push(tower);
                }
            }
        }
        let is_on_cpu = report.place().devices().contains(&DeviceName::Cpu);
        let is_decoder = matches!(model, Model::Decoder(_));
        let kv_cache = (is_on_cpu && is_decoder)
            .then(|| kv_cache::status(config.kv_cache_dtype, &request.store, &request.package.folder));

        Ok(Self {
            package: request.package.clone(),
            tokenizer: Some(tokenizer),
            towers,
            template_abilities: if tools.is_foreign { Abilities::default() } else { abilities },
            tool_format: tools.format,
            template,
            capacity: config.slots.max(1).saturating_add(config.max_queue),
            residence: ResidenceSettings::default(),
            draft: draft.as_ref().map(|draft| draft.package.clone()),
            detector: DetectorSource::of(request),
            worker: Worker::start(model, draft, request, &report)?,
            grammars: OnceLock::new(),
            placement: report,
            kv_cache: kv_cache.flatten(),
            passed_over,
            numerics,
            monitors,
            _reservation: request.reservation.clone(),
        })
    }

    /// Opens a voice, or an imported model that transcribes.
    ///
    /// # Errors
    /// As [`voice::open`] and [`transcriber::open`].
    pub(crate) fn load_without_engine(request: &LoadRequest<'_>) -> Result<Self, Error> {
        let limits = |retry_after| QueueLimits { waiting: request.config.max_queue, retry_after };
        if request.manifest().transcriber.is_some() {
            let OpenTranscriber { transcriber, report } = transcriber::open(request)?;
            let queue = TurnQueue::new(transcriber, limits(SPEECH_RETRY_AFTER));
            return Ok(Self::without_engine(request, Worker::Transcriber(Box::new(queue)), report));
        }
        let OpenVoice { voice, report } = voice::open(request)?;
        let queue = TurnQueue::new(voice, limits(VOICE_RETRY_AFTER));
        Ok(Self::without_engine(request, Worker::Voice(Box::new(queue)), report))
    }

    fn without_engine(request: &LoadRequest<'_>, worker: Worker, placement: PlacementReport) -> Self {
        Self {
            package: request.package.clone(),
            tokenizer: None,
            towers: MediaTowers::default(),
            template_abilities: Abilities::default(),
            tool_format: ToolFormat::Hermes,
            template: None,
            capacity: request.config.max_queue.saturating_add(1),
            draft: None,
            detector: DetectorSource::of(request),
            worker,
            grammars: OnceLock::new(),
            placement,
            kv_cache: None,
            passed_over: Vec::new(),
            numerics: Vec::new(),
            monitors: Vec::new(),
            residence: ResidenceSettings::default(),
            _reservation: request.reservation.clone(),
        }
    }

    pub(crate) fn name(&self) -> &ModelName {
        &self.package.key.name
    }

    pub(crate) fn kind(&self) -> ModelKind {
        ModelKind::of(&self.package.manifest)
    }

    /// Returns the engine, or an error with the model's actual kind.
    pub(crate) fn engine(&self) -> Result<&Engine, Error> {
        match &self.worker {
            Worker::Engine(engine) => Ok(engine),
            _ => Err(self.wrong_kind(ModelKind::Chat)),
        }
    }

    /// Returns the encoder's queue of a model of this kind, or an error with the model's actual kind.
    pub(crate) fn encoder(&self, wanted: ModelKind) -> Result<&EncoderQueue, Error> {
        match &self.worker {
            Worker::Encoder(encoder) if self.kind() == wanted => Ok(encoder),
            _ => Err(self.wrong_kind(wanted)),
        }
    }

    /// Returns the queue of a model that transcribes speech, or an error with the model's actual kind.
    pub(crate) fn recognizer(&self) -> Result<Recognizer<'_>, Error> {
        match &self.worker {
            Worker::Speech(speech) => Ok(Recognizer::Whisper(speech)),
            Worker::Transcriber(transcriber) => Ok(Recognizer::Imported(transcriber)),
            _ => Err(self.wrong_kind(ModelKind::Transcription)),
        }
    }

    /// Returns the queue of a voice, or an error with the model's actual kind.
    pub(crate) fn voice(&self) -> Result<&TurnQueue<Voice>, Error> {
        match &self.worker {
            Worker::Voice(voice) => Ok(voice),
            _ => Err(self.wrong_kind(ModelKind::Speech)),
        }
    }

    /// Returns the tokenizer, or an error for a model without an engine.
    pub(crate) fn tokenizer(&self) -> Result<&Tokenizer, Error> {
        self.tokenizer.as_ref().ok_or_else(|| self.wrong_kind(ModelKind::Chat))
    }

    /// Returns the readers of pictures and sounds.
    pub(crate) fn towers(&self) -> &MediaTowers {
        &self.towers
    }

    fn wrong_kind(&self, wanted: ModelKind) -> Error {
        Error::WrongKind { name: self.name().clone(), is: self.kind(), wanted }
    }

    /// Returns the format of the model's reasoning, if it reasons.
    pub(crate) fn reasoning_format(&self) -> Option<ReasoningFormat> {
        self.package.manifest.chat.as_ref().and_then(|chat| chat.reasoning)
    }

    /// Compiles a grammar for this model's vocabulary.
    pub(crate) fn compile_grammar(
        &self,
        grammar: &Grammar,
        scope: &CompileScope<'_>,
    ) -> Result<GrammarMatcher, GrammarError> {
        let Some(tokenizer) = &self.tokenizer else {
            return Err(GrammarError::Unusable { reason: "a model for speech generates no text".to_owned() });
        };
        let stop = self.package.manifest.stop_tokens();
        let compiler = self.grammars.get_or_init(|| GrammarCompiler::new(tokenizer, stop));
        compiler.as_ref().map_err(Clone::clone)?.compile_while(grammar, scope)
    }

    pub(crate) fn placement(&self) -> &PlacementReport {
        &self.placement
    }

    pub(crate) fn status(&self) -> ModelStatus {
        ModelStatus {
            name: self.name().clone(),
            kind: Some(self.kind()),
            scheme: self.package.key.scheme,
            state: ModelState::Ready,
            placement: Some(self.placement.clone()),
            passed_over: self.passed_over.clone(),
            engine: Some(self.counters()),
            max_length: Some(self.max_length()),
            kv_cache: self.kv_cache,
            certificate: self.package.manifest.certificate.as_ref().map(CertifiedLoss::from),
            numerics: self.numerics.clone(),
            package_bytes: Some(self.package.bytes() + self.draft.as_deref().map_or(0, Package::bytes)),
            draft_model: self.draft.as_deref().map(draft_model::status),
            expires_in: None,
        }
    }

    /// Returns the maximum number of tokens of a conversation or a text.
    fn max_length(&self) -> usize {
        match &self.worker {
            Worker::Engine(engine) => engine.limits().longest(),
            _ => self.package.manifest.max_length,
        }
    }

    fn counters(&self) -> EngineCounters {
        let QueueLength { running, waiting } = match &self.worker {
            Worker::Engine(engine) => return counters(engine),
            Worker::Encoder(queue) => queue.length(),
            Worker::Speech(queue) => queue.length(),
            Worker::Voice(queue) => queue.length(),
            Worker::Transcriber(queue) => queue.length(),
        };
        EngineCounters { running, waiting, ..EngineCounters::default() }
    }

    /// Releases the memory of prefixes of earlier prompts.
    pub(crate) fn release_prefixes(&self) {
        if let Worker::Engine(engine) = &self.worker {
            engine.release_prefixes();
        }
    }

    /// Returns whether the model cannot answer: a device computed values that are not finite, the model's thread has ended,
    /// or a tower has panicked.
    pub(crate) fn is_broken(&self) -> bool {
        let has_ended = match &self.worker {
            Worker::Engine(engine) => engine.has_ended(),
            Worker::Encoder(queue) => queue.has_ended(),
            Worker::Speech(queue) => queue.has_ended(),
            Worker::Voice(queue) => queue.has_ended(),
            Worker::Transcriber(queue) => queue.has_ended(),
        };
        has_ended || self.towers.has_ended() || self.monitors.iter().any(NumericsMonitor::has_failed)
    }

    /// Returns whether the packages in the store are still the ones in memory.
    pub(crate) fn is_current(&self) -> bool {
        self.package.is_current() && self.draft.as_ref().is_none_or(|draft| draft.is_current())
    }

    /// Returns the devices that the model runs on.
    pub(crate) fn place(&self) -> DevicePlacement {
        self.placement.place()
    }

    /// Returns the device of the answers, with the preferred devices that refused the model.
    pub(crate) fn ran_on(&self) -> AnsweringDevice {
        let announced = self.passed_over.iter().filter(|passed| passed.announced);
        let reasons: Vec<String> =
            announced.map(|passed| format!("{}: {}", passed.device, passed.reason)).collect();
        AnsweringDevice {
            device: self.placement.name(),
            placement: self.placement.summary(),
            fallback: (!reasons.is_empty()).then(|| reasons.join("; ")),
        }
    }

    /// Stops the worker. Running sequences finish or end, depending on `drain`.
    pub(crate) fn shutdown(&self, drain: Drain) {
        match &self.worker {
            Worker::Engine(engine) => engine.shutdown(drain),
            Worker::Encoder(queue) => queue.shutdown(drain),
            Worker::Speech(queue) => queue.shutdown(drain),
            Worker::Voice(queue) => queue.shutdown(drain),
            Worker::Transcriber(queue) => queue.shutdown(drain),
        }
    }
}

/// Format of a model's tool calls.
#[derive(Debug, PartialEq, Eq)]
struct ToolFormatChoice {
    format: ToolFormat,
    /// Set if the template uses another format, so that tools and calls are written without it.
    is_foreign: bool,
}

impl ToolFormatChoice {
    /// Returns the format in the settings, else that of the package, else the one that a written
    /// prompt requests. `own` is that of the package's template; `names` are those of the model and of its checkpoint.
    fn new(own: Option<ToolFormat>, names: [&str; 2], chosen: Option<ToolFormat>) -> Self {
        let usual = match own {
            Some(ToolFormat::Hermes) if names.iter().any(|name| writes_fences(name)) => {
                Some(ToolFormat::HermesFenced)
            }
            other => other,
        };
        let format = chosen.or(usual).unwrap_or(ToolFormat::Hermes);
        Self { format, is_foreign: own.is_some_and(|own| own != format.of_template()) }
    }
}

/// Returns true for models that write their calls in code fences, whatever their template asks for. Only their names
/// distinguish them from others with the same template.
fn writes_fences(name: &str) -> bool {
    name.to_ascii_lowercase().contains("qwen2.5-coder")
}

impl Worker {
    fn start(
        model: Model,
        draft: Option<OpenDraftModel>,
        request: &LoadRequest<'_>,
        placement: &PlacementReport,
    ) -> Result<Self, Error> {
        let config = &request.config;
        match model {
            Model::Decoder(executor) => {
                let mut settings = EngineConfig::for_limits(executor.limits());
                settings.max_queue = config.max_queue;
                settings.context = config.context.unwrap_or(usize::MAX);
                settings.token_latency = config.token_latency;
                settings.speculation = config.speculation;
                let start = Instant::now();
                let executor = executor.timed_by(move || start.elapsed());
                let prefix_cache = config.prefix_cache.as_ref();
                let storage_progress = StorageProgress::default();
                let extensions = EngineExtensions {
                    draft_model: draft.map(|draft| draft.for_engine(request.package.key.name.clone())),
                    prefix_storage: prefix_cache.and_then(|prefix_cache| {
                        let limits = executor.limits();
                        prefix_cache::open(prefix_cache, request, placement, limits, &storage_progress)
                    }),
                    storage_progress,
                    reservation: request.reservation.clone(),
                };

                let engine = Engine::start_with(executor, extensions, settings);
                Ok(Self::Engine(engine.map_err(|source| Error::Io {
                    what: "cannot start the engine's thread".to_owned(),
                    source,
                })?))
            }
            Model::Encoder(encoder) => {
                Ok(Self::Encoder(EncoderQueue::start(Box::new(encoder), config.max_queue)?))
            }
            Model::Speech(speech) => {
                let limits = QueueLimits { waiting: config.max_queue, retry_after: SPEECH_RETRY_AFTER };
                Ok(Self::Speech(TurnQueue::new(speech, limits)))
            }
        }
    }
}

/// Refuses a KV budget that holds no conversation, or fewer tokens than the configured context.
fn check_context(config: &Config, name: &ModelName, limits: &Limits) -> Result<(), Error> {
    let Limits { context, kv, .. } = *limits;
    if let Some(requested) = config.context.filter(|&requested| requested > context) {
        tracing::warn!("{name} has a context of {context} tokens, fewer than the configured {requested}");
    }
    let least = config.context.unwrap_or(KV_STEP).min(context);
    if limits.longest() >= least {
        return Ok(());
    }

    let needed = kv.bytes(1, kv.capacity_for(least, context)).div_ceil(1 << 20);
    let tokens = kv.tokens_alone(context);
    let message = format!(
        "expected a KV budget of at least {needed} MiB for {least} tokens of {name}, found {} MiB, which hold {tokens} \
         tokens; raise --kv-budget{}",
        kv.budget.div_ceil(1 << 20),
        if config.context.is_some() { " or lower --context" } else { "" }
    );
    Err(Error::invalid("kv_budget", message))
}

/// Reads the chat template of a package, if it has one.
fn read_template(package: &Package) -> Result<Option<ChatTemplate>, Error> {
    let Some(chat) = &package.manifest.chat else { return Ok(None) };
    let source = package::read_text(&package.folder, &chat.template)?;
    Ok(Some(ChatTemplate::new(&source, chat.special_tokens.clone())?))
}

fn counters(engine: &Engine) -> EngineCounters {
    let stats = engine.stats();
    EngineCounters {
        running: stats.running,
        waiting: stats.waiting,
        slots: stats.slots,
        kv_used_bytes: stats.kv_used_bytes,
        prefix_bytes: stats.prefix_bytes,
        kv_budget_bytes: stats.kv_budget_bytes,
        kv_token_bytes: stats.kv_token_bytes,
        kv_slot_bytes: stats.kv_slot_bytes,
        prompt_tokens: stats.prompt_tokens,
        cached_tokens: stats.cached_tokens,
        restored_tokens: stats.restored_tokens,
        generated_tokens: stats.generated_tokens,
        accepted_tokens: stats.accepted_tokens,
        rejected_tokens: stats.rejected_tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chosen_format_replaces_that_of_the_template() {
        use ToolFormat::{Granite, Hermes, Mistral};
        let check = |own, chosen, format, is_foreign| {
            let choice = ToolFormatChoice::new(own, ["tiny", "local tiny.gguf"], chosen);
            assert_eq!(choice, ToolFormatChoice { format, is_foreign });
        };
        check(None, None, Hermes, false);
        check(Some(Granite), None, Granite, false);
        check(Some(Granite), Some(Granite), Granite, false);
        check(Some(Granite), Some(Mistral), Mistral, true);
        // A template whose format is not known may still write tools.
        check(None, Some(Mistral), Mistral, false);
    }

    #[test]
    fn only_qwen_coder_writes_calls_in_fences() {
        use ToolFormat::{Granite, Hermes, HermesFenced};
        let check = |names, own, chosen, format| {
            assert_eq!(
                ToolFormatChoice::new(own, names, chosen),
                ToolFormatChoice { format, is_foreign: false }
            );
        };
        let coder = ["mine", "hf:Qwen/Qwen2.5-Coder-0.5B-Instruct"];
        check(coder, Some(Hermes), None, HermesFenced);
        check(["qwen2.5-coder:0.5b", ""], Some(Hermes), None, HermesFenced);
        check(["qwen2.5:0.5b", "hf:Qwen/Qwen2.5-0.5B-Instruct"], Some(Hermes), None, Hermes);
        check(coder, Some(Granite), None, Granite);
        check(coder, Some(Hermes), Some(Hermes), Hermes);
        check(["tiny", ""], Some(Hermes), Some(HermesFenced), HermesFenced);
    }
}
