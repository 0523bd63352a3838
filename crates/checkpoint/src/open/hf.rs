//! Opening of folders in the layout of the `transformers` library: finds the family, whose reader interprets
//! `config.json`.

use std::path::{Path, PathBuf};

use narthex_spec::{
    arch::{
        Architecture, AttentionDirection, ClassifierLayers, DecoderArch, EmbedderArch, EncoderHead, Pooling,
        VisionArch,
    },
    manifest::Prompts,
};
use serde::Deserialize;
use serde_json::Value;

use super::PublishedEmbedding;
use crate::{
    adapter::{Adapter, AdapterFormat, adapted},
    checkpoint::{Checkpoint, TokenizerSource},
    error::Result,
    family::{Decoder, HfFamily, HfReader, hf_family},
    hf::{
        CONFIG, classifier,
        config::Config,
        conformer, encoder,
        folder::Folder,
        pooling::{self, DenseModule, SentenceEmbedding},
        prompts, speech, tokenizer, vision,
    },
    layout::Layout,
    limits::{check_architecture, unsupported},
    packed::{self, PackedFormat},
    pooling::PoolingSource,
    required_tensors,
    reranker::{self, AnswerReranker},
    safetensors,
    stored_tensor::divide_stacks,
    tensors::Tensors,
};

/// Returns the architecture from a folder's settings. It needs [`CONFIG`] and no weights.
pub(super) fn architecture(path: &Path) -> Result<Architecture> {
    let mut folder = Folder::new(path);
    let config = Config::read(&mut folder)?;
    let HfSettings { architecture, reranker, .. } = settings(&mut folder, &config)?;
    Ok(compiled(architecture, reranker.as_ref()))
}

/// Settings of a folder.
struct HfSettings {
    family: &'static HfFamily,
    architecture: Architecture,
    layout: Layout,
    /// Maximum sequence length, in tokens.
    max_length: usize,
    /// Source of the pooling, for embedding models.
    pooling: PoolingSource,
    /// Linear layers between pooling and vector, each in a folder.
    dense: Vec<DenseModule>,
    /// Settings of a reranker that answers yes or no.
    reranker: Option<AnswerReranker>,
}

/// Returns the architecture from published settings: the keys of a [`CONFIG`], and those of an embedding model.
pub(super) fn architecture_from_config(
    keys: Value,
    embedding: Option<PublishedEmbedding<'_>>,
) -> Result<Architecture> {
    let config = Config::new(CONFIG.into(), keys)?;
    let sentence = embedding.map(|PublishedEmbedding { pooling, dense }| {
        let modules = dense.iter().map(|&width| DenseModule { folder: String::new(), shape: [width, 0] });
        SentenceEmbedding {
            listed: true,
            dense: modules.collect(),
            ..SentenceEmbedding::of_pooling(pooling, PoolingSource::Files)
        }
    });
    let unknown = || SentenceEmbedding::of_pooling(Pooling::Mean, PoolingSource::Files);

    let architecture = match hf_family(&config)?.read {
        HfReader::Decoder(read) => read(&config).and_then(|decoder| match reranker::is_published(&config)? {
            true => Ok(reranker::scored(decoder.arch)),
            false => decoder_or_embedder(&config, decoder.arch, sentence.as_ref()),
        }),
        HfReader::Speech(read) => read(&config).map(Architecture::Speech),
        HfReader::Embedder { decoder, classifier } => {
            decoder(&config).and_then(|Decoder { arch, .. }| {
                let sentence = sentence.unwrap_or_else(unknown);
                let attends = AttentionDirection::Bidirectional;
                match text_classifier(&config, &sentence)? {
                    Some(head) => Ok(scorer(arch, attends, head, classifier(&config)?)),
                    None => Ok(embedder(arch, attends, &sentence)),
                }
            })
        }
        HfReader::Encoder(read) => {
            read(&config, &sentence.unwrap_or_else(unknown)).map(Architecture::Encoder)
        }
    }
    .map_err(|error| error.in_file(config.path()))?;
    check_architecture(config.path(), &architecture)?;
    Ok(architecture)
}

