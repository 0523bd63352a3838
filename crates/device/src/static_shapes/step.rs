//! Inputs that the host writes for one run of a decoder's layers: embedded tokens, rotary angles and masks.
//!
//! A graph takes a fixed number of tokens. Fewer tokens fill its last rows, so that the last row is the last token. The
//! rows before them are padding: they are masked, and their keys are discarded.

use std::ops::Range;

use half::f16;
use narthex_engine::{
    executor::{StepError, StepPlan},
    position::{Position, same_kind},
};
use narthex_spec::manifest::Slot;

use super::{HIDDEN, graph::StaticGraph};
use crate::{
    rope_switch::RopeFactors,
    table::{Embedding, Table},
};

/// Tables that the host reads.
pub(super) struct Tables {
    pub(super) embedding: Embedding,
    pub(super) angles: Vec<AngleInputs>,
}

/// Two inputs for cosines and sines, and their tables.
pub(super) struct AngleInputs {
    pub(super) slots: [Slot; 2],
    pub(super) short: [Table; 2],
    /// Tables for long sequences, in models with two sets of rotary factors.
    pub(super) long: Option<[Table; 2]>,
}

impl Tables {
    /// Fails if the inputs that were written may be wrong, because a file of the package changed.
    pub(super) fn check(&self) -> Result<(), StepError> {
        self.embedding.check()?;
        let mut tables =
            self.angles.iter().flat_map(|angles| angles.short.iter().chain(angles.long.iter().flatten()));
        tables.try_for_each(Table::check)
    }
}

impl AngleInputs {
    /// Returns the inputs, each with its table.
    fn of(&self, factors: RopeFactors) -> impl Iterator<Item = (Slot, &Table)> {
        let tables = match &self.long {
            Some(long) if factors == RopeFactors::Long => long,
            _ => &self.short,
        };
        self.slots.into_iter().zip(tables)
    }
}

#[derive(Clone, Copy)]
pub(super) struct TokenRun<'a> {
    /// Plan with the rows of media.
    pub(super) plan: &'a StepPlan,
    /// Number of tokens before them.
    pub(super) at: usize,
    /// Number of past columns.
    pub(super) past: usize,
    /// Number of rows of the graph.
    pub(super) rows: usize,
    /// The tokens; at most as many as rows.
    pub(super) tokens: &'a [Position],
    /// Set of rotary factors.
    pub(super) factors: RopeFactors,
    /// Rows of a medium attend to each other in both directions.
    pub(super) bidirectional: bool,
}

/// Writes the embeddings of the tokens.
pub(super) fn embed(graph: &mut StaticGraph, tables: &Tables, run: TokenRun<'_>) {
    let hidden = tables.embedding.width();
    let TokenRun { plan, at, rows, tokens, .. } = run;
    let first = rows - tokens.len();
    let per_layer = tables.embedding.per_layer_width();
    let mut row = vec![0.0; hidden.max(per_layer)];
    let embeds = graph.input(Slot::Embeds);
    embeds[..first * hidden].fill(f16::ZERO);
    let places = embeds[first * hidden..].chunks_exact_mut(hidden);
    for ((position, &token), out) in (at..).zip(tokens).zip(places) {
        tables.embedding.write(plan, token, position, &mut row[..hidden]);
        narrow(&row[..hidden], out);
    }
    if per_layer > 0 {
        let mut places = graph.input(Slot::PerLayerEmbeds).chunks_exact_mut(per_layer);
        places.by_ref().take(first).for_each(|padding| padding.fill(f16::ZERO));
        for (&token, out) in tokens.iter().zip(places) {
            tables.embedding.write_per_layer(token, &mut row[..per_layer]);
            narrow(&row[..per_layer], out);
        }
    }
}

/// Writes rotary angles and masks.
pub(super) fn write(graph: &mut StaticGraph, tables: &Tables, run: TokenRun<'_>) {
    let TokenRun { at, past, rows, tokens, factors, .. } = run;
    let first = rows - tokens.len();
    let mut row = vec![0.0; tables.embedding.width()];
    for (slot, table) in tables.angles.iter().flat_map(|angles| angles.of(factors)) {
        let pairs = table.cols();
        let angles = graph.input(slot);
        if angles.is_empty() {
            continue;
        }
        angles[..first * pairs].fill(f16::ZERO);
        for (position, out) in (at..).zip(angles[first * pairs..].chunks_exact_mut(pairs)) {
            table.read_row(position, &mut row[..pairs]);
            narrow(&row[..pairs], out);
        }
    }

    write_convolution_places(graph, run);
    let masks: Vec<Slot> = graph.inputs().filter(|slot| matches!(slot, Slot::Mask { .. })).collect();
    for slot in masks {
        let Slot::Mask { window } = slot else { continue };
        let mask = graph.input(slot);
        mask.fill(f16::from_f32(HIDDEN));
        for (row, line) in mask.chunks_exact_mut(past + rows).enumerate().skip(first) {
            let [seen, new] = visible(run, row, window);
            line[seen].fill(f16::ZERO);
            line[new].fill(f16::ZERO);
        }
    }
}

