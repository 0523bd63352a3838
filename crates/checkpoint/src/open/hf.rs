//! Opening of folders in the layout of the `transformers` library: finds the family, whose reader interprets
//! `config.json`.

use std::path::{Path, PathBuf};

use narthex_spec::{
    arch::{Architecture, DecoderArch, EncoderHead, Pooling, VisionArch},
    manifest::Prompts,
};
use serde_json::Value;

use crate::{
    checkpoint::{Checkpoint, TokenizerSource},
    error::Result,
    family::{Decoder, HfFamily, HfReader, hf_family},
    hf::{
        CONFIG,
        config::Config,
        conformer,
        folder::Folder,
        pooling::{self, SentenceEmbedding},
        prompts, speech, tokenizer, vision,
    },
    layout::Layout,
    limits::check_architecture,
    packed::{self, PackedFormat},
    pooling::PoolingSource,
    required_tensors, safetensors,
    tensors::Tensors,
};

/// Returns the architecture from a folder's settings. It needs [`CONFIG`] and no weights.
pub(super) fn architecture(path: &Path) -> Result<Architecture> {
    let mut folder = Folder::new(path);
    let config = Config::read(&mut folder)?;
    Ok(settings(&mut folder, &config)?.architecture)
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
}

/// Returns the architecture from published settings: the keys of a [`CONFIG`], and an encoder's pooling.
pub(super) fn architecture_from_config(keys: Value, pooling: Option<Pooling>) -> Result<Architecture> {
    let config = Config::new(CONFIG.into(), keys)?;
    let architecture = match hf_family(&config)?.read {
        HfReader::Decoder(read) => read(&config).map(|decoder| Architecture::Decoder(decoder.arch)),
        HfReader::Speech(read) => read(&config).map(Architecture::Speech),
        HfReader::Encoder(read) => {
            let listed = pooling.is_some();
            let sentence =
                SentenceEmbedding::of_pooling(pooling.unwrap_or(Pooling::Mean), PoolingSource::Files);
            let sentence = SentenceEmbedding { listed, ..sentence };
            read(&config, &sentence).map(Architecture::Encoder)
        }
    }
    .map_err(|error| error.in_file(config.path()))?;
    check_architecture(config.path(), &architecture)?;
    Ok(architecture)
}

fn settings(folder: &mut Folder, config: &Config) -> Result<HfSettings> {
    let family = hf_family(config)?;

    let (architecture, layout, max_length, pooling) = match family.read {
        HfReader::Decoder(read) => {
            let Decoder { mut arch, layout } = read(config).map_err(|error| error.in_file(config.path()))?;
            if let Some(VisionArch::MobileNet(tower)) = arch.vision.as_deref_mut() {
                vision::set_side(folder, tower)?;
            }
            let context = arch.context;
            (Architecture::Decoder(arch), layout, context, PoolingSource::Unknown)
        }

        HfReader::Encoder(read) => {
            let sentence = pooling::read(folder)?;
            let encoder = read(config, &sentence).map_err(|error| error.in_file(config.path()))?;
            let longest = tokenizer::max_length(folder, &sentence)?.unwrap_or(usize::MAX);
            let max_length = encoder.positions.min(longest);
            (Architecture::Encoder(encoder), Layout::default(), max_length, sentence.source)
        }
        HfReader::Speech(read) => {
            let arch = read(config).map_err(|error| error.in_file(config.path()))?;
            let context = arch.target_positions;
            (Architecture::Speech(arch), Layout::default(), context, PoolingSource::Unknown)
        }
    };

    check_architecture(config.path(), &architecture)?;
    Ok(HfSettings { family, architecture, layout, max_length, pooling })
}

/// Returns the architecture of a folder whose weight files are truncated after their headers, and checks its tensors.
pub(super) fn architecture_from_headers(path: &Path) -> Result<Architecture> {
    let mut folder = Folder::new(path);
    let config = Config::read(&mut folder)?;
    let settings = settings(&mut folder, &config)?;
    let mut architecture = settings.architecture;
    weights(path, settings.family, &mut architecture, settings.layout, config.packed_format()?)?;
    Ok(architecture)
}

/// Returns the weights of a folder, and their files, after a check that every weight of the architecture is present. If the
/// folder has no weights of a tower that its settings state, the tower is removed from the architecture.
fn weights(
    path: &Path,
    family: &HfFamily,
    architecture: &mut Architecture,
    layout: Layout,
    packed: Option<PackedFormat>,
) -> Result<(Tensors, Vec<PathBuf>)> {
    let mut shards = safetensors::open(path)?;
    if let Some(format) = packed {
        let maps = &shards.maps;
        packed::gather(path, &mut shards.by_name, format, |tensor| {
            maps.get(tensor.file).and_then(|map| map.get(tensor.bytes.clone())).unwrap_or(&[])
        })?;
    }

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

/// Opens a folder that has [`CONFIG`] and safetensors.
pub(super) fn open(path: &Path) -> Result<Checkpoint> {
    let mut folder = Folder::new(path);
    let config = Config::read(&mut folder)?;
    let HfSettings { family, mut architecture, layout, max_length, pooling } =
        settings(&mut folder, &config)?;
    let (embeds, vocab) = match &architecture {
        Architecture::Decoder(arch) => (false, tokenizer::Vocab::Decoder(arch.vocab, Some(arch.family))),
        Architecture::Encoder(arch) => {
            (matches!(arch.head, EncoderHead::Embedding { .. }), tokenizer::Vocab::Encoder(arch.vocab))
        }
        Architecture::Speech(arch) => (false, tokenizer::Vocab::Encoder(arch.vocab)),
    };

    let prompts = if embeds { prompts::read(&mut folder)? } else { Prompts::default() };
    let packed = config.packed_format()?;
    let (tensors, files) = weights(path, family, &mut architecture, layout, packed)?;
    let text = tokenizer::read(&mut folder, config.ids(), vocab)?;
    let speech = match &mut architecture {
        Architecture::Speech(arch) => Some(speech::read(&mut folder, &text.tokenizer, arch)?),
        Architecture::Decoder(_) | Architecture::Encoder(_) => None,
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
    let license = folder.license()?;
    folder.files.extend(files);

    Ok(Checkpoint {
        architecture,
        watches: tensors.watches(),
        weights: Box::new(tensors),
        tokenizer: TokenizerSource::Json(text.tokenizer),
        special: text.special,
        chat_template: text.chat_template,
        speech,
        vision,
        audio,
        prompts,
        pooling,
        sampling: text.sampling,
        max_length,
        files: folder.files,
        license,
    })
}