fn settings(folder: &mut Folder, config: &Config) -> Result<HfSettings> {
    let family = hf_family(config)?;

    let settings = match family.read {
        HfReader::Decoder(read) => {
            let Decoder { mut arch, layout } = read(config).map_err(|error| error.in_file(config.path()))?;
            if let Some(VisionArch::MobileNet(tower)) = arch.vision.as_deref_mut() {
                vision::set_side(folder, tower)?;
            }
            let sentence = pooling::read(folder)?;
            let listed = Some(&sentence).filter(|sentence| sentence.listed);
            let reranker = reranker::recognise(folder, config, &sentence)?;
            let settings = HfSettings::new(family, decoder_or_embedder(config, arch, listed)?, layout);
            match settings.architecture {
                Architecture::Decoder(_) if reranker.is_none() => settings,
                _ => HfSettings { reranker, ..settings.of_sentences(folder, sentence)? },
            }
        }
        HfReader::Encoder(read) => {
            let sentence = pooling::read(folder)?;
            if !sentence.dense.is_empty() {
                let expected = "Transformer, Pooling and Normalize for this family";
                return Err(unsupported("sentence-transformers module", expected, "Dense"));
            }
            let encoder = read(config, &sentence).map_err(|error| error.in_file(config.path()))?;
            HfSettings::new(family, Architecture::Encoder(encoder), Layout::default())
                .of_sentences(folder, sentence)?
        }
        HfReader::Embedder { decoder, classifier } => {
            let sentence = pooling::read(folder)?;
            let class = config.class().unwrap_or_default();
            let head = text_classifier(config, &sentence)?;
            if head.is_none() && !sentence.listed && !class.is_empty() && !class.ends_with("Model") {
                let expected =
                    "a classifier, or an embedding model with modules.json of sentence-transformers";
                return Err(unsupported("class", expected, class));
            }
            let Decoder { arch, layout } = decoder(config).map_err(|error| error.in_file(config.path()))?;
            let attends = AttentionDirection::Bidirectional;
            let architecture = match head {
                Some(head) => {
                    let layers = classifier(config).map_err(|error| error.in_file(config.path()))?;
                    scorer(arch, attends, head, layers)
                }
                None => embedder(arch, attends, &sentence),
            };
            HfSettings::new(family, architecture, layout).of_sentences(folder, sentence)?
        }
        HfReader::Speech(read) => {
            let arch = read(config).map_err(|error| error.in_file(config.path()))?;
            HfSettings::new(family, Architecture::Speech(arch), Layout::default())
        }
    };

    check_architecture(config.path(), &settings.architecture)?;
    Ok(settings)
}

impl HfSettings {
    /// Returns the settings of a model that is not an embedding model.
    fn new(family: &'static HfFamily, architecture: Architecture, layout: Layout) -> Self {
        let max_length = architecture.longest();
        let pooling = PoolingSource::Unknown;
        Self { family, architecture, layout, max_length, pooling, dense: Vec::new(), reranker: None }
    }
    /// Adds the settings of sentence-transformers.
    fn of_sentences(self, folder: &mut Folder, sentence: SentenceEmbedding) -> Result<Self> {
        let longest = tokenizer::max_length(folder, &sentence)?.unwrap_or(usize::MAX);
        let max_length = self.max_length.min(longest);
        Ok(Self { max_length, pooling: sentence.source, dense: sentence.dense, ..self })
    }
}

/// Returns the architecture that is compiled: of a language model that ranks by its answers, a classifier.
fn compiled(architecture: Architecture, reranker: Option<&AnswerReranker>) -> Architecture {
    match (architecture, reranker) {
        (Architecture::Decoder(arch), Some(_)) => reranker::scored(arch),
        (architecture, _) => architecture,
    }
}

/// Keys of the tokens that a token attends to.
#[derive(Deserialize)]
struct DirectionKeys {
    use_bidirectional_attention: Option<Value>,
    is_causal: Option<Value>,
    /// Keys of the decoder of a model with towers.
    text_config: Option<Box<DirectionKeys>>,
}

