//! GGUF: one file that holds configuration, tokenizer and weights.
//!
//! `read` turns bytes into metadata and tensor places and is the only part that meets raw bytes; `config`, `decoder`
//! and `vocab` give the metadata its meaning, together with the families.

mod config;
pub(super) mod decoder;
mod meta;
mod read;
mod vocab;

use std::path::Path;

use narthex_spec::manifest::Prompts;

use super::{
    Checkpoint, CheckpointError, census,
    layout::Layout,
    limit,
    limit::{map, unsupported},
    tensors::Tensors,
};
use meta::Metadata;

/// Opens a GGUF file of version 2 or 3.
pub(super) fn open(path: &Path) -> Result<Checkpoint, CheckpointError> {
    opened(path).map_err(|error| error.in_file(path))
}

fn opened(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let file = map(path)?;
    let read::Contents { metadata, tensors: by_name } = read::read(path, &file)?;
    refuse_parts(&metadata)?;
    let family = config::family(&metadata)?;
    let mut tensors = Tensors {
        origin: path.to_owned(),
        maps: vec![file],
        files: vec![path.to_owned()],
        by_name,
        words: family.words,
        layout: Layout::default(),
    };
    let config::Config { architecture, layout, max_length } = config::read(family, &metadata, &tensors)?;
    tensors.layout = layout;
    limit::check_architecture(path, &architecture)?;
    census::check(&tensors, &architecture)?;
    let vocab::Vocabulary { vocab, special } = vocab::read(&metadata, &architecture)?;
    Ok(Checkpoint {
        architecture,
        weights: Box::new(tensors),
        tokenizer: super::TokenizerSource::Gguf(Box::new(vocab)),
        special,
        chat_template: metadata.text("tokenizer.chat_template")?.map(str::to_owned),
        prompts: Prompts::default(),
        max_length,
        files: vec![path.to_owned()],
        license: metadata.text("general.license")?.map(str::to_owned),
    })
}

/// Bytes behind the tables that are fetched too: divisors of rotary frequencies are stored first among the weights.
const SETTINGS_BYTES: usize = 64 << 10;

/// Bytes of a file's beginning that tell its tensors, as far as those that are there say; nothing once they suffice.
pub(super) fn wanted(beginning: &[u8]) -> Option<u64> {
    let told = beginning.len().checked_sub(SETTINGS_BYTES).and_then(|end| beginning.get(..end));
    match told {
        Some(told) if read::is_told(told) => None,
        _ => Some(4 * beginning.len().max(SETTINGS_BYTES) as u64),
    }
}

/// Refuses files that hold a part of a model: one shard of several, an adapter, an image projector.
fn refuse_parts(metadata: &Metadata) -> Result<(), CheckpointError> {
    if let Some(parts) = metadata.count("split.count")?.filter(|&parts| parts > 1) {
        return Err(unsupported(
            "number of split GGUF files",
            "a single file; join the parts first, as with llama-gguf-split --merge",
            parts,
        ));
    }
    match metadata.text("general.type")? {
        None | Some("model") => Ok(()),
        Some(other) => Err(unsupported("general.type", "model", other)),
    }
}
