//! The layers of a decoder in graphs of fixed shapes, which may be divided into parts.

use std::collections::BTreeMap;

use half::f16;
use narthex_engine::executor::StepError;
use narthex_spec::{SlotId, manifest::Slot};

use super::{
    cache::{NewTokens, StaticKvCache},
    graph::StaticGraph,
    step::{self, Tables, TokenRun},
};
use crate::error::DeviceError;

/// Parts of the layers in their order, by the number of past columns and then by the number of new tokens.
pub(super) type Layers = BTreeMap<usize, BTreeMap<usize, Vec<StaticGraph>>>;

/// Sorts the parts of the layers for one number of tokens. Checks that each entry of the cache occurs once, that the
/// first part takes and the last part returns `elements` elements, and that each part takes the output of the one
/// before it.
pub(super) fn in_order(parts: &mut [StaticGraph], layers: usize, elements: usize) -> Result<(), DeviceError> {
    parts.sort_by_key(|part| part.layers().start);
    let rows = parts.first().map_or(0, |first| first.output(Slot::PerLayerRows).len());
    let mut next = 0;
    let mut given = elements;
    for part in parts {
        if part.layers().start != next {
            return Err(DeviceError::package(format!("a graph with layer {next}"), "none, or two"));
        }
        let (states, taken) = if next == 0 { (Slot::Embeds, 0) } else { (Slot::Hidden, rows) };
        let found = [part.input(states).len(), part.input(Slot::PerLayerRows).len()];
        if found != [given, taken] {
            let expected =
                format!("layers with {given} inputs of hidden states and {taken} of per-layer rows");
            return Err(DeviceError::package(expected, format!("{} and {}", found[0], found[1])));
        }
        (next, given) = (part.layers().end, part.output(Slot::Hidden).len());
    }
    if next != layers {
        return Err(DeviceError::package(format!("graphs of {layers} layers in all"), next));
    }
    if given != elements {
        return Err(DeviceError::package(format!("layers with {elements} outputs"), given));
    }
    Ok(())
}

/// Runs the layers, part after part, and writes the new keys, values and rows of convolutions to the cache. Returns the hidden states of
/// every row.
pub(super) fn run_parts<'a>(
    parts: &'a mut [StaticGraph],
    tables: &Tables,
    run: TokenRun<'_>,
    cache: &mut StaticKvCache,
    slot: SlotId,
) -> Result<&'a [f16], StepError> {
    for index in 0..parts.len() {
        let (before, rest) = parts.split_at_mut(index);
        let Some(part) = rest.first_mut() else { break };
        match before.last() {
            None => step::embed(part, tables, run),
            Some(last) => {
                part.input(Slot::Hidden).copy_from_slice(last.output(Slot::Hidden));
                if let Some(first) = before.first() {
                    part.input(Slot::PerLayerRows).copy_from_slice(first.output(Slot::PerLayerRows));
                }
            }
        }

        step::write(part, tables, run);
        for layer in part.layers() {
            if let Some(index) = cache.convolutions.index(layer) {
                let past = part.input(Slot::PastConvolution { layer });
                cache.convolutions.read_past(slot, index, run.at, past);
            }
        }
        part.run_over(cache, slot)?;

        for layer in part.layers() {
            if let Some(index) = cache.convolutions.index(layer) {
                let rows = part.output(Slot::NewConvolution { layer });
                let padding = rows.len() / run.rows.max(1) * (run.rows - run.tokens.len());
                cache.convolutions.write(slot, index, run.at, &rows[padding..])?;
                continue;
            }
            let new = NewTokens {
                keys: part.output(Slot::NewKey { layer }),
                values: part.output(Slot::NewValue { layer }),
                tokens: run.rows,
                count: run.tokens.len(),
            };
            cache.put(slot, layer, run.at, new);
        }
    }
    Ok(parts.last().map_or(&[], |last| last.output(Slot::Hidden)))
}
