//! Input of an encoder's graph for its tokens: rows that the host has looked up, or the token numbers.

use std::path::Path;

use narthex_engine::{encoder::Text, executor::StepError};
use narthex_spec::{
    DType,
    arch::{ImportedEncoder, Structure},
    manifest::{Manifest, Slot},
};

use super::{EncoderNames, EncoderTables};
use crate::{
    error::DeviceError,
    ort::{Binding, Tensor},
};

/// Maximum vocabulary, width and length of an imported encoder, which has no table to check them against.
const MAX_NUMBER: usize = 1 << 24;

/// Input of the graph for its tokens.
pub(crate) enum EncoderInput {
    /// Rows that the host has looked up.
    Rows {
        tables: Box<EncoderTables>,
        embeds: Vec<f32>,
        /// Position rows. Empty if `embeds` includes them.
        positions: Vec<f32>,
        /// Position of each token, for graphs that rotate queries and keys.
        indices: Vec<i64>,
    },
    /// Token numbers, and the segment of each token.
    Tokens { vocab: usize, tokens: Vec<i64>, segments: Vec<i64> },
}

impl EncoderInput {
    pub(super) fn open(package: &Path, manifest: &Manifest) -> Result<Self, DeviceError> {
        match &manifest.architecture {
            Structure::Encoder(arch) => Ok(Self::rows(EncoderTables::open(package, manifest, arch)?)),
            Structure::Embedder(arch) => Ok(Self::rows(EncoderTables::of_embedder(package, manifest, arch)?)),
            Structure::ImportedEncoder(imported) => {
                check_imported(imported, manifest.max_length)?;
                Ok(Self::Tokens { vocab: imported.vocab, tokens: Vec::new(), segments: Vec::new() })
            }
            _ => Err(DeviceError::package("an encoder", "a decoder")),
        }
    }

    fn rows(tables: EncoderTables) -> Self {
        let tables = Box::new(tables);
        Self::Rows { tables, embeds: Vec::new(), positions: Vec::new(), indices: Vec::new() }
    }

    /// Returns the size of the vocabulary.
    pub(super) fn vocab(&self) -> usize {
        match self {
            Self::Rows { tables, .. } => tables.vocab(),
            Self::Tokens { vocab, .. } => *vocab,
        }
    }

    /// Sets the input to zeros, the values of padding, for this many padded tokens.
    pub(super) fn clear(&mut self, rows: usize) {
        fn zeros<T: Default + Clone>(values: &mut Vec<T>, length: usize) {
            values.clear();
            values.resize(length, T::default());
        }
        match self {
            Self::Rows { tables, embeds, positions, indices } => {
                zeros(embeds, rows * tables.input);
                zeros(positions, rows * tables.position_elements());
                zeros(indices, rows);
            }
            Self::Tokens { tokens, segments, .. } => {
                zeros(tokens, rows);
                zeros(segments, rows);
            }
        }
    }

    /// Fails if the rows that were written may be wrong, because a file of the package changed.
    pub(super) fn check(&self) -> Result<(), StepError> {
        match self {
            Self::Rows { tables, .. } => tables.check(),
            Self::Tokens { .. } => Ok(()),
        }
    }

    /// Writes a text's token to its place among the padded tokens.
    pub(super) fn write(&mut self, at: usize, text: &Text<'_>, index: usize) {
        match self {
            Self::Rows { tables, embeds, positions, indices } => {
                let width = tables.input;
                let apart = tables.position_elements();
                let embeds = &mut embeds[at * width..][..width];
                tables.read(text, index, embeds, &mut positions[at * apart..][..apart]);
                indices[at] = index as i64;
            }
            Self::Tokens { tokens, segments, .. } => {
                tokens[at] = i64::from(text.tokens[index]);
                segments[at] = i64::from(index >= text.second);
            }
        }
    }

    /// Binds the written input of a padded batch.
    ///
    /// # Safety
    /// The conditions of [`Binding::input`] apply: the memory of `self` must not move until the run has ended.
    pub(super) unsafe fn bind(
        &mut self,
        binding: &mut Binding,
        names: &EncoderNames,
        [batch, sequence]: [i64; 2],
    ) -> Result<(), StepError> {
        // SAFETY: the caller guarantees it.
        unsafe {
            match self {
                Self::Rows { tables, embeds, positions, indices } => {
                    let shape = [batch, sequence, tables.input as i64];
                    binding.input(&names.first, Tensor::new(embeds, DType::F32, &shape))?;

                    let Some(name) = &names.second else { return Ok(()) };
                    if tables.second_input() == Some(Slot::Positions) {
                        return binding.input(name, Tensor::new(indices, DType::I64, &[batch, sequence]));
                    }
                    let shape = [batch, sequence, tables.position_elements() as i64];
                    binding.input(name, Tensor::new(positions, DType::F32, &shape))
                }
                Self::Tokens { tokens, segments, .. } => {
                    let shape = [batch, sequence];
                    binding.input(&names.first, Tensor::new(tokens, DType::I64, &shape))?;
                    names
                        .second
                        .iter()
                        .try_for_each(|name| binding.input(name, Tensor::new(segments, DType::I64, &shape)))
                }
            }
        }
    }
}

/// Checks the sizes that an imported encoder's manifest states.
fn check_imported(imported: &ImportedEncoder, max_length: usize) -> Result<(), DeviceError> {
    let numbers = [imported.vocab, imported.width, max_length];
    if let Some(number) = numbers.into_iter().find(|number| !(1..=MAX_NUMBER).contains(number)) {
        return Err(DeviceError::package(format!("numbers of 1 to {MAX_NUMBER}"), number));
    }
    match imported.head.labels() {
        Some(labels) if labels != imported.width => {
            Err(DeviceError::package(format!("{} labels", imported.width), labels))
        }
        _ => Ok(()),
    }
}