impl DirectionKeys {
    fn is_bidirectional(&self) -> bool {
        self.use_bidirectional_attention == Some(Value::Bool(true))
            || self.is_causal == Some(Value::Bool(false))
            || self.text_config.as_deref().is_some_and(Self::is_bidirectional)
    }
}

/// Classes of decoders that have no head.
const WITHOUT_HEAD: [&str; 2] = ["Qwen3Model", "Gemma3TextModel"];

/// Returns the embedding model with the layers of a decoder.
fn embedder(arch: DecoderArch, attends: AttentionDirection, sentence: &SentenceEmbedding) -> Architecture {
    let dense = sentence.dense.iter().map(|module| module.shape[0]).collect();
    let head = sentence.embedding();
    Architecture::Embedder(EmbedderArch { decoder: headless(arch), attends, dense, head, classifier: None })
}

/// Returns the classifier with the layers of a decoder.
fn scorer(
    arch: DecoderArch,
    attends: AttentionDirection,
    head: EncoderHead,
    layers: ClassifierLayers,
) -> Architecture {
    Architecture::Embedder(EmbedderArch {
        decoder: headless(arch),
        attends,
        dense: Vec::new(),
        head,
        classifier: Some(layers),
    })
}

/// Returns a decoder without its head and its towers.
fn headless(arch: DecoderArch) -> DecoderArch {
    DecoderArch { tied_head: true, vision: None, audio: None, ..arch }
}

/// Returns the head of a classifier; `None` for other classes, and for embedding models whatever their class.
fn text_classifier(config: &Config, sentence: &SentenceEmbedding) -> Result<Option<EncoderHead>> {
    if sentence.listed { Ok(None) } else { encoder::classifier(config, None) }
}

/// Returns a decoder, or the model with its layers that its class or settings of sentence-transformers state: a classifier, or
/// an embedding model.
fn decoder_or_embedder(
    config: &Config,
    arch: DecoderArch,
    sentence: Option<&SentenceEmbedding>,
) -> Result<Architecture> {
    let keys: DirectionKeys = config.keys()?;
    let attends = match keys.is_bidirectional() {
        true => AttentionDirection::Bidirectional,
        false => AttentionDirection::Causal,
    };
    if let Some(sentence) = sentence {
        return Ok(embedder(arch, attends, sentence));
    }

    if let Some(head) = encoder::classifier(config, None)? {
        let bias = matches!(head, EncoderHead::Tokens { .. });
        let layers = ClassifierLayers { pooling: Pooling::Last, hidden: None, bias };
        return Ok(scorer(arch, attends, head, layers));
    }
    if attends == AttentionDirection::Bidirectional {
        let expected =
            "a causal model, or the files of sentence-transformers beside an embedding model: modules.json";
        return Err(unsupported("attention", expected, "bidirectional attention"));
    }
    match config.class() {
        Some(class) if WITHOUT_HEAD.contains(&class) => {
            let expected = "modules.json of sentence-transformers beside a model without a head";
            Err(unsupported("class", expected, class))
        }
        _ => Ok(Architecture::Decoder(arch)),
    }
}

/// Returns the architecture of a folder whose weight files are truncated after their headers, and checks its tensors.
pub(super) fn architecture_from_headers(path: &Path) -> Result<Architecture> {
    let mut folder = Folder::new(path);
    let config = Config::read(&mut folder)?;
    let HfSettings { family, mut architecture, layout, dense, reranker, .. } =
        settings(&mut folder, &config)?;
    weights(path, family, &mut architecture, WeightFiles { layout, dense, packed: config.packed_format()? })?;
    Ok(compiled(architecture, reranker.as_ref()))
}

/// Files and layout of a folder's weights.
struct WeightFiles {
    layout: Layout,
    /// Linear layers in folders of their own.
    dense: Vec<DenseModule>,
    packed: Option<PackedFormat>,
}

