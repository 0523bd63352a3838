//! Tables of an encoder that the host reads.

use std::path::Path;

use narthex_engine::{encoder::Text, executor::StepError};
use narthex_spec::{
    arch::{DecoderArch, EmbedderArch, EncoderArch, EncoderHead, FactoredEmbedding},
    manifest::{Manifest, Slot, TableRole},
};

use crate::{error::DeviceError, table::Table};

/// Tables in which an encoder's tokens are looked up.
pub(crate) struct EncoderTables {
    pub(crate) token: Table,
    /// For each segment, the rows that are added to the tokens: at each position, the sum of the position's row and the
    /// segment's row. With rotary positions, one row for all positions.
    positions: Vec<Vec<f32>>,
    /// The graph rotates queries and keys by their positions.
    rotary: bool,
    hidden: usize,
    factored: Option<FactoredEmbedding>,
    /// Number of elements of the graph's input for each token.
    pub(crate) input: usize,
}

/// Maximum number of labels of a classifier. All other widths are checked against tables.
const MAX_LABELS: usize = 1 << 20;

fn check_labels(head: &EncoderHead) -> Result<(), DeviceError> {
    match head.labels() {
        Some(labels) if !(1..=MAX_LABELS).contains(&labels) => {
            Err(DeviceError::package(format!("1 to {MAX_LABELS} labels"), labels))
        }
        _ => Ok(()),
    }
}

/// Maximum number of segments in a text.
const SEGMENTS: usize = 2;

/// Opens a table with this number of columns and at least this number of rows.
fn table(
    package: &Path,
    manifest: &Manifest,
    role: TableRole,
    [rows, cols]: [usize; 2],
) -> Result<Table, DeviceError> {
    let table = Table::of_role(package, manifest, role)?;
    if table.cols() != cols || table.rows() < rows {
        let found = format!("{} x {}", table.rows(), table.cols());
        return Err(DeviceError::package(format!("a {role:?} table of at least {rows} x {cols}"), found));
    }
    Ok(table)
}

impl EncoderTables {
    /// Opens the tables of a model with the layers of a decoder: those of its tokens.
    pub(crate) fn of_embedder(
        package: &Path,
        manifest: &Manifest,
        arch: &EmbedderArch,
    ) -> Result<Self, DeviceError> {
        let DecoderArch { vocab, hidden, context, .. } = arch.decoder;
        if !(1..=context).contains(&manifest.max_length) {
            let expected = format!("a length of 1 to {context} tokens");
            return Err(DeviceError::package(expected, manifest.max_length));
        }
        check_labels(&arch.head)?;
        let token = table(package, manifest, TableRole::Token, [vocab, hidden])?;
        Ok(Self {
            token,
            positions: vec![vec![0.0; hidden]],
            rotary: true,
            hidden,
            factored: None,
            input: hidden,
        })
    }

    pub(crate) fn open(package: &Path, manifest: &Manifest, arch: &EncoderArch) -> Result<Self, DeviceError> {
        let hidden = arch.hidden;
        let width = arch.token_width();
        if manifest.max_length == 0 {
            return Err(DeviceError::package("a length of at least 1 token", 0));
        }
        check_labels(&arch.head)?;
        let token = table(package, manifest, TableRole::Token, [arch.vocab, width])?;
        let positions = match arch.rope {
            None => Some(table(package, manifest, TableRole::Position, [manifest.max_length, hidden])?),
            Some(_) if manifest.max_length > arch.positions => {
                let expected = format!("a length of at most {} tokens", arch.positions);
                return Err(DeviceError::package(expected, manifest.max_length));
            }
            Some(_) => None,
        };
        let types = match arch.types {
            0 => None,
            _ => Some(table(package, manifest, TableRole::TokenType, [1, hidden])?),
        };
        let segments = types.as_ref().map_or(1, |types| types.rows().min(SEGMENTS));
        let positions = (0..segments)
            .map(|segment| {
                let count = if positions.is_some() { manifest.max_length } else { 1 };
                let mut rows = vec![0.0; count * hidden];
                for (row, out) in rows.chunks_exact_mut(hidden).enumerate() {
                    if let Some(positions) = &positions {
                        positions.read_row(row, out);
                    }
                    if let Some(types) = &types {
                        types.add_row(segment, out);
                    }
                }
                rows
            })
            .collect();

        let input = arch.factored.as_ref().map_or(hidden, FactoredEmbedding::input);
        Ok(Self { token, positions, rotary: arch.rope.is_some(), hidden, factored: arch.factored, input })
    }

    /// Returns the size of the vocabulary.
    pub(crate) fn vocab(&self) -> usize {
        self.token.rows()
    }

    /// Fails if the file of the tokens' rows changed. The rows of positions were copied.
    pub(crate) fn check(&self) -> Result<(), StepError> {
        self.token.check()
    }

    /// Returns the input of the graph beside the tokens, if it has one.
    pub(crate) fn second_input(&self) -> Option<Slot> {
        match (self.rotary, self.factored) {
            (true, _) => Some(Slot::Positions),
            (false, Some(_)) => Some(Slot::PositionEmbeds),
            (false, None) => None,
        }
    }

    /// Returns the number of elements of a position row that is a separate input of the graph; 0 without such an input.
    pub(crate) fn position_elements(&self) -> usize {
        if self.factored.is_some() { self.hidden } else { 0 }
    }

    /// Writes the graph's inputs for the token at a position: [`Self::input`] and [`Self::position_elements`] elements.
    pub(crate) fn read(&self, text: &Text<'_>, position: usize, embeds: &mut [f32], apart: &mut [f32]) {
        // A model with one segment also uses it for a pair's second text.
        let segment = usize::from(position >= text.second).min(self.positions.len() - 1);
        let row = if self.rotary { 0 } else { position };
        let row = &self.positions[segment][row * self.hidden..][..self.hidden];
        let Some(factored) = self.factored else {
            embeds.copy_from_slice(row);
            self.token.add_row(text.tokens[position] as usize, embeds);
            return;
        };
        apart.copy_from_slice(row);
        let positions = [position.checked_add(1), Some(position), position.checked_sub(1)];
        let positions = if factored.trigram { &positions[..] } else { &positions[1..2] };
        for (at, out) in positions.iter().zip(embeds.chunks_exact_mut(factored.width)) {
            match at.and_then(|at| text.tokens.get(at)) {
                Some(&token) => self.token.read_row(token as usize, out),
                // Before and after a text, the elements are zeros.
                None => out.fill(0.0),
            }
        }
    }
}
