//! Inputs of an encoder that is run over a text.

use narthex_checkpoint::Checkpoint;
use narthex_spec::{
    Elements, TokenId,
    arch::{EncoderArch, FactoredEmbedding},
    manifest::Slot,
};
use narthex_text::tokenizer::Tokenizer;

use super::{ProbedModel, all_tokens, known, spread_rows, token_rows};
use crate::{calibration_text::CalibrationText, error::Result, layer::encoder_head::TOKEN_WEIGHT};

/// Maximum number of tokens of a text.
const MAX_LENGTH: usize = 512;

/// Maximum number of texts.
const MAX_TEXTS: usize = 8;

/// The encoder that is run over texts.
pub(crate) struct EncoderCalibration<'a> {
    /// The model's checkpoint.
    pub(crate) checkpoint: &'a Checkpoint,
    /// The model's architecture.
    pub(crate) arch: &'a EncoderArch,
    pub(crate) tokenizer: &'a Tokenizer,
    /// Text of the user; `None` for the one of the compiler.
    pub(crate) text: Option<&'a CalibrationText>,
}

impl ProbedModel for EncoderCalibration<'_> {
    fn input(&self, slot: Slot, tokens: &[TokenId], logits: usize) -> Result<Option<Elements>> {
        let count = tokens.len();
        Ok(Some(match slot {
            Slot::Embeds => Elements::F32(match &self.arch.factored {
                Some(factored) => self.factored_rows(factored, tokens)?,
                None => self.rows(tokens)?,
            }),
            Slot::PositionEmbeds => {
                let mut rows = vec![0.0; count * self.arch.hidden];
                self.add_positions(&mut rows)?;
                Elements::F32(rows)
            }
            Slot::Positions => Elements::I64((0..count as i64).collect()),
            Slot::PaddingMask => Elements::I32(vec![1; count]),
            Slot::LogitsRows => Elements::I64(spread_rows(count, logits)),
            _ => return Ok(None),
        }))
    }
}

impl EncoderCalibration<'_> {
    /// Returns texts of equal length, each with the tokens that the tokenizer adds to a document.
    pub(super) fn windows(&self) -> Result<Vec<Vec<TokenId>>> {
        let [before, after] = self.tokenizer.document_frame()?;
        let tokens = all_tokens(self.checkpoint, self.tokenizer, self.text)?;
        let longest = MAX_LENGTH.min(self.checkpoint.max_length).min(self.arch.positions);
        let length = longest.saturating_sub(before.len() + after.len()).clamp(1, tokens.len().max(1));
        let texts = tokens.chunks_exact(length).take(MAX_TEXTS);
        Ok(texts.map(|text| [&before, text, &after].concat()).collect())
    }

    /// Returns the sums of the rows of tokens, positions and the first segment, `[tokens, hidden]`.
    fn rows(&self, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let EncoderArch { vocab, hidden, .. } = *self.arch;
        let mut rows = token_rows(self.checkpoint.weights.weight(TOKEN_WEIGHT)?, tokens, [vocab, hidden])?;
        self.add_positions(&mut rows)?;
        Ok(rows)
    }

    /// Returns the rows of tokens for a factored embedding: with trigrams, those of the next, the current and the previous
    /// token.
    fn factored_rows(&self, factored: &FactoredEmbedding, tokens: &[TokenId]) -> Result<Vec<f32>> {
        let vocab = self.arch.vocab;
        let table = self.checkpoint.weights.weight(TOKEN_WEIGHT)?;
        table.expect_shape(&[vocab, factored.width])?;
        let mut rows = vec![0.0; tokens.len() * factored.input()];
        let parts = rows.chunks_exact_mut(factored.width);
        for (index, part) in parts.enumerate() {
            let token = match factored.trigram {
                // Before and after a text, the elements are zeros.
                true => (index / 3 + 1).checked_sub(index % 3).and_then(|at| tokens.get(at)),
                false => tokens.get(index),
            };
            if let Some(&token) = token {
                table.read_row(known(token, vocab)?, part);
            }
        }
        Ok(rows)
    }

    /// Adds the rows of positions and of the first segment, as far as the model has them.
    fn add_positions(&self, rows: &mut [f32]) -> Result<()> {
        let EncoderArch { hidden, first_position, positions, types, .. } = *self.arch;
        let mut added = vec![0.0; hidden];
        let add = |row: &mut [f32], added: &[f32]| row.iter_mut().zip(added).for_each(|(x, y)| *x += y);
        if self.arch.rope.is_none() {
            let table = self.checkpoint.weights.weight("embed.position.weight")?;
            table.expect_shape(&[first_position + positions, hidden])?;
            for (position, row) in rows.chunks_exact_mut(hidden).enumerate() {
                table.read_row(first_position + position, &mut added);
                add(row, &added);
            }
        }
        if types > 0 {
            let table = self.checkpoint.weights.weight("embed.type.weight")?;
            table.expect_shape(&[types, hidden])?;
            table.read_row(0, &mut added);
            rows.chunks_exact_mut(hidden).for_each(|row| add(row, &added));
        }
        Ok(())
    }
}