/// Writes the inputs by which short convolutions read the rows of the past right before the first new token.
fn write_convolution_places(graph: &mut StaticGraph, run: TokenRun<'_>) {
    let padding = run.rows - run.tokens.len();
    let past = graph.input(Slot::ConvolutionRows).len().saturating_sub(run.rows);
    rows_in_place(graph.input(Slot::ConvolutionRows), past, padding);
    row_shift(graph.input(Slot::ConvolutionShift), past, padding);
}

/// Writes 1 for the rows that are read in place: those of the new tokens, and those of the past if no padding follows
/// them.
fn rows_in_place(rows: &mut [f16], past: usize, padding: usize) {
    let first = if padding == 0 { 0 } else { past + padding };
    rows.fill(f16::ZERO);
    rows.iter_mut().skip(first).for_each(|row| *row = f16::ONE);
}

/// Writes the matrix that moves the rows of the past over the last rows of the padding.
fn row_shift(matrix: &mut [f16], past: usize, padding: usize) {
    matrix.fill(f16::ZERO);
    if padding > 0 {
        let moved = matrix.chunks_exact_mut(past.max(1)).skip(padding).take(past);
        moved.enumerate().for_each(|(row, places)| places[row] = f16::ONE);
    }
}

/// Returns the columns that a row attends to: those of the past, and those of the new tokens.
fn visible(run: TokenRun<'_>, row: usize, window: Option<usize>) -> [Range<usize>; 2] {
    let TokenRun { at, past, rows, tokens, bidirectional, .. } = run;
    let first = rows - tokens.len();
    let position = at + row - first;
    let here = &tokens[row - first..];
    let is_row = here.first().is_some_and(|position| position.as_row().is_some());
    let end = row + if bidirectional && is_row { same_kind(here) } else { 1 };
    let oldest = window.map_or(0, |window| (position + 1).saturating_sub(window));
    let new = first + oldest.saturating_sub(at);
    [oldest.min(at)..at, past + new..past + end]
}

fn narrow(values: &[f32], out: &mut [f16]) {
    for (value, out) in values.iter().zip(out) {
        *out = f16::from_f32(*value);
    }
}

#[cfg(test)]
mod tests {
    use narthex_engine::position::MediaRows;

    use super::*;

    #[test]
    fn a_token_sees_its_past_and_itself() {
        let check = |at, row, first, window, expected: [Range<usize>; 2]| {
            let tokens = [Position::token(0); 6];
            let plan = StepPlan::default();
            let factors = RopeFactors::Short;
            let run = TokenRun {
                plan: &plan,
                at,
                past: 10,
                rows: 6,
                tokens: &tokens[first..],
                factors,
                bidirectional: true,
            };
            assert_eq!(visible(run, row, window), expected, "at {at}, row {row}, from {first}");
        };
        // An empty past, no padding.
        check(0, 0, 0, None, [0..0, 10..11]);
        check(0, 3, 0, None, [0..0, 10..14]);
        // Five past tokens, two rows of padding.
        check(5, 2, 2, None, [0..5, 12..13]);
        check(5, 3, 2, None, [0..5, 12..14]);
        // A window of three tokens: the token itself and two before it.
        check(5, 2, 2, Some(3), [3..5, 12..13]);
        check(5, 5, 2, Some(3), [5..5, 13..16]);
        check(1, 2, 2, Some(8), [0..1, 12..13]);
    }

    #[test]
    fn rows_of_the_past_come_right_before_the_first_token() {
        let numbers = |values: &[f16]| values.iter().map(|value| value.to_f32()).collect::<Vec<_>>();
        let places = |padding| {
            let (mut rows, mut matrix) = (vec![f16::NAN; 6], vec![f16::NAN; 12]);
            rows_in_place(&mut rows, 2, padding);
            row_shift(&mut matrix, 2, padding);
            (numbers(&rows), numbers(&matrix))
        };
        assert_eq!(places(0), (vec![1.0; 6], vec![0.0; 12]));
        // Two rows of the past, one of padding, and three tokens.
        let shifted = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]].concat();
        assert_eq!(places(1), (vec![0.0, 0.0, 0.0, 1.0, 1.0, 1.0], shifted));
        // A graph without convolutions has no such inputs.
        rows_in_place(&mut [], 0, 3);
        row_shift(&mut [], 0, 3);
    }

    #[test]
    fn rows_of_a_medium_see_each_other() {
        let medium = MediaRows::new([211; 32], 1, vec![0.0; 3].into()).unwrap();
        let token = Position::token(0);
        let tokens: Vec<Position> =
            [token].into_iter().chain(medium.positions()).chain(medium.positions()).chain([token]).collect();
        let plan = StepPlan::default();
        let check = |row, window, bidirectional, expected: [Range<usize>; 2]| {
            let factors = RopeFactors::Short;
            let run =
                TokenRun { plan: &plan, at: 5, past: 10, rows: 9, tokens: &tokens, factors, bidirectional };
            assert_eq!(visible(run, row, window), expected, "row {row}");
        };
        // One row of padding.
        check(1, None, true, [0..5, 11..12]);
        check(2, None, true, [0..5, 11..15]);
        check(4, None, true, [0..5, 11..15]);
        check(5, None, true, [0..5, 11..18]);
        check(8, None, true, [0..5, 11..19]);
        check(3, Some(2), true, [5..5, 12..15]);
        check(2, None, false, [0..5, 11..13]);
    }
}
