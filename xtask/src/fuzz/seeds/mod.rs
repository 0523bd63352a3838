//! Seeds of the targets: valid files of every kind, and bombs with extreme lengths, counts or depths.
//!
//! All are generated deterministically, except for the exports in `crates/compile` and the files of sound, pictures and videos
//! in `crates/audio` and `crates/image`.
//! Start at [`of`]. If a parser reads several files, one input contains them all, each after its name (see
//! [`Input::files`]).

mod answers;
mod archives;
mod audio;
mod checkpoints;
mod exports;
mod grammars;
mod graphs;
mod images;
mod kernels;
mod keys;
mod pieces;
mod prefixes;
mod requests;
mod settings;
mod templates;
mod upstream_events;
mod words;

use std::{fs, path::Path};

use anyhow::Context;

use crate::fuzz::Target;

pub(crate) use words::of as words_of;

/// Kind of a seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeedKind {
    /// A valid file, which the parser must accept.
    Valid,
    /// A file that would exhaust a careless parser.
    Bomb,
}

/// One input.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    /// Name, unique among those of its kind.
    pub(crate) name: String,
    /// Kind of the seed.
    pub(crate) kind: SeedKind,
    /// Contents.
    pub(crate) bytes: Vec<u8>,
}

/// Marker of the start of each file in an input with several files; the name and a newline follow it.
/// `fuzz/src/scratch.rs` parses it.
const MARK: &[u8] = b"\xff\xfe\xff";

impl Input {
    fn valid(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), kind: SeedKind::Valid, bytes: bytes.into() }
    }

    fn bomb(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), kind: SeedKind::Bomb, bytes: bytes.into() }
    }

    /// Returns the bytes of an input with several files.
    fn files(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
        files.iter().flat_map(|(name, bytes)| [MARK, name.as_bytes(), b"\n", bytes].concat()).collect()
    }
}

/// Returns the seeds of a target.
pub(crate) fn of(target: Target) -> anyhow::Result<Vec<Input>> {
    match target {
        Target::Gguf => Ok(checkpoints::gguf()),
        Target::Safetensors => checkpoints::safetensors(),
        Target::HfConfig => checkpoints::configs(),
        Target::Onnx => Ok(graphs::onnx()),
        Target::Template => Ok(templates::seeds()),
        Target::Pieces => Ok(pieces::seeds()),
        Target::Import => exports::seeds(),
        Target::Request => Ok(requests::seeds()),
        Target::Manifest => Ok(archives::manifests()),
        Target::Wheel => archives::wheels(),
        Target::Keys => Ok(keys::seeds()),
        Target::UpstreamEvents => Ok(upstream_events::seeds()),
        Target::Settings => Ok(settings::seeds()),
        Target::Grammar => Ok(grammars::seeds()),
        Target::Answers => Ok(answers::seeds()),
        Target::PrefixBlock => Ok(prefixes::seeds()),
        Target::Kernels => Ok(kernels::seeds()),
        Target::Audio => audio::seeds(),
        Target::Image => images::seeds(),
        Target::Video => images::videos(),
    }
}

/// Writes the seeds of a target into `folder`, which is emptied first, and returns their number.
pub(crate) fn write(target: Target, folder: &Path) -> anyhow::Result<usize> {
    let inputs = of(target)?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for input in &inputs {
        let path = folder.join(match input.kind {
            SeedKind::Valid => input.name.clone(),
            SeedKind::Bomb => format!("bomb-{}", input.name),
        });
        fs::write(&path, &input.bytes).with_context(|| path.display().to_string())?;
    }
    Ok(inputs.len())
}

#[cfg(test)]
mod tests;
