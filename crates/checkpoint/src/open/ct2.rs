//! Opening of folders in the layout of faster-whisper: a `model.bin` of CTranslate2 beside `tokenizer.json`.

use std::path::Path;

use narthex_spec::{
    arch::{Architecture, SpeechArch},
    manifest::{Prompts, PublishedSampling},
};

use crate::{
    checkpoint::{Checkpoint, TokenizerSource},
    ct2::{self, Ct2Model, MODEL},
    error::Result,
    family::WHISPER_NAMES,
    hf::{config::TokenIds, folder::Folder, speech, tokenizer},
    layout::Layout,
    limits::check_architecture,
    pooling::PoolingSource,
    required_tensors,
    tensors::Tensors,
};

/// Returns the architecture of a folder, and checks its tensors.
pub(super) fn architecture(path: &Path) -> Result<Architecture> {
    let (_, arch) = open_tensors(path)?;
    Ok(Architecture::Speech(arch))
}

/// Opens a folder.
pub(super) fn open(path: &Path) -> Result<Checkpoint> {
    let (tensors, mut arch) = open_tensors(path)?;
    let mut folder = Folder::new(path);
    let text = tokenizer::read(&mut folder, &TokenIds::default(), tokenizer::Vocab::Encoder(arch.vocab))?;
    let speech = speech::read(&mut folder, &text.tokenizer, &mut arch)?;
    let license = folder.license()?;
    folder.files.push(path.join(MODEL));
    Ok(Checkpoint {
        max_length: arch.target_positions,
        architecture: Architecture::Speech(arch),
        watches: tensors.watches(),
        weights: Box::new(tensors),
        tokenizer: TokenizerSource::Json(text.tokenizer),
        special: text.special,
        chat_template: None,
        speech: Some(speech),
        vision: None,
        audio: None,
        prompts: Prompts::default(),
        classifier: None,
        pairs: None,
        pooling: PoolingSource::Unknown,
        sampling: PublishedSampling::default(),
        files: folder.files,
        license,
    })
}

fn open_tensors(path: &Path) -> Result<(Tensors, SpeechArch)> {
    let Ct2Model { map, by_name, arch } = ct2::open(path)?;
    let architecture = Architecture::Speech(arch.clone());
    check_architecture(&path.join(MODEL), &architecture)?;
    let tensors = Tensors {
        origin: path.to_owned(),
        maps: vec![map],
        files: vec![path.join(MODEL)],
        by_name,
        names: &WHISPER_NAMES,
        layout: Layout::default(),
    };
    required_tensors::check(&tensors, &architecture)?;
    Ok((tensors, arch))
}
