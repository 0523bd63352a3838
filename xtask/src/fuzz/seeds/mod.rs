//! Inputs that fuzzing starts from: valid files of every kind, and bombs, whose lengths, counts or depths are absurd.
//!
//! Everything is made from nothing, the same each time, but for exports, which lie in `crates/compile`. Start at [`of`]; a
//! target whose parser is given several files has them in one input, each behind its name (see [`Input::files`]).

mod archives;
mod checkpoints;
mod exports;
mod graphs;
mod pieces;
mod requests;
mod templates;
mod words;

use std::{fs, path::Path};

use anyhow::Context;

use crate::fuzz::Target;

pub(crate) use words::of as words_of;

/// Whether a parser is to accept an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A valid file.
    Valid,
    /// One that would exhaust a careless parser.
    Bomb,
}

/// One input.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    /// What it is called among those of its kind.
    pub(crate) name: String,
    /// What it is.
    pub(crate) kind: Kind,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// Stands before each file of an input that holds several, and is followed by its name and the end of the line;
/// `fuzz/src/scratch.rs` reads the same.
const MARK: &[u8] = b"\xff\xfe\xff";

impl Input {
    fn valid(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), kind: Kind::Valid, bytes: bytes.into() }
    }

    fn bomb(name: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self { name: name.to_owned(), kind: Kind::Bomb, bytes: bytes.into() }
    }

    /// The bytes of an input that holds these files.
    fn files(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
        files.iter().flat_map(|(name, bytes)| [MARK, name.as_bytes(), b"\n", bytes].concat()).collect()
    }
}

/// The seeds of a target.
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
    }
}

/// Writes the seeds of a target into `folder`, which is emptied first. Gives their number.
pub(crate) fn write(target: Target, folder: &Path) -> anyhow::Result<usize> {
    let inputs = of(target)?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for input in &inputs {
        let path = folder.join(match input.kind {
            Kind::Valid => input.name.clone(),
            Kind::Bomb => format!("bomb-{}", input.name),
        });
        fs::write(&path, &input.bytes).with_context(|| path.display().to_string())?;
    }
    Ok(inputs.len())
}

#[cfg(test)]
mod tests;