/// Returns the weights of a folder, and their files, after a check that every weight of the architecture is present. If the
/// folder has no weights of a tower that its settings state, the tower is removed from the architecture.
fn weights(
    path: &Path,
    family: &HfFamily,
    architecture: &mut Architecture,
    files: WeightFiles,
) -> Result<(Tensors, Vec<PathBuf>)> {
    let WeightFiles { layout, dense, packed } = files;
    let mut shards = safetensors::open(path)?;
    for (index, module) in dense.iter().enumerate() {
        let file = path.join(&module.folder).join(safetensors::SINGLE);
        shards.read_as(file, &format!("dense.{index}."))?;
    }
    if let Some(format) = packed {
        let maps = &shards.maps;
        packed::gather(path, &mut shards.by_name, format, |tensor| {
            maps.get(tensor.file).and_then(|map| map.get(tensor.bytes.clone())).unwrap_or(&[])
        })?;
    }

    divide_stacks(&mut shards.by_name, family.names.members);

    let tensors = Tensors {
        origin: path.to_owned(),
        maps: shards.maps,
        files: shards.files.clone(),
        by_name: shards.by_name,
        names: family.names,
        layout,
    };
    if let Architecture::Decoder(arch) = architecture {
        arch.vision = arch.vision.take().filter(|tower| tensors.find(tower.first_weight()).is_some());
        arch.audio = arch.audio.take().filter(|_| tensors.find("audio.input.weight").is_some());
    }
    required_tensors::check(&tensors, architecture)?;
    Ok((tensors, shards.files))
}

/// Returns the vocabulary that a tokenizer must have.
fn vocabulary(architecture: &Architecture) -> tokenizer::Vocab {
    match architecture {
        Architecture::Decoder(arch) => tokenizer::Vocab::Decoder(arch.vocab, Some(arch.family)),
        Architecture::Encoder(arch) => tokenizer::Vocab::Encoder(arch.vocab),
        Architecture::Embedder(arch) => tokenizer::Vocab::Encoder(arch.decoder.vocab),
        Architecture::Speech(arch) => tokenizer::Vocab::Encoder(arch.vocab),
    }
}

/// Opens a folder that has [`CONFIG`] and safetensors.
pub(super) fn open(path: &Path, adapters: &[Adapter]) -> Result<Checkpoint> {
    let mut folder = Folder::new(path);
    let config = Config::read(&mut folder)?;
    let HfSettings { family, mut architecture, layout, max_length, pooling, dense, reranker } =
        settings(&mut folder, &config)?;
    let prompts = match architecture.head() {
        Some(EncoderHead::Embedding { .. }) => prompts::read(&mut folder)?,
        _ => Prompts::default(),
    };

    let files = WeightFiles { layout, dense, packed: config.packed_format()? };
    let (tensors, files) = weights(path, family, &mut architecture, files)?;
    let text = tokenizer::read(&mut folder, config.ids(), vocabulary(&architecture))?;
    let speech = match &mut architecture {
        Architecture::Speech(arch) => Some(speech::read(&mut folder, &text.tokenizer, arch)?),
        Architecture::Decoder(_) | Architecture::Encoder(_) | Architecture::Embedder(_) => None,
    };
    let vision = match &architecture {
        Architecture::Decoder(DecoderArch { vision: Some(arch), .. }) => {
            Some(vision::read(&mut folder, &config, arch)?)
        }
        _ => None,
    };
    let audio = match &architecture {
        Architecture::Decoder(DecoderArch { audio: Some(arch), .. }) => {
            Some(conformer::read(&mut folder, &config, arch)?)
        }
        _ => None,
    };
    let labels = architecture.head().and_then(EncoderHead::labels);
    let classifier = labels.map(|labels| classifier::read(&config, labels)).transpose()?;
    let license = folder.license()?;
    folder.files.extend(files);

    let watches = tensors.watches();
    let weights = adapted(tensors, &architecture, AdapterFormat::Peft, adapters)?;

    let checkpoint = Checkpoint {
        architecture,
        watches: watches.with(adapters.iter().map(Adapter::watch)),
        weights,
        tokenizer: TokenizerSource::Json(text.tokenizer),
        special: text.special,
        chat_template: text.chat_template,
        speech,
        vision,
        audio,
        prompts,
        classifier,
        pairs: None,
        pooling,
        sampling: text.sampling,
        max_length,
        files: folder.files,
        license,
    };
    match reranker {
        Some(reranker) => checkpoint.reranking(&reranker),
        None => Ok(checkpoint),
    }
}
